"""Small photographs with masks: the color of a pixel tells its class, so that a test sees both move alike."""

from pathlib import Path

import numpy as np
from PIL import Image

COLORS = np.array([[20, 20, 20], [230, 20, 20], [20, 230, 20], [20, 20, 230]], dtype=np.uint8)
CLASSES = ("dark", "red", "green", "blue")


def blocks(seed, size=(40, 56), classes=4):
    """A mask of a few rectangles."""
    draw = np.random.default_rng(seed)
    mask = np.zeros(size, dtype=np.uint8)
    for _ in range(5):
        top, left = draw.integers(0, size[0] - 8), draw.integers(0, size[1] - 8)
        mask[top : top + draw.integers(8, 24), left : left + draw.integers(8, 30)] = draw.integers(0, classes)
    return mask


def photo(mask):
    return Image.fromarray(COLORS[mask])


def write_pair(images: Path, masks: Path, name: str, mask, shown=None):
    images.mkdir(parents=True, exist_ok=True)
    masks.mkdir(parents=True, exist_ok=True)
    photo(mask if shown is None else shown).save(images / f"{name}.png")
    Image.fromarray(mask).save(masks / f"{name}.png")


def write_folder(root: Path, counts=(("train", 12), ("val", 4)), masks="masks", **options):
    """``root/SPLIT/images`` and ``root/SPLIT/masks``."""
    for split, count in counts:
        for number in range(count):
            mask = blocks(1000 * len(split) + number, **options)
            write_pair(root / split / "images", root / split / masks, f"{number:03}", mask)
    return root
