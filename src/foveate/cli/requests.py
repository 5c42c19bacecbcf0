"""Turn command line arguments into a model and reductions."""

from __future__ import annotations

import argparse
import dataclasses
import inspect as source
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import nn

from foveate.adapters import Family, copy_unreduced, inspect, reducer_of
from foveate.methods.base import Method
from foveate.methods.options import parse
from foveate.models.by_name import comes_trained, load_with_report, size_options
from foveate.reductions import Reduction, ReductionOptions
from foveate.schedules_text import IN_WORDS, make_schedule, parse_blocks, parse_keep, parse_share, split_list
from foveate.storage import load_schedule

T = TypeVar("T")


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


def load_from(args: argparse.Namespace, reductions: Sequence[Reduction] = ()) -> Loaded:
    """The model that ``foveate_cli.arguments.add_model`` asked for.

    Where a file of weights is given and one of ``reductions`` learns, it is applied first, so that the file fills it.
    """
    options = size_options(args.model, args.image_size)
    learned = [r for r in reductions if r.method is not None and not r.method.training_free] if args.weights else []
    built = load_with_report(
        args.model,
        pretrained=args.pretrained,
        weights=args.weights,
        options=options,
        reduction=learned[0] if len(learned) == 1 else None,
    )
    model = built.model.eval()
    family = inspect(model)  # raises if the model is not supported
    size: tuple[int, int, int] = family.image_size
    if args.image_size is not None:
        channels, height, width = args.image_size
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


def require_trained(loaded: Loaded, args: argparse.Namespace) -> None:
    """Refuse to judge predictions of weights that nobody trained, unless ``--untrained`` asks for speeds alone.

    Raises:
        ValueError: if any parameter has its random initial value.
    """
    if not loaded.untrained or getattr(args, "untrained", False):
        return
    some = ", ".join(loaded.untrained[:2]) + (", ..." if len(loaded.untrained) > 2 else "")
    ways = ["Load trained weights with --pretrained or --weights"]
    if comes_trained(args.model, args.pretrained, args.weights):  # all but this part
        ways = [f"Train it, e.g. foveate train linear-probe --model {args.model}"]
    ways += ["measure speed only with --untrained"] if hasattr(args, "untrained") else []
    raise ValueError(
        f"{args.model} has {len(loaded.untrained)} parameters that nobody trained ({some}), so its predictions are "
        f"meaningless. {', or '.join(ways)}."
    )


def read_reductions(args: argparse.Namespace) -> list[Reduction]:
    """One reduction for each requested method, all with the same schedule."""
    methods = read_methods(args)
    schedule = make_schedule(
        keep_rate=_read("--keep-rate", parse_share, args.keep_rate),
        keep=_read("--keep", parse_keep, args.keep),
        remove=args.remove,
        budget=_read("--budget", parse_share, args.budget),
        schedule=_read("--schedule", load_schedule, args.schedule),
        blocks=_read("--blocks", parse_blocks, args.blocks),
    )
    if not methods and (schedule is not None or args.exact_last_block):
        raise ValueError("A schedule or --exact-last-block needs --method. `foveate methods` lists methods.")
    for method in methods:
        if schedule is None and type(method).own_counts is Method.own_counts:
            raise ValueError(f"{method.name} needs a schedule: {IN_WORDS}.")
    options: ReductionOptions = {
        "exact_last_block": args.exact_last_block,
        "output": args.output,
        "merge_unmerge": _read("--merge-unmerge", parse_blocks, args.merge_unmerge),
        "positions": args.positions,
    }
    return [Reduction(method, schedule, **options) for method in methods]


def read_methods(args: argparse.Namespace) -> list[Method]:
    """The methods of ``--method`` and ``--methods``."""
    return [_read("--method", parse, text) for text in args.methods or ()]


def read_shares(option: str, texts: list[str]) -> tuple[float, ...]:
    """Read shares: ``0.8 0.5``, ``0.8,0.5`` or ``80% 50%``."""
    return tuple(_read(option, parse_share, text) for text in split_list(texts))


def _read(option: str, convert: Callable[[str], T], text: Any) -> Any:
    """Convert the value of an option; errors name the option. None stays None."""
    if text is None:
        return None
    try:
        return convert(text)
    except ValueError as error:
        raise ValueError(f"argument {option}: {error}") from error


def first_line(function: object) -> str:
    """The first line of a function's docstring, for listings."""
    return (source.getdoc(function) or "").partition("\n")[0]


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """The given options that apply to only one kind of data."""
    given = {"root": args.root, "label_column": args.label_column}
    return {name: value for name, value in given.items() if value}


def class_file(args: argparse.Namespace, default_name: str) -> Path | None:
    """The file of class names: --classes, or ``default_name`` in the folder of a trained model."""
    path = Path(args.model) / default_name
    return args.classes or (path if path.is_file() else None)
