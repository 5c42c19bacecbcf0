"""Load a model by name, with its weights, image size and reductions, ready to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from foveate.adapters import Family, ImageSize, copy_unreduced, inspect, reducer_of
from foveate.models.by_name import comes_trained, load_with_report, size_options
from foveate.reductions import Reduction


class Loaded(NamedTuple):
    """The requested model, in evaluation mode."""

    model: nn.Module
    """The model with all tokens; it keeps unit queries and keys if it was trained with them."""
    image_size: tuple[int, int, int]
    untrained: tuple[str, ...] = ()
    """Names of parameters that no trained weights have filled."""
    own: nn.Module | None = None
    """The saved model if it is reduced; it shares its modules with ``model``."""

    def reduced(self, reduction: Reduction) -> nn.Module:
        """A second root over the same modules, reduced by ``reduction``."""
        root = copy_unreduced(self.model)
        dataclasses.replace(reduction, unit_qk=inspect(self.model).reduction.unit_qk).apply_(root)
        _copy_scales_(self.model, root)
        return root

    def variants(self, reductions: list[Reduction]) -> list[tuple[Reduction, nn.Module]]:
        """The reduction saved with the model, if any, then ``reductions``, each with its model."""
        own = [] if self.own is None else [(inspect(self.own).reduction, self.own)]
        others = [reduction for reduction in reductions if reduction not in [known for known, _ in own]]
        return [*own, *((reduction, self.reduced(reduction)) for reduction in others)]


def load_requested(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | Path | None = None,
    image_size: ImageSize | None = None,
    reductions: Sequence[Reduction] = (),
) -> Loaded:
    """Load the model called ``name``, which may be saved with a reduction of its own.

    Where a file of weights is given and one of ``reductions`` learns, it is applied first, so that the file fills it.
    """
    learned = [r for r in reductions if r.method is not None and not r.method.training_free] if weights else []
    built = load_with_report(
        name,
        pretrained=pretrained,
        weights=weights,
        options=size_options(name, image_size),
        reduction=learned[0] if len(learned) == 1 else None,
    )
    model = built.model.eval()
    family = inspect(model)  # raises if the model is not supported
    size: tuple[int, int, int] = family.image_size
    if image_size is not None:
        channels, height, width = image_size
        size = (channels or size[0], height, width)
        _check_size(family, size)
    if family.reduction.method is None:
        return Loaded(model, size, built.untrained)
    whole = copy_unreduced(model)
    Reduction(unit_qk=family.reduction.unit_qk).apply_(whole)
    _copy_scales_(model, whole)
    return Loaded(whole.eval(), size, built.untrained, model)


def _check_size(family: Family, size: tuple[int, int, int]) -> None:
    """Refuse a size that the model does not take; a saved model is not built again for another one."""
    if size[0] != family.image_size[0]:
        raise ValueError(f"argument --image-size: {size[0]} channels, but the model takes {family.image_size[0]}.")
    try:
        family.grid_for(*size[1:])
    except ValueError as error:
        raise ValueError(f"argument --image-size: {error}") from error


def _copy_scales_(source_model: nn.Module, target: nn.Module) -> None:
    """Share the source's learned scales of unit queries and keys with ``target``."""
    target_reducer, source_reducer = reducer_of(target), reducer_of(source_model)
    if target_reducer is not None and source_reducer is not None and target_reducer.unit_scales is not None:
        target_reducer.unit_scales = source_reducer.unit_scales


def check_trained(
    loaded: Loaded, name: str, *, pretrained: bool, weights: str | Path | None, speed_only: str = ""
) -> None:
    """Refuse to judge predictions of weights that nobody trained; ``speed_only`` is the option that allows it.

    Raises:
        ValueError: if any parameter has its random initial value.
    """
    if not loaded.untrained:
        return
    some = ", ".join(loaded.untrained[:2]) + (", ..." if len(loaded.untrained) > 2 else "")
    ways = ["Load trained weights with --pretrained or --weights"]
    if comes_trained(name, pretrained, weights):  # all but this part
        ways = [f"Train it, e.g. foveate train linear-probe --model {name}"]
    ways += [f"measure speed only with {speed_only}"] if speed_only else []
    raise ValueError(
        f"{name} has {len(loaded.untrained)} parameters that nobody trained ({some}), so its predictions are "
        f"meaningless. {', or '.join(ways)}."
    )
