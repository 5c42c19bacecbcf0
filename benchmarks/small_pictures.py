"""Small images for benchmarks of throughput, not of accuracy."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def write_pictures(folder: Path, count: int, size: int = 64, broken_every: int = 0) -> Path:
    """Write ``count`` JPEG files of noise, some of them broken; returns the folder."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        pixels = Image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).resize((size, size))
        content = io.BytesIO()
        pixels.save(content, "JPEG", quality=80)
        broken = broken_every and number % broken_every == broken_every - 1
        (folder / f"{number:06d}.jpg").write_bytes(content.getvalue()[: 100 if broken else None])
    return folder
