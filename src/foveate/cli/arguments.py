"""The one grammar for models, methods, schedules and image sizes, shared by every command."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from torch import Tensor, nn

from foveate.adapters import UnitQK, reduction_of
from foveate.api import reduce_
from foveate.methods.base import Method, all_methods
from foveate.methods.options import describe, parse
from foveate.schedule import Budget, Keep, KeepRate, OwnCounts, RemovePerBlock, Schedule, describe_schedule
from foveate.storage import load_schedule

T = TypeVar("T")
SCHEDULES_IN_WORDS = "--keep-rate 0.7 --blocks 3,6,9, --keep 3:100,6:50, --remove 13 or --budget 0.5"

ImageSize = tuple[int | None, int, int]
"""Channels (None: the model's), height, width."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises where argparse would print its usage and exit."""

    def __init__(self, **options: object) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**{**defaults, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


@dataclass(frozen=True)
class Request:
    """One way to reduce a model, as asked for on the command line or as a saved model brings it."""

    method: Method
    schedule: Schedule | None
    exact_last_block: bool = False
    unit_qk: UnitQK | None = None
    learned: Mapping[str, Tensor] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """What a saved model's method had learned."""

    def apply_(self, model: nn.Module) -> nn.Module:
        """Reduce ``model`` in place, with what was learned."""
        options = {"exact_last_block": self.exact_last_block, "unit_qk": self.unit_qk}
        reduce_(model, self.method, self.schedule, **options)  # type: ignore[arg-type]
        reduction = reduction_of(model)
        if self.learned and reduction is not None:
            reduction.load_state_dict({**reduction.state_dict(), **self.learned})
        return model

    @property
    def scales(self) -> dict[str, Tensor]:
        """The part of what was learned that belongs to the model, whatever its method: its ``unit_qk``."""
        return {name: value for name, value in self.learned.items() if name.startswith("unit_scales.")}

    @property
    def schedule_in_words(self) -> str:
        """The schedule in few words, for a table."""
        return schedule_text(self.schedule) + (", exact last block" if self.exact_last_block else "")

    def as_json(self) -> dict[str, object]:
        """The keys that say how a model was reduced."""
        return {
            "method": describe(self.method),
            "schedule": describe_schedule(self.schedule or OwnCounts()),
            "exact_last_block": self.exact_last_block,
            "unit_qk": self.unit_qk,
        }


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if optional else None,
        help="a timm name (deit_small_patch16_224), hf:NAME-OR-PATH (transformers), torchvision:NAME (vit_b_16), "
        "or a directory written by foveate.save",
    )
    parser.add_argument(
        "--pretrained",
        action="store_true",
        help="load the weights of a timm or torchvision model; they are random without this, which costs and speed "
        "do not depend on (hf: models always come with theirs)",
    )
    parser.add_argument(
        "--weights", metavar="FILE", type=Path, help="load weights from a safetensors file, or one of torch.save"
    )
    parser.add_argument(
        "--image-size",
        metavar="SIZE",
        type=_named(parse_image_size),
        help="224, 224x320 (height x width) or 3x224x224; default: what the model was made for",
    )


def add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--method",
        metavar="NAME[:OPTION=VALUE,...]",
        type=_named(parse),
        action="append",
        default=[],
        dest="methods",
        help=f"how to reduce tokens: {', '.join(all_methods())}; `foveate methods` lists the options. "
        "Repeat it to compare several under one schedule",
    )


