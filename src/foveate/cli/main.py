"""The entry point ``foveate``."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

import foveate
from foveate.cli import compare, cost, evaluate, methods, output, recipes, show, speed, tables, train
from foveate.cli.arguments import Parser
from foveate.train.loop import Diverged

DESCRIPTION = "Vision transformers that keep fewer tokens: what that costs, what it gains, and how it looks."
EPILOG = """\
examples:
  foveate compare                                      the built-in demonstration
  foveate compare deit_small_patch16_224 --pretrained --data photographs
  foveate cost deit_small_patch16_224 --method evit --keep-rate 0.7 --blocks 3,6,9
  foveate speed deit_small_patch16_224 --method tome --remove 13 --batch-size 1 16
  foveate methods

exit codes: 0 fine, 1 a result that does not hold, 2 wrong input, 130 interrupted"""

COMMANDS = (compare, cost, speed, evaluate, methods, tables, show, train, recipes)
BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 2, 130, 141  # the last two: 128 + the signal's number, as shells count


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(prog="foveate", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"foveate {foveate.__version__}")
    parser.add_argument("--traceback", action="store_true", help="on an error, also print where it arose")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add_parser(commands)
    parser.set_defaults(run=None)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()  # here, where a closed pipe is still caught
    except BrokenPipeError:
        return _leave_closed_pipe()
    except KeyboardInterrupt:
        print("foveate: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError, OSError, Diverged) as error:
        if "--traceback" in arguments:
            traceback.print_exc()
        print(f"foveate: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    return code


def _run(arguments: list[str]) -> int:
    parser = build_parser()
    try:
        args = parser.parse_args(arguments)
    except SystemExit as done:  # --help and --version have printed
        return int(done.code or 0)
    if args.run is None:
        parser.print_help()
        return 0
    output.LINES.begin()
    return args.run(args)


def _leave_closed_pipe() -> int:
    """Nobody reads on, as in ``foveate methods | head -1``: say nothing, and let Python's last flush succeed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(main())
