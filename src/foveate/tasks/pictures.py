"""The picture of what a model predicts: its task draws the prediction over each image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from foveate.data.preprocessing import Preprocessing, open_image
from foveate.drawing import picture
from foveate.drawing.inputs import evaluating, title
from foveate.drawing.sheets import Panel, tile
from foveate.tasks.base import Task, find_task, task_of

COLUMNS = 2


@picture("predictions")
def predictions(
    model: nn.Module, images: Sequence[Path], *, name: str = "model", task: Task | None = None
) -> Image.Image:
    """What the model predicts, drawn over each image: classes, masks, boxes or keypoints."""
    judge = task if task is not None else find_task(task_of(model)).for_model(model)
    panels = [predicted_panel(model, judge, path) for path in images]
    return tile(title(model, name), [panels], columns=COLUMNS)


def predicted_panel(model: nn.Module, task: Task, path: Path) -> Panel:
    """One image with its prediction."""
    image = open_image(path)
    with evaluating(model), torch.no_grad():
        batch: Any = task.model_input(image, Preprocessing.of(model)).unsqueeze(0).to(next(model.parameters()))
        prediction = task.predict(model, batch)
    return Panel(task.draw(image, prediction[0]), path.name)
