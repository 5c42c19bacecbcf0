"""``foveate compare``: from a model and images to a decision."""

from __future__ import annotations

from pathlib import Path

from foveate_cli.arguments import (
    Commands,
    add_batch_size,
    add_command,
    add_data,
    add_device,
    add_json,
    add_methods,
    add_model,
    positive_float,
)

DESCRIPTION = """\
How much faster can a model be, how, and what does it cost? Every training-free method at every budget of MACs is
measured on your images: decisions unchanged, accuracy where labels exist, speed, memory. Without MODEL, the built-in
demonstration runs: a small model and generated scenes."""

EPILOG = """\
examples:
  foveate compare
  foveate compare deit_small_patch16_224 --pretrained --data photos
  foveate compare hf:facebook/deit-tiny-patch16-224 --data imagenet --methods ToMe EViT:fuse=false --budgets 0.7 0.5
  foveate compare runs/finetune/best --data imagenette --checkpoint runs/dynamicvit/best --out report

writes to --out: index.html (the report), results.json, results.csv. Ctrl-C keeps what is measured, exits with 130, and
--resume continues from partial.json. docs/compare.md explains how each column is measured and how a setting is chosen.

keys of --json: format, model, data, options, environment, demonstration, complete, entries, refused,
  recommendation {entry, sentence, python}. The first of the entries is the unreduced model; the keys of an entry are
  the columns listed in docs/compare.md."""

DEFAULT_BUDGETS = ("0.8", "0.65", "0.5")
DEFAULT_SECONDS = 2.0
DEFAULT_LIMIT, DEMONSTRATION_LIMIT = 500, 300  # the demonstration takes less than three minutes


def add_parser(commands: Commands) -> None:
    text = "from a model to a decision"
    parser = add_command(commands, "compare", "foveate.cli.compare:run", text, DESCRIPTION, EPILOG)
    add_model(parser, optional=True)
    add_methods(parser, "default: every training-free method")
    limit = f"{DEFAULT_LIMIT}, {DEMONSTRATION_LIMIT} in the demonstration"
    add_data(parser, limit=limit, split="val, or all if there are no parts")
    group = parser.add_argument_group("what is compared, and how long")
    group.add_argument(
        "--budgets",
        "--budget",
        metavar="SHARE",
        nargs="+",
        default=list(DEFAULT_BUDGETS),
        help=f"shares of the unreduced MACs, 0.5 or 50%%; default: {' '.join(DEFAULT_BUDGETS)}",
    )
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        action="append",
        default=[],
        dest="checkpoints",
        help="a reduced and trained model that foveate.save wrote, measured as it is; may be repeated",
    )
    add_batch_size(group)
    add_device(group)
    group.add_argument(
        "--seconds",
        metavar="S",
        type=positive_float,
        default=DEFAULT_SECONDS,
        help=f"timing of each candidate; default: {DEFAULT_SECONDS:g}",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("foveate-report"), help="default: foveate-report"
    )
    parser.add_argument("--resume", action="store_true", help="continue the interrupted run in --out")
    add_json(parser)
