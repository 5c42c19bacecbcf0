"""Datasets of torchvision by name. Nothing is downloaded unless requested."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchvision.datasets
from PIL import Image

from foveate.data.images import DataError, Sample, as_rgb
from foveate.data.labels import Request, check_same_classes
from foveate.data.source import ImageData, broken_by_name
from foveate.data.splits import check_undivided, choose_split

BY_FLAG = ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST", "USPS")
"""Sets whose constructor takes train=True or False."""
BY_NAME = {
    "Country211": ("train", "valid", "test"),
    "DTD": ("train", "val", "test"),
    "FGVCAircraft": ("train", "val", "trainval", "test"),
    "Flowers102": ("train", "val", "test"),
    "Food101": ("train", "test"),
    "GTSRB": ("train", "test"),
    "Imagenette": ("train", "val"),
    "OxfordIIITPet": ("trainval", "test"),
    "PCAM": ("train", "val", "test"),
    "RenderedSST2": ("train", "val", "test"),
    "STL10": ("train", "test"),
    "SVHN": ("train", "test"),
    "StanfordCars": ("train", "test"),
}
UNDIVIDED = ("EuroSAT", "SUN397")
WITHOUT_NAMES = {"GTSRB": 43, "PCAM": 2, "SVHN": 10, "USPS": 10}
"""Number of classes of sets without class names in torchvision."""
KNOWN = sorted((*BY_FLAG, *BY_NAME, *UNDIVIDED))


@dataclass(frozen=True)
class Named:
    """A torchvision dataset without transforms."""

    dataset: Any
    where: str

    def __len__(self) -> int:
        return len(self.dataset)

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def open(self, index: int) -> Image.Image:
        return self.dataset[index][0]


@dataclass(frozen=True)
class TorchvisionData(ImageData):
    """A torchvision dataset. Labels are read with images, because torchvision has no common way to list them."""

    pictures: Named

    @property
    def labeled(self) -> bool:
        return True

    def read(self, index: int) -> Sample:
        name = self.pictures.name(index)
        with broken_by_name(name):
            image, label = self.pictures.dataset[index]
            return Sample(as_rgb(image), int(label), name)


def open_torchvision(
    name: str, request: Request, root: str | Path | None = None, download: bool = False
) -> TorchvisionData:
    """Open the set called ``name`` in ``root``; classes are numbered as in torchvision."""
    where = f"torchvision:{name}"
    if name not in KNOWN:
        raise DataError(f"{where} is not a supported dataset. Supported: {', '.join(KNOWN)}.")
    if root is None:
        raise DataError(f"{where} needs root, the folder of the dataset (data.root for a run).")
    split, options = _split(name, request.split, where)
    dataset = _build(name, Path(root), download, options, where)
    classes = getattr(dataset, "classes", None)
    names = None if classes is None else tuple(c if isinstance(c, str) else ", ".join(c) for c in classes)
    count = WITHOUT_NAMES[name] if names is None else len(names)
    _check(names, count, request, where)
    return TorchvisionData(Named(dataset, f"{where}/{split}"), split, None, names, count)


def _split(name: str, asked: str, where: str) -> tuple[str, dict[str, Any]]:
    """The split's name in the dataset, and the constructor options for it."""
    if name in UNDIVIDED:
        check_undivided(asked, name, where)
        return asked, {}
    split = choose_split(asked, BY_NAME.get(name, ("train", "test")), where)
    return split, {"train": split == "train"} if name in BY_FLAG else {"split": split}


def _build(name: str, root: Path, download: bool, options: dict[str, Any], where: str) -> Any:
    if name == "Imagenette" and (root / "imagenette2").is_dir():
        download = False  # torchvision fails if the data already exists
    try:
        return getattr(torchvision.datasets, name)(root=str(root), download=download, **options)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{where} cannot be opened in {root}: {error} "
            "To download it, set download=True (data.download=true for a run)."
        ) from error


def _check(names: tuple[str, ...] | None, count: int, request: Request, where: str) -> None:
    if request.num_classes not in (None, count):
        raise DataError(f"{where} has {count} classes, but num_classes={request.num_classes}.")
    if request.classes is not None and names is None:
        raise DataError(f"{where} has no names for its {count} classes, but {len(request.classes)} names were given.")
    if request.classes is not None and names is not None:
        check_same_classes(names, request.classes, where)
        if names != request.classes:
            raise DataError(f"{where} has its classes in another order than the given one.")
