"""``fv.Predictor``: one picklable callable from a batch of images to predictions or embeddings.

A plain loop, ``map_batches`` of Ray Data, ``map(batched=True)`` of Hugging Face datasets and batch functions of Daft
call it as it is. It carries the name of a model, not its weights, and builds the model on the first batch, in the
process that runs it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from foveate.adapters import ImageSize, copy_unreduced, inspect
from foveate.data.folder import open_image_file
from foveate.data.images import BrokenImage, as_rgb
from foveate.data.source import broken_by_name
from foveate.deploy import load_exported
from foveate.deploy.manifest import is_export
from foveate.evaluation.timing import check_positive, checked_device
from foveate.methods.validation import check_sizes, check_type, shown
from foveate.models.requested import check_trained, load_requested
from foveate.reductions import Reduction
from foveate.scale.runnable import CLASSES, EMBEDDING, OUTPUTS, Runnable, of_export, of_module

NOT_FINITE = "the model's output is NaN or infinite"
BATCH_SIZE = 16
LONGEST_SIDE = 16_384
"""Pixels; a larger side is a slip, and would not fit the memory."""
"""Default number of images that run at once."""


@dataclass(frozen=True, kw_only=True)
class _Settings:
    reduction: Reduction | str | None = None
    """How the model is reduced: a ``Reduction``, or its text such as ``"tome --budget 0.5"``. None: as it is."""
    output: Literal["classes", "embedding"] = "classes"
    """``"classes"``: the most likely classes with their probabilities; ``"embedding"``: one vector for each image."""
    top_k: int = 5
    """Number of classes for each image."""
    dtype: Literal["float16", "float32"] = "float32"
    """Type of the embedding's numbers."""
    pretrained: bool = False
    """Load the library's pretrained weights, for a model by name."""
    weights: str | Path | None = None
    """A file of weights, for a model by name."""
    image_size: ImageSize | None = None
    """Channels (or None), height and width. Default: the model's own."""
    classes: Sequence[str] | None = None
    """Names of the model's classes; adds the column ``names``."""
    batch_size: int | None = None
    """Images that run at once. Larger batches are divided."""
    device: str = "cpu"
    threads: int | None = None
    """Threads of torch and of an exported model's runtime in the process. Default: unchanged."""
    column: str = "image"
    """The column that holds images."""
    untrained: bool = False
    """Accept weights that nobody trained, to measure speed."""


def _is_side(value: object) -> bool:
    return type(value) is int and 1 <= value <= LONGEST_SIDE


