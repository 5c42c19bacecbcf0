"""Hugging Face datasets: a folder written by `save_to_disk`, a folder of files, or a name on the Hub."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from foveate.data.folder import open_image_file
from foveate.data.images import DataError, decode
from foveate.data.labels import Labels, Request, declared_labels, label_text, written_labels
from foveate.data.limits import check_inside
from foveate.data.source import ImageData, image_data
from foveate.data.splits import check_undivided, choose_split


@dataclass(frozen=True)
class Rows:
    """Images of one column as stored bytes. foveate decodes them, so that it can name broken ones."""

    table: Any
    column: str
    where: str
    folders: tuple[Path, ...]
    """Where files that rows name may be."""

    def __len__(self) -> int:
        return len(self.table)

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def open(self, index: int) -> Image.Image:
        stored = self.table[index][self.column]
        content = stored["bytes"]
        if content is None:
            check_inside(self.folders, [os.path.abspath(stored["path"])], self.name(index))
            return open_image_file(Path(stored["path"]))
        return decode(content)


def open_hugging_face(name: str, request: Request, label_column: str | None = None) -> ImageData:
    """Open a dataset. Columns are found by their types; ``label_column`` chooses one of several label columns."""
    datasets = library()
    where = f"hf:{name}"
    split, table = load_split(datasets, name, request.split, where)
    image_column = _image_column(datasets, table.features, where)
    label = (label_column or _label_column(datasets, table.features, where)) if request.labels else None
    if label is not None and label not in table.features:
        raise DataError(f"{where} has no column {label!r}; it has {', '.join(table.features)}.")
    labels = None if label is None else _labels(datasets, table, label, request, where)
    if labels is None and request.classes is not None:
        raise DataError(f"{where}, {split} has no labels, but {len(request.classes)} classes were expected.")
    return image_data(image_rows(datasets, table, image_column, name, split), split, labels, where)


def image_rows(datasets: Any, table: Any, column: str, name: str, split: str) -> Rows:
    """One column of images of the dataset ``name``."""
    images = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    folders = (Path(name), Path(datasets.config.HF_CACHE_HOME), Path(datasets.config.HF_DATASETS_CACHE))
    return Rows(images, column, f"hf:{name}/{split}", folders)


def library() -> Any:
    """The package datasets."""
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise DataError("hf: data needs the package 'datasets': pip install foveate[data]") from error


def load_split(datasets: Any, name: str, split: str, where: str) -> tuple[str, Any]:
    """The name and table of the split. Only this split is downloaded."""
    folder = Path(name)
    try:
        if any((folder / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(name)
            if not isinstance(loaded, datasets.DatasetDict):
                check_undivided(split, folder.resolve().name, where)
                return split, loaded
            chosen = choose_split(split, loaded, where)
            return chosen, loaded[chosen]
        chosen = choose_split(split, datasets.get_dataset_split_names(name), where)
        return chosen, datasets.load_dataset(name, split=chosen)
    except DataError:
        raise
    except Exception as error:  # of any kind where files of the library are damaged
        reason = error if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{where} cannot be loaded from a folder or the Hub: {reason}") from error


def _image_column(datasets: Any, features: Any, where: str) -> str:
    found = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    if len(found) > 1 and "image" in found:
        return "image"
    if len(found) != 1:
        what = f"several image columns ({', '.join(found)}), none called 'image'" if found else "no image column"
        raise DataError(f"{where} has {what}; its columns are {', '.join(features)}.")
    return found[0]


def _label_column(datasets: Any, features: Any, where: str) -> str | None:
    """The column of classes, else a column called `label`; None if there is neither."""
    found = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if len(found) > 1 and "label" not in found:
        raise DataError(f"{where} has several label columns: {', '.join(found)}. Choose one with label_column.")
    if len(found) == 1:
        return found[0]
    return "label" if "label" in features else None


def _labels(datasets: Any, table: Any, column: str, request: Request, where: str) -> Labels | None:
    """The labels; None if all are -1, as in published test splits without labels."""
    written = table.with_format(None)[column][:]
    feature = table.features[column]
    if written and all(value == -1 for value in written):
        return None
    if any(value is None for value in written):
        raise DataError(f"{where}, row {written.index(None)}: the column {column!r} is empty.")
    if isinstance(feature, datasets.ClassLabel):
        return declared_labels(np.array(written, dtype=np.int64), feature.names, request, where)
    texts = [label_text(value, f"{where}, row {row}") for row, value in enumerate(written)]
    return written_labels(texts, texts, request, where, lambda i: f"{where}, row {i}")
