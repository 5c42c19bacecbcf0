"""A model that is ready to run: from one prepared image to one row of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.data.preprocessing import Preprocessing
from foveate.deploy import ExportedModel
from foveate.evaluation.memory import peak_memory
from foveate.tasks import task_of

CLASSES, EMBEDDING = "classes", "embedding"
OUTPUTS = (CLASSES, EMBEDDING)


@dataclass(frozen=True)
class Runnable:
    """How images are prepared and run."""

    prepare: Callable[[Image.Image], Tensor]
    run: Callable[[Tensor], Tensor]
    """From a batch of prepared images to (B, width) numbers: logits, or embeddings."""
    example: Tensor
    """A batch of one black image."""
    width: int
    peak: Callable[[Tensor], float | None]
    """Peak memory of one batch in MiB; None if it is unknown."""


def of_module(model: nn.Module, output: str, image_size: tuple[int, int, int], device: torch.device) -> Runnable:
    """The runnable of a PyTorch model.

    Raises:
        ValueError: if the model does not give this output.
    """
    _check_output(model, output)
    model = model.to(device).eval()
    preprocessing = replace(Preprocessing.of(model), height=image_size[1], width=image_size[2])
    work = _logits if output == CLASSES else _embeddings

    @torch.inference_mode()
    def run(images: Tensor) -> Tensor:
        return work(model, images.to(device)).float().cpu()

    prepare: Callable[[Image.Image], Tensor] = preprocessing.evaluation()
    example = prepare(Image.new("RGB", (64, 64))).unsqueeze(0)
    return Runnable(prepare, run, example, _width(run(example)), lambda images: peak_memory(model, images.to(device)))


def of_export(model: ExportedModel, output: str, folder: Path) -> Runnable:
    """The runnable of a model that ``fv.export`` wrote.

    Raises:
        ValueError: if the model does not give this output.
    """
    classes = model.manifest.num_classes
    if output == CLASSES and classes is None:
        raise ValueError(f"{folder} was exported without a classifier, so it predicts no classes. Use embed.")
    if output == EMBEDDING and classes is not None:
        raise ValueError(
            f"{folder} was exported with its classifier, whose input it does not give. Export the model without one, "
            "such as timm's num_classes=0."
        )
    if model.manifest.input["layout"] == "NHWC":
        prepare, shape = _same_size(model.image_size), model.image_size
    else:
        prepare, shape = Preprocessing(**model.manifest.preprocessing).evaluation(), model.image_size

    def run(images: Tensor) -> Tensor:
        found = model(images)
        return found.float() if isinstance(found, Tensor) else next(iter(found.values())).float()

    example = torch.zeros(1, *shape, dtype=model.dtype)
    return Runnable(prepare, run, example, _width(run(example)), lambda images: None)


def _check_output(model: nn.Module, output: str) -> None:
    task = task_of(model)
    if task not in ("classification", "embedding"):
        raise ValueError(f"{type(model).__name__} is for {task}; predict and embed give one row for each image.")
    if output == CLASSES and task == "embedding":
        raise ValueError(f"{type(model).__name__} has no classifier, so it predicts no classes. Use embed.")


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    output = model(images)
    return output if isinstance(output, Tensor) else inspect(model).logits(output)


def _embeddings(model: nn.Module, images: Tensor) -> Tensor:
    """What the model gives without a classifier; of a model with one, what the classifier reads."""
    family = inspect(model)
    if family.num_classes is None:
        return family.image_embedding(images)
    read: list[Tensor] = []
    hook = family.classifiers()[0].register_forward_pre_hook(lambda layer, inputs: read.append(inputs[0]))
    try:
        model(images)
    finally:
        hook.remove()
    if len(read) != 1 or read[0].dim() != 2:
        raise ValueError(f"The classifier of {type(model).__name__} does not read one vector for each image.")
    return read[0]


def _width(rows: Tensor) -> int:
    if rows.dim() != 2:
        raise ValueError(f"The model gives {tuple(rows.shape[1:])} numbers for an image; one row is needed.")
    return rows.shape[1]


def _same_size(size: tuple[int, ...]) -> Callable[[Image.Image], Tensor]:
    """Bytes (height, width, 3) of an image that has the size of the graph's input already."""
    height, width = size[:2]

    def prepare(image: Image.Image) -> Tensor:
        if image.size != (width, height):
            raise ValueError(
                f"it has {image.height} x {image.width} pixels; the exported model takes {height} x {width}"
            )
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, 3)

    return prepare
