"""Turn command line arguments into a model and reductions."""

from __future__ import annotations

import argparse
import inspect as source
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from foveate.methods.base import Method
from foveate.methods.options import parse
from foveate.models.requested import Loaded, check_trained, load_requested
from foveate.reductions import Reduction, ReductionOptions
from foveate.schedules_text import (
    IN_WORDS,
    make_schedule,
    parse_adaptive,
    parse_blocks,
    parse_keep,
    parse_remove,
    parse_share,
    split_list,
)
from foveate.storage import load_schedule, saved_folder

T = TypeVar("T")


def load_from(args: argparse.Namespace, reductions: Sequence[Reduction] = ()) -> Loaded:
    """The model that ``foveate_cli.arguments.add_model`` asked for."""
    return load_requested(
        args.model,
        pretrained=args.pretrained,
        weights=args.weights,
        image_size=args.image_size,
        reductions=reductions,
    )


def require_trained(loaded: Loaded, args: argparse.Namespace) -> None:
    """Refuse to judge predictions of weights that nobody trained, unless ``--untrained`` asks for speeds alone."""
    if not getattr(args, "untrained", False):
        speed_only = "--untrained" if hasattr(args, "untrained") else ""
        check_trained(loaded, args.model, pretrained=args.pretrained, weights=args.weights, speed_only=speed_only)


def read_reductions(args: argparse.Namespace) -> list[Reduction]:
    """One reduction for each requested method, all with the same schedule."""
    methods = read_methods(args)
    schedule = make_schedule(
        keep_rate=_read("--keep-rate", parse_share, args.keep_rate),
        keep=_read("--keep", parse_keep, args.keep),
        remove=_read("--remove", parse_remove, args.remove),
        budget=_read("--budget", parse_share, args.budget),
        adaptive=_read("--adaptive", parse_adaptive, args.adaptive),
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
    path = saved_folder(args.model) / default_name
    return args.classes or (path if path.is_file() else None)
