"""HVT, the hierarchical visual transformer (Pan et al., ICCV 2021), as timm models.

An HVT is a DeiT without class token that pools its sequence once in every stage and predicts from the mean of the
remaining tokens, y = FC(mean(LN(x))). It is built as timm's VisionTransformer, reduced by ``HVTPool``. Every function
of foveate therefore works on it, and its weights are those of a DeiT plus the new positions under ``foveate.``.

Beyond the paper: images may have any size (positions are resampled), and ``class_token=True`` predicts from the class
token instead, which is never pooled (the other half of the paper's Table 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from timm.layers import to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from foveate.adapters import register_family
from foveate.adapters.timm_vit import TimmVit
from foveate.adapters.timm_weights import convert_weights
from foveate.api import reduce_
from foveate.methods.hvt_pool import HVTPool, Pool
from foveate.methods.validation import shown
from foveate.models.pyramid import Pyramid
from foveate.models.untrained import untrained

__all__ = ["ENTRY_POINTS", "block_compression", "build_hvt"]

HEAD_DIM = 64

ENTRY_POINTS: dict[str, dict[str, Any]] = {
    "hvt_tiny": {"num_heads": 3},
    "hvt_small": {"num_heads": 6},
    "hvt_tiny_1": {"num_heads": 3, "stages": 1},
    **{f"hvt_small_{stages}": {"num_heads": 6, "stages": stages} for stages in range(5)},
    "scale_hvt_tiny_4": {"num_heads": 6, "stages": 4},
    "hvt_small_2_2d": {"num_heads": 6, "stages": 2, "pool_dim": 2, "patch_size": 8},
}
"""Fixed options of each name: the two sizes, and the paper's variants."""


class HVT(VisionTransformer):
    """timm's VisionTransformer under its own name; the reduction is all that makes it an HVT."""


@register_family
class HVTFamily(TimmVit):
    """HVT, which is rebuilt without its poolings, because the stored reduction adds them."""

    title = "HVT"

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, HVT)

    def build_options(self) -> dict[str, Any]:
        return super().build_options() | {"stages": 0}


def build_hvt(
    stages: int = 1,
    pool: Pool = "max",
    pool_dim: int = 1,
    depth: int = 12,
    num_heads: int = 3,
    img_size: int | tuple[int, int] = 224,
    patch_size: int | tuple[int, int] = 16,
    class_token: bool = False,
    **options: Any,
) -> VisionTransformer:
    """Build a DeiT of width 64 times ``num_heads`` that pools once in each of its stages.

    Args:
        stages: number of stages; 0 for no pooling.
        pool: ``"max"``, ``"avg"`` or ``"conv"``.
        pool_dim: 1 to pool along the sequence, 2 to pool over rows and columns.
        depth: number of blocks.
        num_heads: number of heads, each 64 channels wide.
        img_size: size of the images.
        patch_size: size of the patches.
        class_token: predict from a class token instead of the mean.
        options: of timm's VisionTransformer: ``num_classes``, ``drop_path_rate``, ``dynamic_img_size``, ...

    Raises:
        ValueError: if stages do not divide the depth, or leave too few tokens to pool.
    """
    if num_heads < 1:
        raise ValueError(f"HVT: num_heads must be at least 1, got {num_heads}. Each head is {HEAD_DIM} channels wide.")
    method = None if stages == 0 else HVTPool(stages, pool, pool_dim)  # type: ignore[arg-type]
    grid = _grid(img_size, patch_size)
    if method is not None:
        method.own_counts(depth, grid)  # raises for what cannot be pooled before a large model is built
    shape = {"embed_dim": HEAD_DIM * num_heads, "depth": depth, "num_heads": num_heads}
    head = {"class_token": class_token, "global_pool": "token" if class_token else "avg", "fc_norm": False}
    model = HVT(img_size=img_size, patch_size=patch_size, **{**shape, **head, **options})
    return model if method is None else reduce_(model, method)


def _grid(img_size: int | tuple[int, int], patch_size: int | tuple[int, int]) -> tuple[int, int]:
    (height, width), (ph, pw) = to_2tuple(img_size), to_2tuple(patch_size)
    if min(height, width, ph, pw) < 1:
        raise ValueError(
            f"HVT: all sides must be at least 1, got images of {height} x {width} and patches of {ph} x {pw}."
        )
    if height % ph or width % pw:
        raise ValueError(
            f"HVT: patches of {ph} x {pw} do not divide images of {height} x {width}. "
            f"The nearest sizes are {height // ph * ph} x {width // pw * pw} and "
            f"{-(-height // ph) * ph} x {-(-width // pw) * pw}."
        )
    return height // ph, width // pw


def block_compression(tokens: float, dim: float) -> float:
    """How many times cheaper a block becomes when its sequence of ``tokens`` is halved (equation 8).

    alpha = phi(n, d) / phi(n / 2, d) = 2 + 2 / (12 d / n + 1), with phi(n, d) = 12 n d^2 + 2 n^2 d (equation 7).
    It lies between 2, if the sequence is short compared to its width, and 4, if it is long.
    """
    numbers = [n for n in (tokens, dim) if isinstance(n, int | float) and not isinstance(n, bool)]
    if len(numbers) < 2 or not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"tokens and dim must be above 0, got {shown(tokens)} and {shown(dim)}.")
    return 2 + 2 / (12 * dim / tokens + 1)


def _register(name: str, fixed: dict[str, Any]) -> Callable[..., nn.Module]:
    """Register ``name`` with timm, with ``fixed`` options."""

    def entry_point(pretrained: bool = False, **options: Any) -> nn.Module:
        options = fixed | options
        stages = options.get("stages", 1)
        if not isinstance(stages, int) or stages < 0:
            raise ValueError(f"{name}: stages must be a whole number of at least 0, got {stages!r}.")
        return build_model_with_cfg(
            build_hvt,
            name,
            pretrained,
            pretrained_filter_fn=convert_weights,
            feature_cfg={"feature_cls": Pyramid, "out_indices": tuple(range(stages + 1))},
            **options,
        )

    described = ", ".join(f"{option}={value}" for option, value in fixed.items())
    entry_point.__name__, entry_point.__doc__ = name, f"HVT with {described}; see ``build_hvt`` for all options."
    return register_model(entry_point)


CONFIG = untrained(paper_ids="arXiv:2103.10619", paper_name="Scalable Vision Transformers with Hierarchical Pooling")
default_cfgs = generate_default_cfgs({f"{name}.untrained": CONFIG for name in ENTRY_POINTS})  # timm reads this name
for _name, _fixed in ENTRY_POINTS.items():
    _register(_name, _fixed)
