"""HVT, the hierarchical visual transformer (Pan et al., ICCV 2021), as timm models.

An HVT is a DeiT without class token that pools its sequence once in every stage and predicts from the mean of what is
left, y = FC(mean(LN(x))). It is built as just that: timm's VisionTransformer, reduced by ``HVTPool``. So every verb of
foveate works on it, and its weights are those of a DeiT plus the new positions under ``foveate.``.

Beyond the paper: the sizes of images are free (positions are resampled), and ``class_token=True`` predicts from the
class token instead, which is never pooled (the other side of the paper's Table 2).
"""

from __future__ import annotations

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
"""The two sizes, and the paper's names with what they stand for."""


class HVT(VisionTransformer):
    """timm's VisionTransformer under a name of its own; all that makes it an HVT is its reduction."""


@register_family
class HVTFamily(TimmVit):
    """Built again without its poolings, which the stored reduction adds."""

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
    """A DeiT of width 64 times ``num_heads`` that pools once in each of its ``stages``; 0 of them pool nothing.

    ``options`` are those of timm's VisionTransformer: ``num_classes``, ``drop_path_rate``, ``dynamic_img_size``, ...
    """
    if num_heads < 1:
        raise ValueError(f"HVT: num_heads is 1 or more, each {HEAD_DIM} channels wide; got {num_heads}.")
    method = None if stages == 0 else HVTPool(stages, pool, pool_dim)  # type: ignore[arg-type]
    grid = _grid(img_size, patch_size)
    if method is not None:
        method.own_counts(depth, grid)  # refuses what cannot be pooled before a large model is made
    shape = {"embed_dim": HEAD_DIM * num_heads, "depth": depth, "num_heads": num_heads}
    head = {"class_token": class_token, "global_pool": "token" if class_token else "avg", "fc_norm": False}
    model = HVT(img_size=img_size, patch_size=patch_size, **{**shape, **head, **options})
    return model if method is None else reduce_(model, method)


def _grid(img_size: int | tuple[int, int], patch_size: int | tuple[int, int]) -> tuple[int, int]:
    (height, width), (ph, pw) = to_2tuple(img_size), to_2tuple(patch_size)
    if min(height, width, ph, pw) < 1:
        raise ValueError(f"HVT: images of {height} x {width} in patches of {ph} x {pw}; all sides are 1 or more.")
    if height % ph or width % pw:
        raise ValueError(
            f"HVT: patches of {ph} x {pw} do not divide images of {height} x {width}. "
            f"Sizes near by that they do: {height // ph * ph} x {width // pw * pw} and "
            f"{-(-height // ph) * ph} x {-(-width // pw) * pw}."
        )
    return height // ph, width // pw


def block_compression(tokens: float, dim: float) -> float:
    """How many times cheaper a block becomes when its sequence of ``tokens`` is halved (equation 8).

    alpha = phi(n, d) / phi(n / 2, d) = 2 + 2 / (12 d / n + 1), with phi(n, d) = 12 n d^2 + 2 n^2 d (equation 7).
    It lies between 2, where the sequence is short against its width, and 4, where it is long.
    """
    if not (tokens > 0 and dim > 0):
        raise ValueError(f"A sequence has tokens and a width above 0; got {tokens} and {dim}.")
    return 2 + 2 / (12 * dim / tokens + 1)


def _register(name: str, fixed: dict[str, Any]) -> Callable[..., nn.Module]:
    """Make the entry point ``name``, which timm calls with what its users write."""

    def entry_point(pretrained: bool = False, **options: Any) -> nn.Module:
        options = fixed | options
        stages = options.get("stages", 1)
        if not isinstance(stages, int) or stages < 0:
            raise ValueError(f"{name}: stages is a whole number, 0 or more; got {stages!r}.")
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
