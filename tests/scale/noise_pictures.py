"""Small pictures of noise, each with a number."""

import io

import numpy as np
from PIL import Image


def picture(number: int) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((32, 32)).save(content, "PNG")
    return content.getvalue()
