"""The entry point of the command ``foveate``."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from foveate_cli import (
    compare,
    completion,
    cost,
    embed,
    evaluate,
    export,
    methods,
    models,
    predict,
    recipes,
    recover,
    search,
    show,
    speed,
    tables,
    train,
)
from foveate_cli.arguments import Parser

DESCRIPTION = (
    "Token reduction for vision transformers: count costs, measure speed and accuracy, draw, compare and train."
)
EPILOG = """\
examples:
  foveate compare                                      run the built-in demonstration
  foveate compare deit_small_patch16_224 --pretrained --data photographs
  foveate cost deit_small_patch16_224 --method EViT --keep-rate 0.7 --blocks 3,6,9
  foveate speed deit_small_patch16_224 --method ToMe --remove 13 --batch-size 1 16
  foveate methods

exit codes: 0 success, 1 a printed number does not hold (tables), 2 wrong input or a full disk, 70 a bug of foveate,
130 interrupted"""

COMMANDS = (
    *(compare, search, recover, cost, speed, evaluate, predict, embed),
    *(export, methods, models, tables, show, train, recipes, completion),
)
LONGEST = 1500
"""The longest error message that is printed, in characters."""
BAD_INPUT, BUG = 2, 70  # Python's own code for a traceback is 1, which here is a result
INTERRUPTED, CLOSED_PIPE = 130, 141  # 128 + the signal's number, as in shells


def build_parser() -> Parser:
    """Build the parser of all commands."""
    parser = Parser(prog="foveate", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--traceback", action="store_true", help="on an error, also print the traceback")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add_parser(commands)
    parser.set_defaults(work=None)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if sys.stderr is None:  # closed by 2>&-
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, for as long as the process lives
    try:
        _check_stdout()
        code = _run(arguments)
        sys.stdout.flush()  # flush here, where a closed pipe is still handled
    except BrokenPipeError:
        return _leave_closed_pipe()
    except KeyboardInterrupt:
        print("foveate: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        known = _is_user_error(error)
        if not known or "--traceback" in arguments:
            traceback.print_exc()
        kind = "" if known else f"this is a bug, please report it with the lines above: {type(error).__name__}: "
        print(f"foveate: {kind}{_one_line(error)}", file=sys.stderr)
        return BAD_INPUT if known else BUG
    return code


def _check_stdout() -> None:
    """Raise ``OSError`` if stdout was closed (``>&-``): the next file that is opened would receive what is printed."""
    if sys.stdout is None:
        raise OSError("Standard output is closed. To print nothing, redirect it to /dev/null.")


def _one_line(error: Exception) -> str:
    """Return the message in one line; the middle of a very long one is left out."""
    text = " ".join(str(error).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def _is_user_error(error: Exception) -> bool:
    """Whether an error is about the user's input; an error of diverged training has an attribute for this."""
    return isinstance(error, ValueError | TypeError | OSError) or getattr(error, "users_error", False)


def _run(arguments: list[str]) -> int:
    parser = build_parser()
    if completion.VARIABLE in os.environ:
        completion.complete(parser)
    try:
        args = parser.parse_args(arguments)
    except SystemExit as done:  # --help was printed
        return int(done.code or 0)
    if args.version:
        from importlib.metadata import version

        print(f"foveate {version('foveate')}")
        return 0
    if args.work is None:
        parser.print_help()
        return 0
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # transformers imports torchao, which warns
    work = _work(args.work)
    if args.work.startswith("foveate."):  # commands of foveate_cli itself answer without torch
        output = importlib.import_module("foveate.cli.output")
        output.plain_warnings()
        output.LINES.begin()
    return work(args)


def _work(name: str) -> Callable[[Any], int]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _leave_closed_pipe() -> int:
    """Exit quietly if the reader is gone, as in ``foveate methods | head -1``; Python's last flush must not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(main())
