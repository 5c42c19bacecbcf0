"""What a run is about to do, in a few lines before the first step, and the inputs it writes down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.adapters import inspect
from foveate.data import ImageData, StreamedData
from foveate.files import write_text
from foveate.models.by_name import comes_trained
from foveate.training.config import TrainConfig

if TYPE_CHECKING:
    from foveate.training.loop import Run

HELD_OUT_FILE = "held_out.txt"
"""File of a run with the names of the images that ``data.val_share`` held out, one a line."""


def announcement(run: Run) -> list[str]:
    """Return the lines that tell what ``run`` trains, on what, and for how long."""
    return [_model_line(run), _data_line(run), _start_line(run), _steps_line(run)]


def _model_line(run: Run) -> str:
    parameters = list(run.objective.model.parameters())
    total, trained = (sum(p.numel() for p in some) for some in (parameters, [p for p in parameters if p.requires_grad]))
    frozen = "" if trained == total else f", {_millions(trained)} of them trained"
    reduction = inspect(run.objective.model).reduction
    reduced = "not reduced" if reduction.is_identity else f"reduced by {reduction}"
    return f"Model: {run.config.model.name}, {_millions(total)} parameters{frozen}; {reduced}."


def _data_line(run: Run) -> str:
    val = run.val_loader
    judged = "no evaluation" if val is None else f"{_count(val.data)} to evaluate on"
    drawn = f" (held out: data.val_share={run.config.data.val_share:g})" if run.held_out else ""
    classes = f"; {run.task.num_classes} classes" if run.task.num_classes is not None else ""
    return f"Data: {run.config.data.source}, {_count(run.train_loader.data)} to train on, {judged}{drawn}{classes}."


def _start_line(run: Run) -> str:
    section = run.config.model
    pretrained = section.pretrained and not section.weights
    if not comes_trained(section.name, pretrained, section.weights):
        return "New: all weights. Nothing is pretrained; --pretrained or --weights would start from trained ones."
    if run.new_classifier:
        return "New: the classifier, for the classes of these data. Everything else starts from trained weights."
    return "New: nothing. Every weight starts from trained ones."


def _steps_line(run: Run) -> str:
    epoch, batch = len(run.train_loader), run.config.data.batch_size
    left = run.steps - run.state.step
    done = f", {left} of them left" if run.state.step else ""
    return f"Steps: {run.steps}{done}, of {batch} images each; {epoch} make an epoch. The first ones are timed."


def _count(data: ImageData | StreamedData) -> str:
    return f"{len(data)} images" if isinstance(data, ImageData) else "streamed images"


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e5 else str(number)


def write_inputs(directory: Path, config: TrainConfig, held_out: list[str]) -> None:
    """Write the configuration and, if some were held out, the names of the validation images."""
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "config.json", json.dumps(config.as_dict(), indent=2) + "\n")
    if held_out:
        write_text(directory / HELD_OUT_FILE, "".join(f"{name}\n" for name in held_out))


def in_words(seconds: float) -> str:
    """Return a duration: ``40 s``, ``12 min``, ``1 h 20 min``, ``2 days 3 h``."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"
