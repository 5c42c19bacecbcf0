"""Embedding: one vector for each image, of a model without a classifier. Only comparisons measure it.

Without labels, a model's vectors are judged by what they are used for: their direction, which images are neighbors, and
which of some texts is nearest to an image, if the model embeds texts too.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from foveate.adapters import inspect
from foveate.data import ImageData, Sample, StreamedData
from foveate.data.preprocessing import Preprocessing
from foveate.data.targets import UNKNOWN, transform_image
from foveate.tasks.augmentation import Augmentation, training_transform
from foveate.tasks.base import Metrics, Opened, Task, check_finite, register

NEIGHBORS = 10


@dataclass
class EmbeddingMetrics(Metrics):
    """The directions of all vectors so far, and of the reference's; neighbors can only be judged among all images."""

    k: int = NEIGHBORS
    texts: Tensor | None = None  # (T, D) directions of the prompts
    images: int = 0
    own: tuple[Tensor, ...] = ()  # (B, D) half precision, one for each batch
    reference: tuple[Tensor, ...] = ()
    cosine: float = 0.0
    """Sum of the cosines to the reference."""

    def update(self, prediction: Tensor, targets: Any, reference: Tensor | None = None) -> None:
        self.images += len(prediction)
        if reference is not None:
            self.cosine += float(cosine_similarity(prediction.double(), reference.double()).sum())
            self.own = (*self.own, _direction(prediction))
            self.reference = (*self.reference, _direction(reference))

    def merge(self, other: EmbeddingMetrics) -> None:
        self.images += other.images
        self.cosine += other.cosine
        self.own, self.reference = self.own + other.own, self.reference + other.reference

    def compute(self) -> dict[str, float]:
        if not self.own:
            return {}
        own, reference = (torch.cat(rows).float() for rows in (self.own, self.reference))
        found = {"cosine": self.cosine / len(own)}
        if len(own) > 1:
            found["recall"] = 100 * recall(own, reference, self.k)
            found["agreement"] = 100 * recall(own, reference, 1)
        if self.texts is not None:
            same = (own @ self.texts.T).argmax(dim=1) == (reference @ self.texts.T).argmax(dim=1)
            found["agreement"] = 100 * float(same.float().mean())
        return found

    def state(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "images": self.images,
            "cosine": self.cosine,
            "texts": _written([] if self.texts is None else [self.texts]),
            "own": _written(self.own),
            "reference": _written(self.reference),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> EmbeddingMetrics:
        texts, own, reference = (_read(state[name]) for name in ("texts", "own", "reference"))
        counts = (state["k"], state["images"])
        if not all(isinstance(count, int) and count >= 0 for count in counts) or len(own) != len(reference):
            raise ValueError("The stored embeddings are damaged: their counts do not fit.")
        return cls(*counts[:1], texts[0].float() if texts else None, counts[1], own, reference, float(state["cosine"]))


def recall(own: Tensor, reference: Tensor, k: int) -> float:
    """Mean share of the k nearest images by ``reference`` (N, D) that are among the k nearest by ``own``."""
    k = min(k, len(own) - 1)
    ours, theirs = (_neighbors(rows, k) for rows in (own, reference))
    return float((ours.unsqueeze(2) == theirs.unsqueeze(1)).any(dim=1).float().mean())


def _neighbors(rows: Tensor, k: int) -> Tensor:
    """(N, k) the nearest other images of each."""
    likeness = rows @ rows.T
    return likeness.fill_diagonal_(-torch.inf).topk(k, dim=1).indices


def _direction(rows: Tensor) -> Tensor:
    return normalize(rows.float(), dim=1).half().cpu()


def _written(parts: Sequence[Tensor]) -> list[Any]:
    return [[list(part.shape), base64.b64encode(part.half().numpy().tobytes()).decode()] for part in parts]


def _read(parts: Sequence[Any]) -> tuple[Tensor, ...]:
    found = []
    for shape, text in parts:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.float16)
        found.append(torch.from_numpy(values.reshape(shape).copy()))
    return tuple(found)


@register("embedding")
@dataclass(frozen=True)
class Embedding(Task):
    """There are no targets."""

    k: int = NEIGHBORS
    """Neighbors that ``recall`` looks at."""
    texts: Tensor | None = None
    """(T, D) directions of the prompts, for models of images and texts."""

    monitor = "cosine"
    figures = ("cosine", "recall", "agreement")
    comparisons = ("cosine", "recall", "agreement")

    @property
    def agreement_of(self) -> str:
        return "nearest images" if self.texts is None else "zero-shot decisions"

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        return {"k": int, "prompts": tuple[str, ...]}

    @classmethod
    def for_data(cls, data: ImageData | StreamedData, **options: Any) -> Embedding:
        raise ValueError("An embedding is not trained on targets. Train a classifier: foveate train linear-probe.")

    @classmethod
    def for_model(cls, model: nn.Module, **options: Any) -> Embedding:
        k, prompts = options.get("k", NEIGHBORS), options.get("prompts")
        if k < 1:
            raise ValueError(f"k is a number of neighbors and must be at least 1, got {k}.")
        if prompts is None:
            return cls(k)
        if len(prompts) < 2:
            raise ValueError(f"Zero-shot decisions need at least two prompts, got {len(prompts)}.")
        return cls(k, normalize(inspect(model).text_embedding(prompts).float(), dim=1).cpu())

    def open_matching(
        self, source: str, split: str | None = None, names: Sequence[str] | None = None, **options: Any
    ) -> Opened:
        options.pop("own", None)  # none of the task's options is about reading images
        return super().open_matching(source, split, names, **options)

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        return transform_image(transform, sample), UNKNOWN

    def collate(self, targets: Sequence[Any]) -> Tensor:
        return torch.full((len(targets),), UNKNOWN)

    def training_transform(self, preprocessing: Preprocessing, options: Augmentation) -> Any:
        return training_transform(preprocessing, options)

    def unknown_like(self, targets: Any) -> Any:
        return targets

    def read_targets(self, given: Any, count: int) -> Tensor:
        return torch.full((count,), UNKNOWN)

    def any_known(self, targets: Any) -> bool:
        return False

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        return inspect(model).image_embedding(images).float()

    def check_prediction(self, prediction: Tensor, reference: Tensor, name: str) -> None:
        check_finite(prediction, name)
        if prediction.shape != reference.shape:
            raise ValueError(f"{name} embeds into {prediction.shape[1]} numbers, the unreduced {reference.shape[1]}.")

    def loss(self, prediction: Tensor, targets: Any) -> Tensor:
        raise ValueError("embedding has no loss.")

    def imitation_loss(self, prediction: Tensor, teacher: Tensor) -> Tensor:
        """One minus the cosine, averaged over images."""
        return 1 - cast(Tensor, cosine_similarity(prediction.float(), teacher.float())).mean()

    def metrics(self) -> EmbeddingMetrics:
        return EmbeddingMetrics(self.k, self.texts)

    def with_classes(self, names: Sequence[str]) -> Embedding:
        return self
