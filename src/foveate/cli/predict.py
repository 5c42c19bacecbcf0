"""The work of ``foveate predict`` and ``foveate embed``."""

from __future__ import annotations

import argparse

from foveate.cli import output
from foveate.cli.requests import class_file, read_reductions
from foveate.data.labels import CLASSES_FILE, read_class_names
from foveate.evaluation.timing import checked_device
from foveate.scale import Predictor, Summary, write_predictions


def run(args: argparse.Namespace) -> int:
    if args.engine == "local":
        checked_device(args.device)
    predictor = requested_predictor(args)
    source = {"root": args.root, "image_column": args.image_column, "key_column": args.key_column}
    with output.phases() as progress, output.logged_to_stderr():
        summary = write_predictions(
            predictor,
            args.data,
            args.out,
            split=args.split,
            limit=args.limit,
            seed=args.seed,
            engine=args.engine,
            processes=args.processes,
            address=args.address,
            part_images=args.part_images,
            resume=args.resume,
            progress=progress,
            **{name: value for name, value in source.items() if value},
        )
    if args.json:
        output.print_json(_document(summary))
    else:
        show(summary)
    return 0


def requested_predictor(args: argparse.Namespace) -> Predictor:
    """The predictor that the options describe."""
    reductions = read_reductions(args)
    if len(reductions) > 1:
        raise ValueError("One model writes the output. Give one --method.")
    names = class_file(args, CLASSES_FILE) if args.gives == "classes" else None
    return Predictor(
        args.model,
        reduction=reductions[0] if reductions else None,
        output=args.gives,
        top_k=args.top_k,
        dtype=args.dtype,
        pretrained=args.pretrained,
        weights=args.weights,
        image_size=args.image_size,
        classes=None if names is None else read_class_names(names),
        batch_size=args.batch_size,
        device=args.device,
        untrained=args.untrained,
    )


def _document(summary: Summary) -> dict[str, object]:
    return {
        "folder": str(summary.folder),
        "images": summary.images,
        "broken": summary.broken,
        "files": summary.files,
        "written": summary.written,
        "seconds": round(summary.seconds, 2),
        "images_per_second": round(summary.per_second, 2),
        "processes": summary.processes,
    }


def show(summary: Summary) -> None:
    """Print what was written."""
    before = summary.images - summary.written
    parts = [f"{summary.images} images in {_number(summary.files, 'file')}, in {summary.folder}"]
    parts += [f"{before} of them from before" if summary.written else "all of them from before"] if before else []
    workers = _number(summary.processes, "process", "processes")
    parts += [f"{summary.per_second:.1f} img/s with {workers}"] if summary.written else []
    output.say("; ".join(parts) + ".")
    if summary.broken:
        output.say(
            f"Images that could not be read: {summary.broken}. Their rows have the reason in the column 'error'; "
            "_manifest.json lists the first."
        )


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"
