"""Options shared by several commands, with the same name, meaning and default everywhere."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NoReturn

BATCH_SIZE, WORKERS, SEED, DEVICE, MAX_BROKEN = 16, 2, 0, "cpu", 0.01
METHOD = "NAME[:OPTION=VALUE,...]"


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ``ValueError`` instead of printing its usage and exiting."""

    def __init__(self, **options: object) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**{**defaults, **options})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


Commands = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def add_command(commands: Commands, name: str, work: str, text: str, description: str, epilog: str) -> Parser:
    """Add a command; ``work`` is the function that runs it, as ``module:function``."""
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
        help="load the pretrained weights of a timm or torchvision model; otherwise weights are random, which does "
        "not affect costs and speed (hf: models always load theirs)",
    )
    parser.add_argument(
        "--weights", metavar="FILE", type=Path, help="load weights from a safetensors or torch.save file"
    )
    parser.add_argument(
        "--image-size",
        metavar="SIZE",
        type=image_size,
        help="224, 224x320 (height x width) or 3x224x224; default: the model's own size",
    )


def add_methods(parser: argparse.ArgumentParser, help: str = "how to reduce tokens; can be repeated") -> None:
    """Add ``--method`` and ``--methods``, which fill the same list."""
    parser.add_argument(
        "--method", metavar=METHOD, action="append", default=None, dest="methods", help=f"{help}; see `foveate methods`"
    )
    parser.add_argument(
        "--methods",
        metavar=METHOD,
        nargs="+",
        action="extend",
        default=None,
        dest="methods",
        help="several methods at once",
    )


def add_schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("schedule (choose one; it applies to every method)")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--budget", metavar="SHARE", help="spend this share of the unreduced MACs: 0.5 or 50%%")
    one.add_argument("--keep-rate", metavar="SHARE", help="keep this share of the tokens at --blocks: 0.7 or 70%%")
    one.add_argument(
        "--keep", metavar="PLAN", help="patch tokens to keep after blocks: 3:100,6:50, or one count for each block"
    )
    one.add_argument("--remove", metavar="R", type=int, help="remove up to R tokens in every block")
    one.add_argument("--schedule", metavar="FILE", help="a schedule written by foveate.save_schedule")
    group.add_argument(
        "--blocks",
        metavar="LIST",
        help="blocks for --keep-rate or --budget, counted from 0: 3,6,9; default: for --keep-rate, at a quarter, half "
        "and three quarters of the depth; for --budget, chosen by the method",
    )
    parser.add_argument(
        "--exact-last-block",
        action="store_true",
        help="compute the last block for the class token only, which is exact if the head reads nothing else",
    )


def add_data(parser: argparse.ArgumentParser, *, limit: str, required: bool = False, split: str) -> None:
    """Add options for images and how to read them. ``limit`` and ``split`` describe the defaults."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--data",
        metavar="SOURCE",
        required=required,
        help="a folder, a .csv file, hf:NAME, wds:PATTERN, torchvision:NAME or scenes:",
    )
    group.add_argument("--split", metavar="NAME", help=f"split of the data; default: {split}")
    group.add_argument("--classes", metavar="FILE", type=Path, help="file with the model's class names, in order")
    group.add_argument("--root", metavar="DIR", help="folder of torchvision: data")
    group.add_argument("--label-column", metavar="NAME", help="label column of hf: data, if there are several")
    group.add_argument(
        "--limit", metavar="N", type=positive_int, help=f"number of images to use, drawn with --seed; default: {limit}"
    )
    group.add_argument("--seed", metavar="N", type=int, default=SEED, help=f"seed for drawing images; default: {SEED}")
    group.add_argument(
        "--workers",
        metavar="N",
        type=whole_number,
        default=WORKERS,
        help=f"number of processes that read images; default: {WORKERS}",
    )
    group.add_argument(
        "--max-broken",
        metavar="SHARE",
        type=float,
        default=MAX_BROKEN,
        help=f"share of unreadable images to tolerate; default: {MAX_BROKEN}",
    )


def add_untrained(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--untrained", action="store_true", help="accept random weights, to measure speeds; decisions then mean nothing"
    )


def add_batch_size(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=positive_int,
        default=BATCH_SIZE,
        help=f"images per batch; default: {BATCH_SIZE}",
    )


def add_device(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--device", default=DEVICE, help=f"cpu, cuda, cuda:1, mps, ...; default: {DEVICE}")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def image_size(text: str) -> tuple[int | None, int, int]:
    """Read ``224``, ``224x320`` or ``3x224x224``: (channels or None, height, width)."""
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"write 224, 224x320 (height x width) or 3x224x224; got {text!r}")
    numbers = [int(part) for part in parts]
    return (None if len(numbers) < 3 else numbers[0]), numbers[-2] if len(numbers) > 1 else numbers[0], numbers[-1]


def positive_int(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def whole_number(text: str) -> int:
    """Read a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value
