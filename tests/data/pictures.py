"""Small pictures: each is one color, and the color says which it is. Transforms and shards made of them."""

import io
import random
import tarfile

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

SIZE = 4


def encoded(number, kind="PNG"):
    """A picture as bytes; PNG keeps its color exactly."""
    content = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE), (number % 256, number // 256, 7)).save(content, kind)
    return content.getvalue()


def number_of(pixels):
    """The number of a picture, from a PIL image or from a (3, H, W) tensor of its pixels."""
    red, green, _ = np.asarray(pixels)[0, 0] if isinstance(pixels, Image.Image) else pixels[:, 0, 0].tolist()
    return int(red) + 256 * int(green)


def plain(image):
    return pil_to_tensor(image).float()


def noisy(image):
    """Draws from all three generators that transforms use."""
    noise = torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])
    return pil_to_tensor(image).float() + 0.5 * noise[:, None, None]


def write_shard(path, members):
    """A tar of (name, bytes), in that order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def members(numbers, label=lambda number: number % 3):
    """Pictures with their labels, as WebDataset names them."""
    for number in numbers:
        yield f"{number:04}.png", encoded(number)
        yield f"{number:04}.cls", str(label(number)).encode()
