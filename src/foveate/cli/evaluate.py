"""The work of ``foveate eval``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
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
from foveate.models.dense.by_name import split_name
from foveate.models.dense.head import find_head
from foveate.report.compare.run import UNTRAINED
from foveate.tasks import Task, find_task, read_options, task_of
from foveate.tasks.base import Opened
from foveate.tasks.options import parse_options, read_task

DEFAULT_SPLIT = "val"


def run(args: argparse.Namespace) -> int:
    checked_device(args.device)
    reductions = read_reductions(args)  # before a model is loaded, as are the data
    check_data(args)
    loaded = load_from(args, reductions)
    require_trained(loaded, args)
    models = {"unreduced": loaded.model}
    models |= {str(reduction): model for reduction, model in loaded.variants(reductions)}
    task, loader = open_loader(args, loaded)
    found = evaluate_with_bar(models, loader, task, args)
    judged = () if loaded.untrained else task.figures
    rows = [row(name, models[name], loaded.image_size, judged, found) for name in models]
    if args.json:
        head = {"model": args.model, "data": args.data, "split": args.split or DEFAULT_SPLIT}
        output.print_json({**head, "images": found.images, "broken": loader.broken, "rows": rows})
        return 0
    broken = f", {loader.broken} broken" if loader.broken else ""
    title = f"{args.model} on {args.data}, {args.split or DEFAULT_SPLIT}: {found.images} images{broken}"
    columns = [BY_NAME[name] for name in rows[0] if name != "model"]
    cells = [[line["model"], *(column.terminal_text(line[column.name]) for column in columns)] for line in rows]
    output.print_table(title, ["model", *(column.terminal_head for column in columns)], cells, text_columns=("model",))
    if loaded.untrained:
        output.say(UNTRAINED)
    return 0


def open_loader(args: argparse.Namespace, loaded: Loaded) -> tuple[Task, Loader]:
    """Open the task and its images, and check that targets match the model's predictions."""
    kind, own = requested_task(args, loaded.model)
    opened = open_matching(args, kind.for_model(loaded.model, **own), own)
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


def requested_task(args: argparse.Namespace, model: nn.Module) -> tuple[type[Task], dict[str, Any]]:
    """The task of --task, of the folder of a trained model, or of the model's head; and its options."""
    name, options = named_task(args)
    found = name or task_of(model)
    # an embedding has no targets to evaluate; classification says what is missing
    kind = find_task("classification" if name is None and found == "embedding" else found)
    return kind, read_options(kind, options)


def named_task(args: argparse.Namespace) -> tuple[str | None, dict[str, Any]]:
    """The name of the task before the model is loaded, and its options; None if only the model can tell."""
    stored, kept = read_task(Path(args.model))
    otherwise = None if Path(args.model).is_dir() else "classification"
    name = args.task or task_by_name(args.model) or otherwise
    return name, (kept if name == stored else {}) | parse_options(args.task_options)


def task_by_name(model: str) -> str | None:
    """The task that a folder of a trained model or the name of a head tells; None if they tell nothing."""
    stored, head = read_task(Path(model))[0], split_name(model)[1]
    return stored or (find_head(head).task if head else None)


def known_task(args: argparse.Namespace) -> str | None:
    """The name of the task if it is sure before the model is loaded: a plain name may be of a model without classes."""
    sure = args.task or read_task(Path(args.model))[0] or split_name(args.model)[1]
    return named_task(args)[0] if sure else None


def check_data(args: argparse.Namespace) -> None:
    """Open the requested images before a model is loaded, if its name tells which task it is for."""
    name, options = named_task(args)
    if name is not None:
        kind = find_task(name)
        open_matching(args, kind(), read_options(kind, options))


def open_matching(args: argparse.Namespace, task: Task, own: dict[str, Any]) -> Opened:
    """Open the requested images."""
    given = source_options(args) | ({"own": own} if own else {})
    return task.open_matching(args.data, args.split or DEFAULT_SPLIT, class_names(args), **given)


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


def row(
    name: str, model: nn.Module, image_size: tuple[int, int, int], figures: Sequence[str], found: Evaluation
) -> dict[str, Any]:
    """One line of the table, by column name."""
    metrics = found.metrics[name].compute()
    return {
        "model": name,
        **{figure: metrics.get(figure) for figure in figures},
        "macs": cost(model, image_size).macs,
        "images_per_second": found.per_second(name),
    }
