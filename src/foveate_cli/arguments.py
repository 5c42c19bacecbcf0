"""Options that several commands share: one name, one meaning, one default."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NoReturn

BATCH_SIZE, WORKERS, SEED, DEVICE, MAX_BROKEN = 16, 2, 0, "cpu", 0.01
METHOD = "NAME[:OPTION=VALUE,...]"


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ``ValueError`` where argparse would print its usage and exit."""

    def __init__(self, **options: object) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**{**defaults, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


Commands = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def add_command(commands: Commands, name: str, work: str, text: str, description: str, epilog: str) -> Parser:
    """A command, and the function that does its work, as ``module:function``."""
    parser: Parser = commands.add_parser(name, help=text, description=description, epilog=epilog)
    parser.set_defaults(work=work)
    return parser


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
        help="load the weights of a timm or torchvision model; without this they are random, which does not matter "
        "for costs and speed (hf: models always come with theirs)",
    )
    parser.add_argument(
        "--weights", metavar="FILE", type=Path, help="load weights from a safetensors or torch.save file"
    )
    parser.add_argument(
        "--image-size",
        metavar="SIZE",
        type=image_size,
        help="224, 224x320 (height x width) or 3x224x224; default: what the model was made for",
    )


def add_methods(parser: argparse.ArgumentParser, help: str = "how to reduce tokens; may be repeated") -> None:
    """``--method`` and ``--methods``, which fill the same list."""
    parser.add_argument(
        "--method", metavar=METHOD, action="append", default=None, dest="methods", help=f"{help}; see `foveate methods`"
    )
    parser.add_argument(
        "--methods", metavar=METHOD, nargs="+", action="extend", default=None, dest="methods", help="several at once"
    )


def add_schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("schedule (one of these; it applies to every method)")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--budget", metavar="SHARE", help="spend this share of the unreduced MACs: 0.5 or 50%%")
    one.add_argument("--keep-rate", metavar="SHARE", help="keep this share of the tokens at --blocks: 0.7 or 70%%")
    one.add_argument(
        "--keep", metavar="PLAN", help="patch tokens left after blocks, 3:100,6:50, or a list with one count per block"
    )
    one.add_argument("--remove", metavar="R", type=int, help="remove up to R tokens in every block")
    one.add_argument("--schedule", metavar="FILE", help="a schedule written by foveate.save_schedule")
    group.add_argument(
        "--blocks",
        metavar="LIST",
        help="blocks for --keep-rate (default: after a quarter, a half and three quarters) or --budget (default: the "
        "method's choice), counted from 0: 3,6,9",
    )
    parser.add_argument(
        "--exact-last-block",
        action="store_true",
        help="compute the last block for the class token alone, which is exact if the head reads nothing else",
    )


def add_data(parser: argparse.ArgumentParser, *, limit: str, required: bool = False, split: str) -> None:
    """Images, and how they are read. ``limit`` and ``split`` describe the defaults."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--data", metavar="SOURCE", required=required, help="a folder, a .csv file, hf:, wds: or torchvision: data"
    )
    group.add_argument("--split", metavar="NAME", help=f"part of the data; default: {split}")
    group.add_argument("--classes", metavar="FILE", type=Path, help="names of the model's classes, in its order")
    group.add_argument("--root", metavar="DIR", help="where torchvision: data are")
    group.add_argument("--label-column", metavar="NAME", help="the label of hf: data that have several")
    group.add_argument(
        "--limit", metavar="N", type=positive_int, help=f"images to look at, drawn by --seed; default: {limit}"
    )
    group.add_argument("--seed", metavar="N", type=int, default=SEED, help=f"of that draw; default: {SEED}")
    group.add_argument(
        "--workers",
        metavar="N",
        type=whole_number,
        default=WORKERS,
        help=f"processes that read images; default: {WORKERS}",
    )
    group.add_argument(
        "--max-broken",
        metavar="SHARE",
        type=float,
        default=MAX_BROKEN,
        help=f"share of unreadable images that is accepted; default: {MAX_BROKEN}",
    )


def add_batch_size(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--batch-size", metavar="N", type=positive_int, default=BATCH_SIZE, help=f"default: {BATCH_SIZE}"
    )


def add_device(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--device", default=DEVICE, help=f"cpu, cuda, cuda:1, mps, ...; default: {DEVICE}")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def image_size(text: str) -> tuple[int | None, int, int]:
    """``224``, ``224x320`` or ``3x224x224``: (channels or None, height, width)."""
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"write 224, 224x320 (height x width) or 3x224x224; got {text!r}")
    numbers = [int(part) for part in parts]
    return (None if len(numbers) < 3 else numbers[0]), numbers[-2] if len(numbers) > 1 else numbers[0], numbers[-1]


def positive_int(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number, 1 or more, is needed; got {text!r}")
    return int(text)


def whole_number(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number, 0 or more, is needed; got {text!r}")
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
