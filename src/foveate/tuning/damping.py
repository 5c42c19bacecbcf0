"""How much sizes count in later attention, as part of a search: models are as fast with any value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from foveate.methods.base import Method

OPTION = "size_damping"
VALUES = (0.0, 0.15, 0.3, 0.45, 0.6)


def at_default(method: Method) -> Method:
    """The method without a damping of its own; as fast as with one, so both share their measured times."""
    field = _field(method)
    return method if field is None else dataclasses.replace(method, **{OPTION: field.default})


def best_damped(method: Method, distance: Callable[[Method], float]) -> Method:
    """The method at the damping of smallest ``distance``; unchanged if it has none, or one that was asked for."""
    if _field(method) is None or not method.proportional_attention or at_default(method) != method:
        return method
    others = [dataclasses.replace(method, **{OPTION: value}) for value in VALUES if value != method.size_damping]
    return min([method, *others], key=distance)


def _field(method: Method) -> dataclasses.Field[object] | None:
    return next((field for field in dataclasses.fields(method) if field.name == OPTION), None)
