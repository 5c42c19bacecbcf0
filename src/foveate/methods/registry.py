"""Registered methods by name, including those of other installed packages."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
import warnings
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TypeVar

from foveate.methods.base import AVAILABLE, Kind, Method, Site
from foveate.methods.validation import check_type, shown

ENTRY_POINTS = "foveate.methods"
"""Entry point group by which other packages add methods: each names a ``Method`` class or a module that registers some.

In the other package's pyproject.toml::

    [project.entry-points."foveate.methods"]
    loudest = "its_package.loudest:Loudest"
"""

OLD_NAMES = {"hvt": "HVTPool", "random": "RandomSelect", "importance": "ImportanceSelect"}
"""Names in files saved by earlier versions, in which a method's name was not its class's."""

M = TypeVar("M", bound=type[Method])
_METHODS: dict[str, type[Method]] = {}  # by ``_key`` of the name
_READ_GROUPS: set[str] = set()


def register(cls: M) -> M:
    """Class decorator that makes a method available by its class name, on the command line and in saved files.

    Raises:
        TypeError: if it is not a dataclass derived from ``Method``.
        ValueError: if the name is taken, an option has no default, or ``kind`` or ``site`` is missing.
    """
    _check_class(cls)
    key = _key(cls.__name__)
    known = _METHODS.get(key)
    if key in OLD_NAMES or (known is not None and not _same_source(known, cls)):
        other = OLD_NAMES.get(key) or f"{known.__module__}.{known.__name__}"  # type: ignore[union-attr]
        raise ValueError(f"The name {cls.__name__!r} is taken by {other}. Rename the class.")
    _METHODS[key] = cls
    return cls


def unregister(cls: type[Method]) -> None:
    """Remove a method from the registry."""
    _METHODS.pop(_key(cls.__name__), None)


def all_methods() -> dict[str, type[Method]]:
    """Every registered method by name, in order of registration."""
    _load_entry_points()
    return {cls.__name__: cls for cls in _METHODS.values()}


def list_methods(filter: str | None = None, *, kind: Kind | None = None) -> list[str]:
    """Names of the registered methods, sorted.

    Args:
        filter: a name with wildcards, such as ``"*pool*"``; case, hyphens and underscores do not matter.
        kind: only methods of this kind: ``"select"``, ``"merge"``, ``"cluster"``, ``"pool"`` or ``"learned"``.
    """
    if kind is not None and not (isinstance(kind, str) and kind in typing.get_args(Kind)):
        raise ValueError(f"kind must be one of {', '.join(typing.get_args(Kind))}; got {shown(kind)}.")
    check_type(str | None, "a name with wildcards, such as '*pool*'", filter=filter)
    found = [name for name, cls in all_methods().items() if kind in (None, cls.kind)]
    if filter is not None:
        found = [name for name in found if fnmatchcase(_key(name), _key(filter))]
    return sorted(found, key=str.lower)


def is_method(name: str) -> bool:
    """Whether a method is registered under ``name``, matched as in ``method_class``."""
    return _find(name) is not None


def method_class(name: str) -> type[Method]:
    """The method class called ``name``; case, hyphens and underscores do not matter: ``token-pooling``.

    Raises:
        ValueError: if there is no such method. The message lists the closest names and all names.
    """
    found = _find(name)
    if found is None:
        by_key = {_key(known): known for known in all_methods()}
        close = [by_key[key] for key in difflib.get_close_matches(_key(name), by_key, n=3, cutoff=0.5)]
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(f"There is no method {name!r}. {hint}Known: {', '.join(list_methods())}.")
    return found


def _find(name: str) -> type[Method] | None:
    key = _key(name)
    key = _key(OLD_NAMES.get(key, key))
    if key not in _METHODS:
        _load_entry_points()
    return _METHODS.get(key)


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")


def _same_source(known: type, cls: type) -> bool:
    """Whether one class redefines the other, as when a notebook cell runs twice."""
    return (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)


def _check_class(cls: type[Method]) -> None:
    name = cls.__name__
    if not (isinstance(cls, type) and issubclass(cls, Method)) or inspect.isabstract(cls):
        raise TypeError(f"register takes a Method class that implements assign; got {cls!r}.")
    if "__dataclass_fields__" not in vars(cls):
        raise TypeError(f"{name} is not a dataclass. Write @dataclass(frozen=True) between @register and the class.")
    options = dataclasses.fields(cls)
    taken = {"name", "kind", "baseline"} & {option.name for option in options}
    if taken:
        raise ValueError(
            f"{name} has an option {taken.pop()!r}, which is an attribute of every method. Rename the option."
        )
    if without := [o.name for o in options if o.default is dataclasses.MISSING]:
        raise ValueError(f"{name}.{without[0]} has no default. Every option of a method needs one.")
    if (kind := getattr(cls, "kind", None)) not in typing.get_args(Kind):
        raise ValueError(f"{name}.kind must be one of {', '.join(typing.get_args(Kind))}; got {kind!r}.")
    if not isinstance(site := getattr(cls, "site", None), Site):
        raise ValueError(f"{name}.site must be a foveate.methods.Site, got {site!r}.")
    if cls.needs is not Method.needs and not AVAILABLE[site]:
        raise ValueError(f"{name} needs scores from attention, which exist only at {Site.POST_ATTN}.")


def _load_entry_points() -> None:
    """Load the methods of other packages, once."""
    if ENTRY_POINTS in _READ_GROUPS:
        return
    _READ_GROUPS.add(ENTRY_POINTS)  # before loading, because a loaded module may list methods itself
    for entry_point in entry_points(group=ENTRY_POINTS):
        try:
            _load(entry_point)
        except Exception as error:  # an error in another package must not break this one
            package = entry_point.dist.name if entry_point.dist else "an unknown package"
            warnings.warn(
                f"The methods of {package} are not available: entry point {entry_point.name} = {entry_point.value} "
                f"failed with {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


def _load(entry_point: EntryPoint) -> None:
    loaded = entry_point.load()
    if isinstance(loaded, ModuleType):
        return  # importing it has registered its methods
    if not isinstance(loaded, type) or _METHODS.get(_key(loaded.__name__)) is not loaded:
        register(loaded)
