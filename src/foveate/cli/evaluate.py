"""The work of ``foveate eval``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from torch import nn

from foveate.api import cost
from foveate.cli import output
from foveate.cli.requests import Loaded, class_file, load_from, read_reductions, require_trained, source_options
from foveate.data import DataError, ImageData, Loader
from foveate.data.labels import CLASSES_FILE, read_class_names
from foveate.data.preprocessing import Preprocessing
from foveate.data.source import drawn_from
from foveate.evaluation.columns import BY_NAME
from foveate.evaluation.side_by_side import Evaluation, evaluate, first_images
from foveate.evaluation.timing import checked_device
from foveate.tasks import Task, find_task

DEFAULT_SPLIT = "val"


def run(args: argparse.Namespace) -> int:
    checked_device(args.device)
    reductions = read_reductions(args)  # before a model is loaded
    loaded = load_from(args, reductions)
    require_trained(loaded, args)
    models = {"unreduced": loaded.model}
    models |= {str(reduction): model for reduction, model in loaded.variants(reductions)}
    task, loader = open_loader(args, loaded)
    found = evaluate_with_bar(models, loader, task, args)
    rows = [row(name, models[name], loaded.image_size, task, found) for name in models]
    if args.json:
        head = {"model": args.model, "data": args.data, "split": args.split or DEFAULT_SPLIT}
        output.print_json({**head, "images": found.images, "broken": loader.broken, "rows": rows})
        return 0
    broken = f", {loader.broken} broken" if loader.broken else ""
    title = f"{args.model} on {args.data}, {args.split or DEFAULT_SPLIT}: {found.images} images{broken}"
    columns = [BY_NAME[name] for name in rows[0] if name != "model"]
    cells = [[line["model"], *(column.terminal_text(line[column.name]) for column in columns)] for line in rows]
    output.print_table(title, ["model", *(column.terminal_head for column in columns)], cells, text_columns=("model",))
    return 0


def open_loader(args: argparse.Namespace, loaded: Loaded) -> tuple[Task, Loader]:
    """Open the task and its images, and check that targets match the model's predictions."""
    task = find_task(args.task).for_model(loaded.model)
    opened = task.open_matching(args.data, args.split or DEFAULT_SPLIT, class_names(args), **source_options(args))
    if opened.mismatch:
        raise DataError(opened.mismatch)
    _, height, width = loaded.image_size
    preprocessing = dataclasses.replace(Preprocessing.of(loaded.model), height=height, width=width)
    transform = opened.task.evaluation_transform(preprocessing)
    loader = Loader(
        drawn_from(opened.data, args.limit, args.seed) if isinstance(opened.data, ImageData) else opened.data,
        transform,
        args.batch_size,
        seed=args.seed,
        train=False,
        workers=args.workers,
        max_broken=args.max_broken,
        rules=opened.task,
    )
    return opened.task, loader


def class_names(args: argparse.Namespace) -> list[str] | None:
    """The model's class names, from --classes or from the folder of a trained model."""
    path = class_file(args, CLASSES_FILE)
    return None if path is None else read_class_names(path)


def evaluate_with_bar(models: dict[str, nn.Module], loader: Loader, task: Task, args: argparse.Namespace) -> Evaluation:
    """Evaluate with progress on stderr."""
    device = checked_device(args.device)
    for model in models.values():
        model.to(device).eval()
    total = len(loader.data) if isinstance(loader.data, ImageData) else None  # unknown for streams
    with output.phases() as progress:
        found = evaluate(
            models,
            first_images(loader.epoch(0), args.limit),
            task,
            device,
            compare=True,
            after_batch=lambda so_far: progress("images", so_far.images, total),
        )
    if not found.images:
        raise ValueError("There are no images to evaluate.")
    return found


def row(name: str, model: nn.Module, image_size: tuple[int, int, int], task: Task, found: Evaluation) -> dict[str, Any]:
    """One line of the table, by column name."""
    metrics = found.metrics[name].compute()
    return {
        "model": name,
        **{figure: metrics.get(figure) for figure in task.figures},
        "macs": cost(model, image_size).macs,
        "images_per_second": found.per_second(name),
    }
