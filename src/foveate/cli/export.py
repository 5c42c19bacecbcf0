"""The work of ``foveate export``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from foveate.cli import output
from foveate.cli.requests import class_file, load_from, read_reductions
from foveate.data.labels import CLASSES_FILE, read_class_names
from foveate.deploy import export
from foveate.deploy.exporting import check_folder
from foveate.deploy.manifest import MANIFEST
from foveate.deploy.quantize import check_quantize
from foveate.deploy.targets import target_named


def run(args: argparse.Namespace) -> int:
    reductions = read_reductions(args)  # all that can be checked before a model is loaded
    if len(reductions) > 1:
        raise ValueError("export writes one model. Give one --method.")
    check_quantize(args.quantize, target_named(args.to), args.data)
    check_folder(args.out)
    names = class_file(args, CLASSES_FILE)
    classes = None if names is None else read_class_names(names)
    loaded = load_from(args, reductions)
    model = loaded.reduced(reductions[0]) if reductions else loaded.own or loaded.model
    size = args.with_preprocessing
    folder = export(
        model,
        args.out,
        args.to,
        data=args.data,
        images=args.limit,
        input_size=None if size is None else size[1:],
        classes=classes,
        quantize=args.quantize,
        tolerance=args.tolerance,
    )
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if args.json:
        output.print_json(manifest)
        return 0
    for line in _lines(manifest, args):
        output.say(line)
    return 0


def _lines(manifest: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """What was written, how it was verified, and how it is loaded."""
    verified, quantized = manifest["verified"], manifest["quantized"]
    flipped = (
        f"; {verified['flipped']} differ by more, as tokens may be chosen differently where scores are nearly equal"
    )
    lines = [
        f"Wrote {args.out} ({args.to}). On {verified['images']} images of {verified['data']} it differs from PyTorch "
        f"by {verified['largest_difference']:.1e} at most{flipped if verified['flipped'] else ''}."
    ]
    if quantized is not None:
        shares = {name: f"{quantized[f'agreement_by_{name}']:.1%}" for name in ("reduction", "quantization", "both")}
        lines.append(
            f"Decisions that stay: {shares['quantization']} under int8, {shares['reduction']} under the reduction, "
            f"{shares['both']} under both, on the {quantized['calibration_images']} calibration images."
        )
    return [*lines, f'Load it with fv.load_exported("{args.out}").']
