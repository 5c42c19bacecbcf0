"""Values that nobody should give, as Python expressions, and the names that these expressions may use."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import foveate as fv

SIZE, PATCH, DIM, DEPTH, CLASSES = 16, 4, 16, 3, 5
SHAPE = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": DIM, "depth": DEPTH, "num_heads": 2}
DEEP = 2000
"""Levels of nesting, more than Python's parsers descend."""

HOSTILE = (
    "None",
    "True",
    "False",
    "0",
    "1",
    "-1",
    "3",
    "10**20",
    "-2**63",
    "0.0",
    "0.5",
    "-0.5",
    "1.5",
    "1e300",
    "float('nan')",
    "float('inf')",
    "-float('inf')",
    "''",
    "'abc'",
    "'0.5'",
    "'1'",
    "'tome'",
    "'tome:r=8'",
    "'x' * 100000",
    "b'bytes'",
    "[]",
    "[1]",
    "[1, 2]",
    "['a', 'b']",
    "[None]",
    "()",
    "(1, 2)",
    "(3, 16, 16)",
    "(3, 16)",
    "(3, -16, 16)",
    "(3, 1.5, 'a')",
    "(1, 10**9, 10**9)",
    "{}",
    "{'a': 1}",
    "{0: 4}",
    "{'0': '4'}",
    "{1, 2}",
    "range(3)",
    "iter([1, 2])",
    "object()",
    "int",
    "print",
    "3 + 4j",
    "nested(2000)",
    "np.array([1, 2])",
    "np.array(0.5)",
    "np.array(float('nan'))",
    "np.float32(0.5)",
    "np.float64(0.5)",
    "np.int64(2)",
    "np.zeros((2, 3, 16, 16))",
    "torch.tensor(2)",
    "torch.tensor(0.5)",
    "torch.zeros(0)",
    "torch.zeros(2, 3, 16, 16)",
    "torch.zeros(2, 3, 16, 16, dtype=torch.int64)",
    "torch.zeros(2, 3, 16, 16, dtype=torch.uint8)",
    "torch.zeros(2, 3, 16, 16, dtype=torch.bool)",
    "torch.zeros(2, 3, 16, 16, dtype=torch.float64)",
    "torch.zeros(2, 3, 16, 16, dtype=torch.float16)",
    "torch.zeros(2, 3, 16, 16, dtype=torch.complex64)",
    "torch.zeros(2, 3, 17, 17)",
    "torch.zeros(2, 3, 4, 4)",
    "torch.zeros(2, 1, 16, 16)",
    "torch.zeros(3, 16, 16)",
    "torch.zeros(0, 3, 16, 16)",
    "torch.zeros(2, 3, 16, 0)",
    "torch.zeros(2, 3, 16, 16, device='meta')",
    "torch.zeros(2, 3, 16, 16).to_sparse()",
    "torch.full((2, 3, 16, 16), float('nan'))",
    "torch.full((2, 3, 16, 16), float('inf'))",
    "Image.new('RGB', (16, 16))",
    "Path('nowhere')",
    "Path('.')",
    "torch.device('cpu')",
    "torch.float16",
    "fv.ToMe()",
    "fv.ToMe",
    "fv.EViT()",
    "fv.HVTPool()",
    "fv.DynamicViT()",
    "fv.Method",
    "fv.Keep({})",
    "fv.Keep({1: 4})",
    "fv.Keep({1: 10**20})",
    "fv.Keep([4, 4])",
    "fv.KeepRate(0.5)",
    "fv.KeepRate(0.5, blocks=(7,))",
    "fv.Budget(0.01)",
    "fv.RemovePerBlock(10**20)",
    "fv.Reduction()",
    "fv.Reduction('tome', 0.5)",
    "fv.Trace",
    "model",
    "nn.Linear(2, 2)",
    "nn.Sequential(model)",
    "nn.Module()",
    "nn.Identity()",
    "meta_model()",
    "shared_weights()",
    "nan_model()",
    "half_model()",
    "without_blocks()",
    "torchvision_model()",
    "mean_model()",
    "reduced_model()",
    "embedding_model()",
    "segmenter()",
)


