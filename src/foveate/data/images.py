"""From a stored image to RGB, and the errors for broken images and unusable data."""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".avif",
    ".heic",
    ".heif",
)
ORIENTATION = 0x0112  # the EXIF tag
HEIC, AVIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"), (b"avif", b"avis")
"""Brands in the first bytes of the files of phones and of AVIF."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class DataError(ValueError):
    """The data cannot be used. Raised before training starts if possible."""


class BrokenImage(Exception):
    """One image that cannot be read. The loader skips it and counts it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both arguments, so that it can be pickled in a worker process
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} cannot be read: {self.reason}"


@dataclass(frozen=True)
class Sample:
    """One image as it is stored, before any transform."""

    image: Image.Image
    """RGB, upright."""
    target: Any
    """What a task predicts: for classification the class number, or -1 if unknown."""
    name: str


def is_image(name: str) -> bool:
    """Whether a file name is an image's. Hidden files, such as `._dog.jpg`, are skipped."""
    return not name.rpartition("/")[2].startswith(".") and name.lower().endswith(EXTENSIONS)


def decode(content: bytes) -> Image.Image:
    """Open an encoded image. HEIC and AVIF need a plugin of Pillow, which is registered here if it is installed.

    Raises:
        UnidentifiedImageError: if the format is not known.
        ValueError: if the format is known and its plugin is missing.
    """
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError:
        brand = content[8:12] if content[4:8] == b"ftyp" else b""
        if brand in HEIC:
            _plugin("HEIC", "pillow_heif", "pillow-heif").register_heif_opener()
        elif brand in AVIF:
            _plugin("AVIF", "pillow_avif", "pillow-avif-plugin")  # registers itself
        else:
            raise
    return Image.open(io.BytesIO(content))


def _plugin(kind: str, module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{kind} images need a plugin of Pillow: pip install {package}") from error


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert to upright RGB with 8 bits per channel, on white where transparent.

    16-bit pixels are scaled, not clipped.

    Raises:
        ValueError: if pixels are floating point, whose range is unknown, or need more than 16 bits.
    """
    image.load()
    mode, turn = image.mode, _turn_upright(image)  # read first, because conversions lose it
    if mode == "F":
        raise ValueError("its pixels are floating point numbers of unknown range; store it with 8 or 16 bits")
    if mode == "I" or mode.startswith("I;16"):
        image = _eight_bits(image)
    elif mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        see_through = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), see_through)
    upright = image if turn is None else image.transpose(turn)
    return upright.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels need more than 16 bits; store it with 8 or 16")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _turn_upright(image: Image.Image) -> Image.Transpose | None:
    try:
        return UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # the image may be fine even if its EXIF block is damaged
        return None
