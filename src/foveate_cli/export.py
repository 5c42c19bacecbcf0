"""``foveate export``: write a model for another runtime."""

from __future__ import annotations

from pathlib import Path

from foveate_cli import arguments, names

DESCRIPTION = """\
Write a model, reduced or not, for another runtime. Its outputs are compared with PyTorch's before it is called done;
nothing is written if they differ."""

EPILOG = """\
examples:
  foveate export deit_small_patch16_224 --pretrained --method ToMe --remove 13 --to onnx --out fast
  foveate export runs/finetune/best --to openvino --quantize int8 --data photographs --out fast-int8
  foveate export vit_tiny_patch16_224 --weights vit.safetensors --to openvino --with-preprocessing 480x640 --out camera

The folder holds the model and foveate.json. In Python: fv.load_exported("fast")(images).
The packages come with: pip install 'foveate[export]'

keys of --json: what foveate.json holds; docs/deploy.md explains it"""

TARGETS = ("onnx", "openvino", "torch-export", "aoti")


def add_parser(commands: arguments.Commands) -> None:
    text = "write a model for ONNX Runtime, OpenVINO or compiled PyTorch"
    parser = arguments.add_command(commands, "export", "foveate.cli.export:run", text, DESCRIPTION, EPILOG)
    arguments.add_model(parser)
    arguments.add_methods(parser, "how to reduce tokens")
    arguments.add_schedule(parser)
    group = parser.add_argument_group("export")
    group.add_argument("--to", choices=TARGETS, required=True, help="what to write")
    group.add_argument("--out", metavar="DIR", type=Path, required=True, help="a new folder, or one of an export")
    group.add_argument("--quantize", choices=("int8",), help="weights and activations in 8 bits; needs --data")
    group.add_argument(
        "--with-preprocessing",
        metavar="HxW",
        type=arguments.image_size,
        help="take bytes (batch, height, width, 3) of this size; resizing, cropping and colors are in the graph",
    )
    data = group.add_argument(
        "--data", metavar="SOURCE", help=f"images to verify and calibrate with: {arguments.SOURCES}; default: scenes:"
    )
    arguments.completed_by(data, names.data)
    group.add_argument(
        "--limit", metavar="N", type=arguments.positive_int, help="number of images; default: 16, or 256 for int8"
    )
    group.add_argument("--classes", metavar="FILE", type=Path, help="file with the model's class names, in order")
    tolerance = "largest difference to PyTorch, relative to the outputs"
    arguments.add_default(group, "--tolerance", 1e-4, tolerance, "X", arguments.positive_float)
    arguments.add_json(parser)
