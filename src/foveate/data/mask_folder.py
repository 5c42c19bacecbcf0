"""Folders of images and masks: with splits above or below, ADE20K's layout, and masks of any name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from foveate.data.folder import Files, images_below, open_image_file, subfolders
from foveate.data.images import DataError, is_image
from foveate.data.labels import Request, first_few
from foveate.data.masks import MaskData, MaskRules, checked_masks, class_names_near
from foveate.data.splits import check_undivided, choose_split, split_word

IMAGES = ("images", "image", "imgs", "img", "JPEGImages")
MASKS = ("labels", "masks", "annotations", "label", "mask", "annotation", "SegmentationClass")
MOST_WITHOUT = 0.5
"""Share of images without a mask above which the folder is not one of images and masks."""


@dataclass(frozen=True)
class MaskFiles:
    """Mask files below a folder; None where an image has none."""

    folder: Path
    names: list[str | None]
    expected: list[str]
    """Names without extension, for messages."""

    def name(self, index: int) -> str:
        return str(self.folder / (self.names[index] or f"{self.expected[index]}.png"))

    def open(self, index: int) -> Image.Image | None:
        name = self.names[index]
        return None if name is None else open_image_file(self.folder / name)


def open_mask_folder(root: Path, request: Request, rules: MaskRules) -> MaskData:
    """Open ``root/SPLIT/images`` with ``root/SPLIT/masks``, or ``root/images/SPLIT`` with ``root/masks/SPLIT``.

    Without splits it is ``root/images`` with ``root/masks``. Images and masks have the same names, apart from
    extensions and ``rules.mask_suffix``. A folder of images alone has no masks.

    Raises:
        DataError: if there are no images, or most have no mask.
    """
    split, images, masks = _find(root, request, rules)
    names = images_below(images.parent, images.name)
    names = [name.removeprefix(f"{images.name}/") for name in names]
    if not names:
        raise DataError(f"{images} has no images.")
    files = Files(images, names)
    if masks is None:
        return MaskData(files, split, None, request.classes, request.num_classes, None, rules)
    found = _paired(images, names, masks, rules.mask_suffix)
    data = MaskData(files, split, None, None, request.num_classes, found, rules)
    return checked_masks(data, request, class_names_near([root, images.parent, images.parent.parent]), str(root))


def _find(root: Path, request: Request, rules: MaskRules) -> tuple[str, Path, Path | None]:
    """The split's name, the folder of its images, and that of its masks."""
    above = [name for name in subfolders(root) if split_word(name) or name == request.split]
    if above:
        split = choose_split(request.split, above, str(root))
        return split, *_pair_of_folders(root / split, rules)
    images, masks = _pair_of_folders(root, rules)
    below = [name for name in subfolders(images) if split_word(name) or name == request.split]
    if below and images != root:
        split = choose_split(request.split, below, str(images))
        return split, images / split, None if masks is None else _same_split(masks, split)
    check_undivided(request.split, root.resolve().name, str(root))
    return request.split, images, masks


def _pair_of_folders(folder: Path, rules: MaskRules) -> tuple[Path, Path | None]:
    inside = subfolders(folder)
    images = next((name for name in IMAGES if name in inside), None)
    masks = next((name for name in ((rules.masks,) if rules.masks else MASKS) if name in inside), None)
    if rules.masks and masks is None:
        raise DataError(f"{folder} has no folder of masks {rules.masks!r}; it has {', '.join(inside) or 'none'}.")
    if images is None and masks is not None:
        raise DataError(f"{folder} has masks in {masks} and no folder of images. Call it images.")
    return (folder if images is None else folder / images), (None if masks is None else folder / masks)


def _same_split(masks: Path, split: str) -> Path:
    if not (masks / split).is_dir():
        raise DataError(f"{masks} has no folder {split}, which the images have.")
    return masks / split


def _paired(images: Path, names: list[str], masks: Path, suffix: str) -> MaskFiles:
    known: dict[str, str] = {}
    for place, folders, files in os.walk(masks):
        folders.sort()
        for file in sorted(files):
            if is_image(file):
                relative = (Path(place) / file).relative_to(masks)
                known.setdefault(relative.with_suffix("").as_posix(), relative.as_posix())
    expected = [Path(name).with_suffix("").as_posix() + suffix for name in names]
    found = [known.get(stem) for stem in expected]
    without = [name for name, mask in zip(names, found, strict=True) if mask is None]
    if len(without) > MOST_WITHOUT * len(names):
        raise DataError(
            f"{len(without)} of {len(names)} images in {images} have no mask of the same name in {masks}: "
            f"{first_few(without)}. If masks have more in their names, set mask_suffix."
        )
    return MaskFiles(masks, found, expected)
