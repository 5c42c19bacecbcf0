"""``foveate compare``: find the best reduction of a model on images."""

from __future__ import annotations

from pathlib import Path

from foveate_cli import arguments, names

DESCRIPTION = """\
Find out how much faster a model can be, with which method, and what that costs. Measures every training-free method
at every budget of MACs on your images: unchanged decisions, accuracy (if there are labels), speed and memory. Without
MODEL, runs the built-in demonstration with a small model and generated scenes."""

EPILOG = """\
examples:
  foveate compare
  foveate compare deit_small_patch16_224 --pretrained --data photos
  foveate compare deit_small_patch16_224 --pretrained --data photos --methods all --budgets 0.8 0.65 0.5 0.35
  foveate compare hf:facebook/deit-tiny-patch16-224 --data imagenet --methods ToMe EViT:fuse=false --budgets 0.7 0.5
  foveate compare deit_small_patch16_224 --pretrained --data photos --agreement 0.99
  foveate compare runs/finetune/best --data imagenette --checkpoint runs/dynamicvit/best --out report
  foveate compare runs/camvid/best --task segmentation --data camvid
  foveate compare runs/finetune/best --data photos --runtime openvino --precision fp32 int8 --calibration others
  foveate compare hf:openai/clip-vit-base-patch16 --data photos --prompts classes.txt

Writes index.html (the report), results.json and results.csv to --out. Ctrl-C keeps the measurements so far and exits
with 130; --resume continues from partial.json. docs/compare.md explains how each column is measured and how the
recommendation is made.

keys of --json: format, model, data, options, environment, demonstration, complete, entries, refused,
  recommendation {entry, sentence, python}, runtimes, checksum. The first entry is the unreduced model; the keys of an
  entry are the columns listed in docs/compare.md."""

DEFAULT_SECONDS, DEMONSTRATION_SECONDS = 2.0, 0.4  # the demonstration is to take three minutes
DEFAULT_LIMIT, DEMONSTRATION_LIMIT = 500, 200


def add_parser(commands: arguments.Commands) -> None:
    text = "find the best reduction of a model on images"
    parser = arguments.add_command(commands, "compare", "foveate.cli.compare:run", text, DESCRIPTION, EPILOG)
    arguments.add_model(parser, optional=True)
    arguments.add_methods(parser, "method to compare, can be repeated; default, or all: every training-free method")
    limit = f"{DEFAULT_LIMIT}, {DEMONSTRATION_LIMIT} in the demonstration"
    arguments.add_data(parser, limit=limit, split="val, or all if there are no splits")
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--budgets",
        "--budget",
        metavar="SHARE",
        nargs="+",
        help="shares of the unreduced MACs, 0.5 or 50%%; default: 0.8 0.65 0.5 and smaller ones until decisions break",
    )
    asked = parser.add_argument_group(
        "what to recommend (default: the fastest with 99, 98 or 95 % of decisions unchanged)"
    )
    asked.add_argument("--agreement", metavar="SHARE", help="the fastest setting that keeps this share: 0.99 or 99%%")
    asked.add_argument(
        "--latency", metavar="TIME", help="longest time of a batch, with its unit: 12ms; the most faithful setting"
    )
    asked.add_argument("--speedup", metavar="FACTOR", help="smallest speed-up: 2; the most faithful setting")
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        action="append",
        default=[],
        dest="checkpoints",
        help="also measure a reduced and trained model written by foveate.save; can be repeated",
    )
    arguments.add_task(group)
    group.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help="texts, one a line, for zero-shot decisions of a model of images and texts",
    )
    arguments.add_batch_size(group)
    arguments.add_device(group)
    default = f"{DEFAULT_SECONDS:g}, {DEMONSTRATION_SECONDS:g} in the demonstration"
    timing = f"seconds of timing for each candidate; default: {default}"
    group.add_argument("--seconds", metavar="S", type=arguments.positive_float, help=timing)
    arguments.add_runtimes(group)
    calibration = f"images that int8 is calibrated on, not those of --data: {arguments.SOURCES}"
    arguments.completed_by(group.add_argument("--calibration", metavar="SOURCE", help=calibration), names.data)
    arguments.add_default(parser, "--out", Path("foveate-report"), "folder of the report", "DIR", Path)
    parser.add_argument("--resume", action="store_true", help="continue the interrupted run in --out")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier report in --out")
    arguments.add_untrained(parser)
    arguments.add_json(parser)