def nested(depth: int) -> list[Any]:
    """A list in a list, many times."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@cache
def _made() -> nn.Module:
    torch.manual_seed(0)
    made = timm.create_model("vit_tiny_patch16_224", **SHAPE, num_classes=CLASSES)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


def tiny_model() -> Any:
    """A new ViT with the same weights every time."""
    return copy.deepcopy(_made())


@cache
def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@cache
def expected() -> Tensor:
    with torch.no_grad():
        return _made()(images())


def is_as_made(model: nn.Module) -> bool:
    """Whether a tiny model is as ``tiny_model`` makes it, and works."""
    own, first = model.state_dict(), _made().state_dict()
    same = type(model) is type(_made()) and model.training == _made().training and own.keys() == first.keys()
    if not same or not all(torch.equal(own[name], first[name]) for name in own):
        return False
    with torch.no_grad():
        return torch.equal(model(images()), expected())


def meta_model() -> nn.Module:
    with torch.device("meta"):
        return timm.create_model("vit_tiny_patch16_224", **SHAPE, num_classes=CLASSES).eval()


def shared_weights() -> nn.Module:
    """Two of its blocks are one."""
    made = tiny_model()
    made.blocks[2] = made.blocks[1]
    return made


def nan_model() -> nn.Module:
    made = tiny_model()
    made.blocks[1].mlp.fc1.weight.data.fill_(math.nan)
    return made


def half_model() -> nn.Module:
    return tiny_model().to(torch.bfloat16)


def without_blocks() -> nn.Module:
    made = tiny_model()
    made.blocks = nn.Sequential()
    return made


def mean_model() -> nn.Module:
    """No class token; its head averages patch tokens."""
    torch.manual_seed(0)
    pooled = {"class_token": False, "global_pool": "avg", "num_classes": CLASSES}
    return timm.create_model("vit_tiny_patch16_224", **SHAPE, **pooled).eval()


def embedding_model() -> nn.Module:
    """No classifier: it returns a vector for each image."""
    made = tiny_model()
    made.reset_classifier(0)
    return made


def segmenter() -> nn.Module:
    """An encoder with a head that classifies pixels."""
    torch.manual_seed(0)
    return fv.models.dense_model(tiny_model(), "linear", num_classes=CLASSES, image_size=(SIZE, SIZE)).eval()


def torchvision_model() -> nn.Module:
    torch.manual_seed(0)
    return TorchvisionViT(SIZE, PATCH, DEPTH, 2, DIM, 32, num_classes=CLASSES).eval()


def reduced_model() -> nn.Module:
    return fv.reduce_(tiny_model(), fv.ToMe(), fv.RemovePerBlock(2))


def reduced_and_run(method: Any, model: nn.Module, pictures: Tensor) -> Any:
    """Use a method: its options are judged when it is made, when it is applied or when it runs."""
    own = method.own_counts(DEPTH, (SIZE // PATCH, SIZE // PATCH))
    with torch.no_grad():
        return fv.reduce_(model, method, None if own is not None else fv.KeepRate(0.6))(pictures)


NAMES: dict[str, Any] = {
    "fv": fv,
    "np": np,
    "torch": torch,
    "nn": nn,
    "Image": Image,
    "Path": Path,
    **{
        made.__name__: made
        for made in (
            nested,
            meta_model,
            shared_weights,
            nan_model,
            half_model,
            without_blocks,
            mean_model,
            embedding_model,
            segmenter,
            torchvision_model,
            reduced_model,
            reduced_and_run,
        )
    },
}

Accepts = Callable[[Any], bool]


def evaluated(expression: str, **names: Any) -> Any:
    return eval(compile(expression, "<case>", "eval"), NAMES | names)
