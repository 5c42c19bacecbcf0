"""A folder of images: `<folder>/<split>/<class>/*.jpg`, or unlabeled images."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from foveate.data.images import DataError, decode, is_image
from foveate.data.labels import Request, declared_labels, first_few
from foveate.data.limits import IMAGE_BYTES
from foveate.data.source import ImageData, image_data
from foveate.data.splits import ALL, check_undivided, choose_split, split_word

IMAGE_FOLDERS = {"images", "image", "imgs", "img", "jpegimages", "photos", "pictures", "frames"}
PARTS_OF_DATA = IMAGE_FOLDERS | {
    *("labels", "label", "labelstxt", "annotations", "annotation", "annots", "masks", "mask", "gt", "groundtruth"),
    *("ground_truth", "targets", "boxes", "bboxes", "meta", "metadata", "segmentations", "segmentationclass"),
}
"""Names of folders that hold the parts of a dataset, side by side."""
KERNEL_VIEWS = ("/proc", "/sys")
"""Trees of files that no disk holds."""


@dataclass(frozen=True)
class Files:
    """Image files below a folder."""

    folder: Path
    names: list[str]
    """Paths relative to the folder, which keeps millions of them small."""

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return str(self.folder / self.names[index])

    def open(self, index: int) -> Image.Image:
        return open_image_file(self.folder / self.names[index])


def open_image_file(path: Path) -> Image.Image:
    """An image whose file is read whole, so that none stays open.

    Raises:
        ValueError: if it is too large, or a pipe or a device, whose reading might never end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(IMAGE_BYTES.value + 1)
    IMAGE_BYTES.check(len(content), f"It has {path.stat().st_size} bytes")
    return decode(content)


def open_folder(folder: Path, request: Request) -> ImageData:
    """Open a folder. Folders below a split's folder are classes; a split's folder with only images is unlabeled.

    Without labels, folders mean nothing: all images below count.
    """
    if request.split == ALL and not request.labels:
        return image_data(Files(folder, images_below(folder, ".")), ALL, None, str(folder))
    split, place = _split_folder(folder, request)
    if not request.labels:
        return image_data(Files(place, images_below(place, ".")), split, None, str(place))
    classes = subfolders(place)
    loose = [entry.name for entry in os.scandir(place) if entry.is_file() and is_image(entry.name)]
    if not classes:
        if request.classes is not None:
            raise DataError(f"{place} has no class folders, but {len(request.classes)} classes were expected.")
        return image_data(Files(place, sorted(loose)), split, None, str(place))
    if loose:
        raise DataError(
            f"{place} has class folders and also {len(loose)} images: {first_few(sorted(loose))}. Move the images."
        )
    _check_are_classes(classes, request, place)
    images = {name: images_below(place, name) for name in classes}
    empty = [name for name, found in images.items() if not found]
    if empty and not request.allow_empty_classes:
        raise DataError(f"{place} has class folders without images: {first_few(empty)}. Fill or remove them.")
    values = [number for number, name in enumerate(classes) for _ in images[name]]
    names = [name for found in images.values() for name in found]
    return image_data(Files(place, names), split, declared_labels(values, classes, request, str(place)), str(place))


def _check_are_classes(names: list[str], request: Request, place: Path) -> None:
    """Raise ``DataError`` for folders such as ``images`` and ``labels``, unless the user named them as classes."""
    if not all(name.lower() in PARTS_OF_DATA for name in names) or set(names) <= set(request.classes or ()):
        return
    images = next((name for name in names if name.lower() in IMAGE_FOLDERS), names[0])
    raise DataError(
        f"{place} has the {'folders' if len(names) > 1 else 'folder'} {first_few(names)}, which look like parts of a "
        f"dataset, not like classes. {_with_table(place)}For its images without labels, use {place / images}; for "
        "masks, --task segmentation; for boxes, a COCO folder. If they are classes, name them with --classes FILE "
        "(data.classes=FILE for a run)."
    )


def _with_table(place: Path) -> str:
    """The way to labels in a CSV beside the images; empty if there is none."""
    tables = sorted(
        entry.name for entry in os.scandir(place) if entry.is_file() and entry.name.lower().endswith(".csv")
    )
    if not tables:
        return ""
    best = next((name for name in tables if "label" in name.lower()), tables[0])
    return f"For the labels in {best}, use --data {place / best} (its columns: file, label and, if you like, split). "


def _split_folder(folder: Path, request: Request) -> tuple[str, Path]:
    """The name and folder of the split. A folder without split folders is a single split."""
    splits = [name for name in subfolders(folder) if split_word(name)]
    if not splits and request.split not in subfolders(folder):
        check_undivided(request.split, folder.resolve().name, str(folder))
        return request.split, folder
    split = choose_split(request.split, splits or [request.split], str(folder))
    place = folder / split
    while subfolders(place) == [place.name] and not any(is_image(entry.name) for entry in os.scandir(place)):
        place = place / place.name  # archives with a repeated folder: seg_train/seg_train/forest
    return split, place


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in ``folder``, sorted; hidden ones are skipped."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def images_below(folder: Path, name: str) -> list[str]:
    """Images of one class at any depth, sorted, so that the order does not depend on the file system."""
    found = []
    seen: set[tuple[int, int]] = set()
    kernel = {os.stat(view).st_dev for view in KERNEL_VIEWS if os.path.ismount(view)}
    for place, folders, files in os.walk(folder / name, followlinks=True):
        status = os.stat(place)
        # a link back to a folder that was walked already, or what the kernel shows: its links lead everywhere
        if (status.st_dev, status.st_ino) in seen or status.st_dev in kernel:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(below for below in folders if not below.startswith("."))
        relative = Path(place).relative_to(folder)
        found += [(relative / file).as_posix() for file in files if is_image(file)]
    return sorted(found)