def add_schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("schedule (one of these; it applies to every --method)")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--keep-rate", metavar="RATE", type=float, help="keep this fraction of the tokens at --blocks")
    one.add_argument(
        "--keep",
        metavar="PLAN",
        type=_named(parse_keep),
        help="patch tokens left after blocks, 3:100,6:50, or a list with one count per block",
    )
    one.add_argument("--remove", metavar="R", type=int, help="remove up to R tokens in every block")
    one.add_argument(
        "--schedule",
        metavar="FILE",
        type=_named(load_schedule),
        help="a schedule written by foveate.save_schedule, such as the counts a search found",
    )
    one.add_argument("--budget", metavar="FRACTION", type=float, help="spend this fraction of the unreduced MACs")
    group.add_argument(
        "--blocks",
        metavar="LIST",
        type=_named(parse_blocks),
        help="blocks for --keep-rate (default: after a quarter, a half and three quarters) or --budget (default: where "
        "the method likes them), counted from 0",
    )
    parser.add_argument(
        "--exact-last-block",
        action="store_true",
        help="compute the last block for the class token alone, which is exact where the head reads nothing else",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def read_requests(args: argparse.Namespace, own: Request | None = None) -> list[Request]:
    """What to do to the model: what it brought along (``own``), then what was asked for."""
    schedule = read_schedule(args)
    if not args.methods and (schedule is not None or args.exact_last_block):
        raise ValueError("A schedule or --exact-last-block needs --method; `foveate methods` lists them.")
    for method in args.methods:
        if schedule is None and type(method).own_counts is Method.own_counts:
            raise ValueError(f"{method.name} needs a schedule: {SCHEDULES_IN_WORDS}.")
    unit_qk, scales = (None, {}) if own is None else (own.unit_qk, own.scales)
    asked = [Request(method, schedule, args.exact_last_block, unit_qk, scales) for method in args.methods]
    return asked if own is None else [own, *asked]


def read_schedule(args: argparse.Namespace) -> Schedule | None:
    """The schedule that was asked for; None where there was none."""
    if args.blocks is not None and args.keep_rate is None and args.budget is None:
        raise ValueError("--blocks goes with --keep-rate or --budget: --keep-rate 0.7 --blocks 3,6,9.")
    if args.keep_rate is not None:
        return KeepRate(args.keep_rate, args.blocks)
    if args.remove is not None:
        return RemovePerBlock(args.remove)
    if args.budget is not None:
        return Budget(args.budget, args.blocks)
    return args.keep or args.schedule


def parse_keep(text: str) -> Keep:
    """``3:100,6:50`` or ``196,196,100``."""
    items = [item.split(":") for item in text.split(",")]
    parts = {len(item) for item in items}
    if parts not in ({1}, {2}) or not all(number.strip().isdecimal() for item in items for number in item):
        raise ValueError(f"write 3:100,6:50 (block:count) or one count per block; got {text!r}")
    if parts == {1}:
        return Keep([int(count) for (count,) in items])
    plan = {int(block): int(count) for block, count in items}
    if len(plan) < len(items):
        raise ValueError(f"a block is named twice in {text!r}")
    return Keep(plan)


def parse_blocks(text: str) -> tuple[int, ...]:
    """``3,6,9``."""
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError as error:
        raise ValueError(f"write block numbers like 3,6,9; got {text!r}") from error


def parse_image_size(text: str) -> ImageSize:
    """``224``, ``224x320`` or ``3x224x224``."""
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"write 224, 224x320 (height x width) or 3x224x224; got {text!r}")
    numbers = [int(part) for part in parts]
    if len(numbers) == 3:
        return numbers[0], numbers[1], numbers[2]
    return None, numbers[0], numbers[-1]


def positive_int(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number, 1 or more, is needed; got {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed; got {text!r}")
    return value


def first_line(function: object) -> str:
    """What a listing says about a function: the first line of its docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def schedule_text(schedule: Schedule | None) -> str:
    """A schedule in few words."""
    if isinstance(schedule, KeepRate):
        return f"keep-rate {schedule.rate:g}" + (f" at {_joined(schedule.blocks)}" if schedule.blocks else "")
    if isinstance(schedule, RemovePerBlock):
        return f"remove {schedule.r}"
    if isinstance(schedule, Budget):
        return f"budget {schedule.fraction:g}" + (f" at {_joined(schedule.blocks)}" if schedule.blocks else "")
    if isinstance(schedule, Keep):
        return "keep, by block" if schedule.listed else f"keep {_joined(f'{b}:{count}' for b, count in schedule.pairs)}"
    return "its own" if isinstance(schedule, OwnCounts | None) else repr(schedule)


def _joined(items: Iterable[object]) -> str:
    return ",".join(map(str, items))


def _named(convert: Callable[[str], T]) -> Callable[[str], T]:
    """``convert`` for argparse, which keeps the words of this one error only."""

    def converted(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return converted