@dataclass(frozen=True)
class Predictor(_Settings):
    """Predict classes, or compute embeddings, for batches of images.

    ``predictor({"image": [...], "key": [...]})`` returns the batch without its images and with new columns:
    ``classes`` (B, k), ``probabilities`` (B, k) and, if classes have names, ``names`` (B, k), the most likely first;
    or ``embedding`` (B, D); and ``error``. An image that cannot be read is never dropped: its ``error`` is the reason,
    its classes are -1 and its numbers NaN. ``error`` is empty for all other images.

    An image may be encoded bytes, a path, a PIL image, an array (H, W, 3) of bytes, or a mapping with ``bytes`` or
    ``path`` as in Hugging Face datasets.

    Args:
        model: a name as for ``foveate predict`` (timm, ``hf:``, a folder of ``fv.save`` or ``fv.export``), or a model.
    """

    model: str | Path | nn.Module
    _built: list[Runnable] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_type(str | Path | nn.Module, "a model, its name or its folder", model=self.model)
        check_type(str, "text", output=self.output, dtype=self.dtype)
        if self.output not in OUTPUTS:
            raise ValueError(f"output must be one of {', '.join(OUTPUTS)}; got {shown(self.output)}.")
        if self.dtype not in ("float16", "float32"):
            raise ValueError(f"dtype must be float16 or float32, got {shown(self.dtype)}.")
        self._check_types()
        check_sizes(top_k=self.top_k)
        check_positive(batch_size=self.batch_size, threads=self.threads)
        given = self.reduction
        check_type(Reduction | str | None, "a Reduction or its text, such as 'tome --budget 0.5'", reduction=given)
        object.__setattr__(self, "reduction", Reduction.parse(given) if isinstance(given, str) else given)
        object.__setattr__(self, "classes", None if self.classes is None else tuple(self.classes))

    def _check_types(self) -> None:
        check_type(bool, "True or False", pretrained=self.pretrained, untrained=self.untrained)
        check_type(str | Path | None, "a path", weights=self.weights)
        check_type(str, "text", column=self.column)
        check_type(list | tuple | None, "a list of names", classes=self.classes)
        check_type(str, "names", **{f"classes[{place}]": name for place, name in enumerate(self.classes or ())})
        size = self.image_size
        check_type(tuple | list | None, "(channels or None, height, width)", image_size=size)
        if size is not None and not (len(size) == 3 and all(_is_side(side) for side in size[1:])):
            raise ValueError(
                f"image_size must be (channels or None, height, width) of at most {LONGEST_SIDE} pixels, "
                f"got {shown(size)}."
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_built": []}

    @property
    def runnable(self) -> Runnable:
        """The model, built on first use.

        Raises:
            ValueError: if the model cannot be built, was not trained, or does not give this output.
        """
        if not self._built:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            self._built.append(self._build())
        return self._built[0]

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with predictions instead of images.

        Raises:
            ValueError: if the batch has no column of images.
        """
        if not isinstance(batch, Mapping) or self.column not in batch:
            found = f"columns {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else shown(batch)
            raise ValueError(f"The batch must have the column {self.column!r}, got {found}. Set column=NAME.")
        rows = self.rows([self.prepare(value) for value in batch[self.column]])
        return {name: values for name, values in batch.items() if name != self.column} | rows

    def prepare(self, value: Any) -> Tensor | str:
        """An image as the model takes it, or the reason why it cannot be read."""
        if isinstance(value, BrokenImage):
            return value.reason
        prepare = self.runnable.prepare
        try:
            with broken_by_name(""):
                return prepare(as_rgb(_opened(value)))
        except BrokenImage as broken:
            return broken.reason

    def rows(self, prepared: Sequence[Tensor | str]) -> dict[str, Any]:
        """New columns for prepared images; broken ones have their reason."""
        good = [place for place, image in enumerate(prepared) if isinstance(image, Tensor)]
        found = np.full((len(prepared), self.runnable.width), np.nan, dtype=np.float32)
        size = self.batch_size or BATCH_SIZE
        for start in range(0, len(good), size):
            some = good[start : start + size]
            found[some] = self.runnable.run(torch.stack([prepared[place] for place in some])).numpy()  # type: ignore[misc]
        reasons = ["" if isinstance(image, Tensor) else image for image in prepared]
        for place in good:
            if not np.isfinite(found[place]).all():
                reasons[place], found[place] = NOT_FINITE, np.nan
        columns = self._embedding(found) if self.output == EMBEDDING else self._classes(found)
        return columns | {"error": np.array(reasons, dtype=object)}

    def _embedding(self, found: np.ndarray) -> dict[str, Any]:
        return {"embedding": found.astype(self.dtype)}

    def _classes(self, logits: np.ndarray) -> dict[str, Any]:
        k = min(self.top_k, logits.shape[1])
        best = torch.from_numpy(logits).softmax(dim=1).topk(k, dim=1)
        broken = np.isnan(logits).any(axis=1)
        classes = best.indices.numpy().astype(np.int32)
        classes[broken] = -1
        found = {"classes": classes, "probabilities": best.values.numpy()}
        if self.classes is None:
            return found
        names = np.array([*self.classes, ""], dtype=object)[classes]  # -1 is the last: no name
        return found | {"names": names}

    def _build(self) -> Runnable:
        if isinstance(self.model, nn.Module):
            model, size = self._own_model(self.model)
        elif is_export(Path(self.model)):
            self._check_export()
            found = load_exported(self.model, threads=self.threads)
            return self._checked(of_export(found, self.output, Path(self.model)))
        else:
            model, size = self._named_model(str(self.model))
        return self._checked(of_module(model, self.output, size, checked_device(self.device)))

    def _own_model(self, model: nn.Module) -> tuple[nn.Module, tuple[int, int, int]]:
        assert not isinstance(self.reduction, str)
        if self.weights is not None or self.pretrained:
            raise ValueError("weights and pretrained are for a model by name. Load them into the model first.")
        if self.reduction is not None:
            model = copy_unreduced(model)
            self.reduction.apply_(model)
        size = inspect(model).image_size
        return model, size if self.image_size is None else (size[0], *self.image_size[1:])

    def _named_model(self, name: str) -> tuple[nn.Module, tuple[int, int, int]]:
        reductions = [] if self.reduction is None else [self.reduction]
        loaded = load_requested(
            name,
            pretrained=self.pretrained,
            weights=self.weights,
            image_size=self.image_size,
            reductions=reductions,  # type: ignore[arg-type]
        )
        if self.output == EMBEDDING:  # the classifier is not used
            family = inspect(loaded.model)
            loaded = loaded._replace(untrained=tuple(n for n in loaded.untrained if not family.is_classifier(n)))
        if not self.untrained:
            speed_only = "--untrained (untrained=True)"
            check_trained(loaded, name, pretrained=self.pretrained, weights=self.weights, speed_only=speed_only)
        model = loaded.reduced(*reductions) if reductions else loaded.own or loaded.model  # type: ignore[arg-type]
        return model, loaded.image_size

    def _check_export(self) -> None:
        for name in ("reduction", "weights", "image_size"):
            if getattr(self, name) is not None:
                raise ValueError(f"{self.model} is an exported model and takes no {name}. Export it again with it.")

    def _checked(self, runnable: Runnable) -> Runnable:
        if self.output == CLASSES and self.classes is not None and len(self.classes) != runnable.width:
            raise ValueError(
                f"The model has {runnable.width} classes, and {len(self.classes)} names were given. Name all of them."
            )
        return runnable

    def check_picklable(self) -> None:
        """Raise a ValueError if the model cannot be sent to another process."""
        if not isinstance(self.model, nn.Module):
            return
        try:
            pickle.Pickler(_Nowhere()).dump(self)
        except Exception as error:  # any class may refuse it with an error of its own
            raise ValueError(
                f"This {type(self.model).__name__} cannot be sent to other processes, because it cannot be pickled: "
                f"{error}. Save it with fv.save(model, FOLDER) and pass the folder, or use one process."
            ) from error


class _Nowhere:
    """Takes what is written and forgets it."""

    def write(self, content: Any) -> int:
        return len(content)


def _opened(value: Any) -> Image.Image:
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, Mapping):
        content = value.get("bytes")
        value = value.get("path") if content is None else content
    if isinstance(value, bytes | bytearray | memoryview):
        return Image.open(io.BytesIO(value))
    if isinstance(value, str | Path):
        return open_image_file(Path(value))
    if isinstance(value, np.ndarray):
        return Image.fromarray(value)
    raise TypeError("there is no image" if value is None else f"a {type(value).__name__} is not an image")
