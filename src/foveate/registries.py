"""Pictures, tables, tasks, dense heads and methods by name: each file of a package registers its own."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")
Thing = TypeVar("Thing")


class Registry(Generic[T]):
    """Things by name, and the decorator that adds them: ``@registry("name")``. A class gets its name as ``name``.

    Args:
        noun: What is registered, for error messages.
        package: The package whose modules register themselves.
    """

    def __init__(self, noun: str, package: str) -> None:
        self.noun, self.package = noun, package
        self.by_name: dict[str, T] = {}

    def __call__(self, name: str) -> Callable[[Thing], Thing]:
        """Register what follows under ``name``.

        Raises:
            ValueError: If the name is taken.
        """

        def decorate(thing: Thing) -> Thing:
            if name in self.by_name:
                raise ValueError(f"A {self.noun} named {name!r} is already registered.")
            self.by_name[name] = cast(T, thing)
            if isinstance(thing, type):
                thing.name = name  # type: ignore[attr-defined]
            return thing

        return decorate

    def find(self, name: str) -> T:
        """Return what is registered under ``name``.

        Raises:
            ValueError: If there is nothing. The message has the closest names and all names.
        """
        if name not in self.by_name:
            close = difflib.get_close_matches(name, self.by_name, n=2)
            hint = f"Did you mean {' or '.join(close)}? " if close else ""
            raise ValueError(f"There is no {self.noun} {name!r}. {hint}Known: {', '.join(self.names())}.")
        return self.by_name[name]

    def names(self) -> list[str]:
        """Return the names of all that is registered, sorted."""
        return sorted(self.by_name)

    def all(self) -> dict[str, T]:
        """Return everything by name. Imports the modules of the package."""
        import_modules(self.package)
        return dict(self.by_name)


def import_modules(package: str) -> None:
    """Import every module of ``package``, so that each registers itself."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
