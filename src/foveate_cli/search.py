"""``foveate search``: a constraint in, a reduction out."""

from __future__ import annotations

from pathlib import Path

from foveate_cli import arguments

DESCRIPTION = """\
Find the reduction of a model that meets a constraint best, on unlabeled images: which method or which two of them, in
which blocks, how many tokens. Some images choose, others judge. Nothing is trained."""

EPILOG = """\
constraints (one on quality, one on cost, or one of each):
  'agreement>=0.99'   share of decisions, or pixels, that stay      'cosine>=0.98'   for models without classes
  'miou>=0.95'        masks beside the unreduced model's, for segmentation
  'macs<=0.4'  'speedup>=2'  'latency<=12ms'  'memory<=200MiB'        on this machine, at --batch-size

examples:
  foveate search deit_small_patch16_224 --pretrained --data photos --for 'agreement>=0.99'
  foveate search deit_small_patch16_224 --pretrained --data photos --for 'macs<=0.4' --methods Ward ToMe
  foveate search hf:facebook/dinov2-small --data photos --for 'cosine>=0.98' --for 'speedup>=1.5'
  foveate search deit_small_patch16_224 --pretrained --data photos --for 'speedup>=2' --no-mixtures
  foveate search runs/camvid/best --data camvid --for 'miou>=0.97' --optimize latency --batch-size 1

Writes the found reduction, with all that was measured on the way, to --out. Ctrl-C keeps the best so far and exits with
130; with --measurements the same command then goes on. A constraint that nothing meets exits with 2 and names the
nearest setting.

keys of --json: those of the file: constraints, met, complete, reduction, finalists, optimized, seed, seconds,
  calibration_images, levels, sensitivities, mixture, measured, unreduced_memory_mib (if memory counts)"""

DEFAULT_IMAGES = 256


def add_parser(commands: arguments.Commands) -> None:
    text = "find the reduction that meets a constraint"
    parser = arguments.add_command(commands, "search", "foveate.cli.search:run", text, DESCRIPTION, EPILOG)
    arguments.add_model(parser)
    parser.add_argument(
        "--for",
        metavar="CONSTRAINT",
        action="append",
        required=True,
        dest="constraints",
        help="such as 'agreement>=0.99' or 'speedup>=2'; can be repeated",
    )
    parser.add_argument(
        "--optimize",
        choices=("macs", "latency", "memory"),
        default="macs",
        help="what to make small for a constraint on quality; default: macs",
    )
    arguments.add_methods(parser, "method to search, can be repeated; default: Ward, ToMe, TokenPooling and EViT")
    arguments.add_data(parser, limit=f"{2 * DEFAULT_IMAGES}, half of them to judge", required=True, split="val, or all")
    group = parser.add_argument_group("search")
    trials = "random changes of the counts of each finalist"
    arguments.add_default(group, "--trials", 40, trials, type=arguments.positive_int)
    group.add_argument(
        "--no-mixtures",
        action="store_false",
        dest="mixtures",
        help="leave out mixtures of two methods; by default the best is tried if it promises more than each alone",
    )
    arguments.add_batch_size(group)
    arguments.add_default(
        group, "--seconds", 10.0, "seconds of timing for each finalist", "S", arguments.positive_float
    )
    group.add_argument(
        "--measurements",
        metavar="FILE",
        type=Path,
        help="keep every measurement in this file and go on from it: resumes a search, and serves other constraints",
    )
    arguments.add_default(parser, "--out", Path("foveate-search.json"), "file of the result", "FILE", Path)
    arguments.add_json(parser)
