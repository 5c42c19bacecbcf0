"""``foveate embed``: one vector for each of many images, as Parquet."""

from __future__ import annotations

from foveate_cli import arguments
from foveate_cli.predict import add_common

DESCRIPTION = """\
Compute one vector for every image, and write them to a folder of Parquet files with a manifest. A model without a
classifier gives its output; of a model with one, the vector is what its classifier reads. Use --resume to go on after a
stop at any moment: every image is in the output exactly once."""

EPILOG = """\
examples:
  foveate embed vit_small_patch16_dinov3 --pretrained --data photos --out vectors
  foveate embed hf:facebook/dinov2-small --method Ward --budget 0.5 --data 'wds:shards-{000..099}.tar' --out vectors
  foveate embed hf:facebook/dinov2-small --data images.parquet --out vectors --dtype float16 --engine ray

columns: key, embedding, error: why an image could not be read

The model may also be a folder written by `foveate export` (onnx or openvino).
Needs: pip install 'foveate[scale]'

keys of --json: folder, images, broken, files, written (by this run), seconds, images_per_second, processes"""


def add_parser(commands: arguments.Commands) -> None:
    text = "write the embeddings of many images to Parquet"
    parser = arguments.add_command(commands, "embed", "foveate.cli.embed:run", text, DESCRIPTION, EPILOG)
    parser.set_defaults(gives="embedding", top_k=1, classes=None)
    add_common(parser)
    help = "type of the numbers; default: float32"
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float32", help=help)
