"""``foveate eval``: what a model keeps of its accuracy and decisions on images."""

from __future__ import annotations

import argparse
import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foveate.api import cost
from foveate.cli import output
from foveate.cli.arguments import Request, add_json, add_methods, add_model, add_schedule, read_requests
from foveate.cli.models import Loaded, load_from
from foveate.data import ImageData, Loader, StreamedData, open_data
from foveate.data.labels import read_class_names
from foveate.data.preprocessing import Preprocessing
from foveate.report.speed import checked_device
from foveate.train.classifier import predicted_classes
from foveate.train.evaluate import Figures, evaluate_side_by_side
from foveate.train.loop import CLASSES

DESCRIPTION = "Evaluate a model on images, unreduced and reduced side by side: accuracy, agreement, MACs, speed."
EPILOG = """\
examples:
  foveate eval deit_small_patch16_224 --pretrained --data imagenet --method tome --method ward --budget 0.65
  foveate eval runs/finetune/best --data imagenette
  foveate eval vit_tiny_patch16_224 --weights vit.safetensors --data labels.csv --split all --method tome --remove 8

Agreement is the share of images on which the unreduced model decides the same; it needs no labels. Images per second
are those of the model alone, measured in turns batch by batch; `foveate speed` measures more carefully.

keys of --json: model, data, split, images, broken, rows [{model, top1, top5, agreement, macs, images_per_second}]"""
COLUMNS = ("model", "top-1 %", "top-5 %", "agreement %", "GMACs", "img/s")


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("eval", help="accuracy on images", description=DESCRIPTION, epilog=EPILOG)
    add_model(parser)
    parser.add_argument("--data", metavar="SOURCE", required=True, help="images; see docs/data.md")
    parser.add_argument("--split", metavar="NAME", default="val", help="the part of them (default: val)")
    parser.add_argument("--classes", metavar="FILE", type=Path, help="names of the model's classes, in its order")
    parser.add_argument("--root", metavar="DIR", help="where torchvision: data are")
    parser.add_argument("--label-column", metavar="NAME", help="the label of hf: data that have several")
    parser.add_argument("--batch-size", metavar="N", type=int, default=32)
    parser.add_argument("--workers", metavar="N", type=int, default=2, help="processes that read images (default: 2)")
    parser.add_argument(
        "--max-broken", metavar="SHARE", type=float, default=0.01, help="unreadable images allowed (default: 0.01)"
    )
    parser.add_argument("--limit", metavar="N", type=int, help="batches to look at, at most")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps, ... (default: cpu)")
    add_methods(parser)
    add_schedule(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    device = checked_device(args.device)
    loaded = load_from(args)
    models = variants(loaded, read_requests(args, loaded.own))
    loader = open_loader(args, loaded)
    figures = evaluate_with_bar(models, loader, device, args.limit)
    rows = [row(name, models[name], loaded.image_size, found) for name, found in figures.items()]
    images = next(iter(figures.values())).images
    if args.json:
        head = {"model": args.model, "data": args.data, "split": args.split, "images": images, "broken": loader.broken}
        output.print_json({**head, "rows": rows})
        return 0
    broken = f", {loader.broken} broken" if loader.broken else ""
    title = f"{args.model} on {args.data}, {args.split}: {images} images{broken}"
    cells = [[shown(value) for value in line.values()] for line in rows]
    output.print_table(title, COLUMNS, cells, text_columns=("model",))
    return 0


def variants(loaded: Loaded, requests: list[Request]) -> dict[str, nn.Module]:
    """The unreduced model first, then it as each request says."""
    models: dict[str, nn.Module] = {"unreduced": loaded.model}
    for request in requests:
        model = copy.deepcopy(loaded.model)
        request.apply_(model)
        models[f"{request.method.name}, {request.schedule_in_words}"] = model
    return models


def open_loader(args: argparse.Namespace, loaded: Loaded) -> Loader:
    classes = predicted_classes(loaded.model)
    if classes is None:
        raise ValueError(f"{args.model} predicts no classes, so that nothing can be evaluated. Train a classifier.")
    data = open_labelled(args, classes)
    _, height, width = loaded.image_size
    transform = dataclasses.replace(Preprocessing.of(loaded.model), height=height, width=width).evaluation()
    options = {"workers": args.workers, "max_broken": args.max_broken}
    return Loader(data, transform, args.batch_size, seed=0, train=False, **options)


def open_labelled(args: argparse.Namespace, predicted: int) -> ImageData | StreamedData:
    """The data, with labels that mean what the model's do: a folder alone numbers its classes by what it holds."""
    options = {"root": args.root, "label_column": args.label_column}
    given: dict[str, Any] = {name: value for name, value in options.items() if value}
    names = class_names(args)
    if names is not None and len(names) != predicted:
        raise ValueError(f"{len(names)} classes are named, and {args.model} predicts {predicted}.")
    data = open_data(args.data, args.split, classes=names, allow_empty_classes=True, **given)
    if names is None and data.classes is not None and len(data.classes) != predicted:
        raise ValueError(
            f"{args.data} has {len(data.classes)} classes by name, {args.model} predicts {predicted}: which is which? "
            "Give --classes FILE, the names of the model's classes in its order, one a line."
        )
    if data.num_classes is not None and data.num_classes > predicted:
        raise ValueError(f"{args.data} has {data.num_classes} classes, {args.model} predicts {predicted}.")
    return data


def class_names(args: argparse.Namespace) -> list[str] | None:
    """The model's classes in its order, from --classes or from beside a model that was trained here."""
    beside = Path(args.model) / CLASSES
    path = args.classes or (beside if beside.is_file() else None)
    return None if path is None else read_class_names(path)


def evaluate_with_bar(
    models: dict[str, nn.Module], loader: Loader, device: torch.device, limit: int | None
) -> dict[str, Figures]:
    """Evaluate, with progress on stderr."""
    batches = loader.epoch(0)
    if limit is not None:
        batches = (batch for batch, _ in zip(batches, range(limit), strict=False))
    total = len(loader.data) if isinstance(loader.data, ImageData) else None  # streams do not know
    done = 0

    def advance(number: int) -> None:
        nonlocal done
        done += number
        progress("images", done, total)

    with output.phases() as progress:
        return evaluate_side_by_side(models, batches, device, advance)


def row(name: str, model: nn.Module, image_size: tuple[int, int, int], found: Figures) -> dict[str, Any]:
    return {
        "model": name,
        "top1": found.top1,
        "top5": found.top5,
        "agreement": found.agreement,
        "macs": cost(model, image_size).macs,
        "images_per_second": found.per_second,
    }


def shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value / 1e9:.3f}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
