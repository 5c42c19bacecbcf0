"""Options shared by several commands, with the same name, meaning and default everywhere."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from foveate_cli import names

BATCH_SIZE, WORKERS, SEED, DEVICE, MAX_BROKEN = 16, 2, 0, "cpu", 0.01
SOURCES = "a folder, a .csv or .parquet file, hf:NAME, parquet:PATTERN, wds:PATTERN, torchvision:NAME or scenes:"
METHOD = "NAME[:OPTION=VALUE,...]"


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ``ValueError`` instead of printing its usage and exiting."""

    completing: ClassVar[bool] = False
    """Whether a shell wants candidates; argcomplete then follows plain parsing only."""

    def __init__(self, **options: object) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**{**defaults, **options})  # type: ignore[arg-type]
        self._mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Accept arguments and options in any order, as the usage line shows them: the commands have arguments that may
        be left out, and argparse would look for those only before the first option."""
        if self._subparsers is not None or self._mixing or self.completing:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


Commands = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def add_command(commands: Commands, name: str, work: str, text: str, description: str, epilog: str) -> Parser:
    """Add a command; ``work`` is the function that runs it, as ``module:function``."""
    parser: Parser = commands.add_parser(name, help=text, description=description, epilog=epilog)
    parser.set_defaults(work=work)
    return parser


def completed_by(action: argparse.Action, completer: Callable[..., list[str]]) -> None:
    """Complete the value of an argument by ``completer``, under the name that argcomplete reads."""
    action.completer = completer  # type: ignore[attr-defined]


def add_default(
    parser: argparse._ActionsContainer,
    option: str,
    default: Any,
    help: str,
    metavar: str = "N",
    type: Callable[[str], Any] = str,
) -> None:
    """Add an option whose help ends with its default."""
    shown = f"{default:g}" if isinstance(default, float) else default
    parser.add_argument(option, metavar=metavar, type=type, default=default, help=f"{help}; default: {shown}")


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False, several_sizes: bool = False) -> None:
    model = parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if optional else None,
        help="a timm name (deit_small_patch16_224), hf:NAME-OR-PATH (transformers), torchvision:NAME (vit_b_16), "
        "or a directory written by foveate.save",
    )
    completed_by(model, names.models)
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
        nargs="+" if several_sizes else None,
        dest="image_sizes" if several_sizes else "image_size",
        help=("one or several of " if several_sizes else "")
        + "224, 224x320 (height x width) or 3x224x224; default: the model's own size",
    )


def add_methods(parser: argparse.ArgumentParser, help: str = "how to reduce tokens; can be repeated") -> None:
    """Add ``--method`` and ``--methods``, which fill the same list."""
    one = f"{help}; see `foveate methods`"
    single = parser.add_argument("--method", metavar=METHOD, action="append", dest="methods", help=one)
    more = "several methods at once"
    several = parser.add_argument("--methods", metavar=METHOD, nargs="+", action="extend", dest="methods", help=more)
    completed_by(single, names.methods)
    completed_by(several, names.methods)


def add_schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("schedule (choose one; it applies to every method)")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--budget", metavar="SHARE", help="spend this share of the unreduced MACs: 0.5 or 50%%")
    one.add_argument(
        "--adaptive", metavar="SHARE", help="spend this share on average, with more tokens for images that need them"
    )
    one.add_argument("--keep-rate", metavar="SHARE", help="keep this share of the tokens at --blocks: 0.7 or 70%%")
    one.add_argument(
        "--keep", metavar="PLAN", help="patch tokens to keep after blocks: 3:100,6:50, or one count for each block"
    )
    one.add_argument(
        "--remove", metavar="R", help="remove up to R tokens in every block; R,I tilts it by ToMe's inflection: 13,-0.5"
    )
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
    parser.add_argument(
        "--output",
        choices=("tokens", "grid", "grid-residual", "grid-attention"),
        help="what leaves the encoder: the tokens that are left, or a feature for every patch (for dense heads)",
    )
    parser.add_argument(
        "--merge-unmerge", metavar="FIRST,LAST", help="reduce in these blocks only; after them all patches are back"
    )
    parser.add_argument(
        "--positions",
        choices=("representative", "mean"),
        help="position of a merged token, in models whose blocks read positions; default: mean if they are rotary",
    )


def add_data(parser: argparse.ArgumentParser, *, limit: str, required: bool = False, split: str) -> None:
    """Add options for images and how to read them. ``limit`` and ``split`` describe the defaults."""
    group = parser.add_argument_group("images")
    completed_by(group.add_argument("--data", metavar="SOURCE", required=required, help=SOURCES), names.data)
    group.add_argument("--split", metavar="NAME", help=f"split of the data; default: {split}")
    group.add_argument("--classes", metavar="FILE", type=Path, help="file with the model's class names, in order")
    group.add_argument("--root", metavar="DIR", help="folder of torchvision: data")
    group.add_argument("--label-column", metavar="NAME", help="label column of hf: data, if there are several")
    group.add_argument(
        "--limit", metavar="N", type=positive_int, help=f"number of images to use, drawn with --seed; default: {limit}"
    )
    add_default(group, "--seed", SEED, "seed for drawing images", type=int)
    add_default(group, "--workers", WORKERS, "number of processes that read images", type=whole_number)
    add_default(group, "--max-broken", MAX_BROKEN, "share of unreadable images to tolerate", "SHARE", float)


def add_task(parser: argparse._ActionsContainer) -> None:
    task = parser.add_argument("--task", metavar="NAME", help="what the model predicts; default: what its head is for")
    completed_by(task, names.tasks)
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="task_options",
        help="option of the task, such as ignore=11 or inference=slide of segmentation; can be repeated",
    )


def add_untrained(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--untrained", action="store_true", help="accept random weights, to measure speeds; decisions then mean nothing"
    )


def add_batch_size(parser: argparse._ActionsContainer) -> None:
    add_default(parser, "--batch-size", BATCH_SIZE, "images per batch", type=positive_int)


def add_device(parser: argparse._ActionsContainer) -> None:
    add_default(parser, "--device", DEVICE, "cpu, cuda, cuda:1, mps, ...", "DEVICE")


def add_runtimes(parser: argparse._ActionsContainer) -> None:
    """Add the runtimes to measure in, and their precisions."""
    runtimes = "measure in runtimes: eager, compile, onnxruntime, openvino, or all that are installed"
    parser.add_argument("--runtime", metavar="NAME", nargs="+", dest="runtimes", default=[], help=runtimes)
    precisions = "precisions of the runtimes: fp32, bf16, int8; default: fp32"
    parser.add_argument("--precision", metavar="KIND", nargs="+", dest="precisions", default=["fp32"], help=precisions)


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
