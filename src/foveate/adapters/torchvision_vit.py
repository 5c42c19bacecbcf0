"""torchvision's VisionTransformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from foveate.adapters.base import Adapter, BlockOps, Heads, Reduced, UnsupportedModel, linear_macs
from foveate.adapters.engine import encode
from foveate.cost import BlockShape, ModelShape


class TorchvisionBlock(BlockOps):
    """``EncoderBlock`` around ``nn.MultiheadAttention`` with one packed input projection."""

    def normed(self, block: Any, x: Tensor) -> Tensor:
        return block.ln_1(x)

    def queries(self, block: Any, normed: Tensor) -> Tensor:
        return _projected(block.self_attention, normed, 0, 1)[0]

    def keys_values(self, block: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
        k, v = _projected(block.self_attention, normed, 1, 3)
        return k, v

    def project(self, block: Any, normed: Tensor) -> Heads:
        return Heads(*_projected(block.self_attention, normed, 0, 3))

    def after_attention(self, block: Any, attended: Tensor, normed: Tensor) -> Tensor:
        return block.dropout(block.self_attention.out_proj(attended.transpose(1, 2).flatten(2)))

    def mlp(self, block: Any, x: Tensor) -> Tensor:
        return x + block.mlp(block.ln_2(x))

    def scale(self, block: Any) -> float:
        return float(block.self_attention.head_dim**-0.5)

    def attention_dropout(self, block: Any) -> float:
        return float(block.self_attention.dropout) if block.self_attention.training else 0.0


def _projected(attention: Any, x: Tensor, start: int, stop: int) -> Tensor:
    """Parts ``start`` to ``stop`` of the packed q, k, v projection, as (stop - start, B, H, N, D)."""
    b, n, width = x.shape
    rows = slice(start * width, stop * width)
    bias = None if attention.in_proj_bias is None else attention.in_proj_bias[rows]
    out = linear(x, attention.in_proj_weight[rows], bias)
    return out.view(b, n, stop - start, attention.num_heads, -1).permute(2, 0, 3, 1, 4)


class ReducedTorchvision(Reduced):
    """What a reduced torchvision model does instead of its own forward."""

    def forward(self: Any, x: Tensor) -> Tensor:
        tokens = encode(TORCHVISION, self, x).stream.tokens
        return self.heads(self.encoder.ln(tokens)[:, 0])


class TorchvisionAdapter(Adapter):
    family = "torchvision VisionTransformer"
    library = "torchvision"
    mixin = ReducedTorchvision
    _ops = TorchvisionBlock()

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    def check(self, model: Any) -> None:
        if type(model).forward is not VisionTransformer.forward:
            raise UnsupportedModel(f"{type(model).__name__} overrides torchvision's VisionTransformer.forward.")
        for i, block in enumerate(model.encoder.layers):
            if type(block) is not EncoderBlock:
                raise UnsupportedModel(f"Block {i} is a {type(block).__name__}; EncoderBlock is known.")

    def ops(self, model: Any) -> BlockOps:
        return self._ops

    def num_prefix(self, model: Any) -> int:
        return 1

    def has_cls(self, model: Any) -> bool:
        return True

    def blocks(self, model: Any) -> list[nn.Module]:
        return list(model.encoder.layers)

    def grid(self, model: Any, height: int, width: int) -> tuple[int, int]:
        if (height, width) != (model.image_size, model.image_size):
            raise ValueError(
                f"The image is {height} x {width}, the model takes {model.image_size} x {model.image_size}. "
                "Resize it; torchvision's models have one size."
            )
        side = model.image_size // model.patch_size
        return side, side

    def image_size(self, model: Any) -> tuple[int, int, int]:
        first = next(m for m in model.conv_proj.modules() if isinstance(m, nn.Conv2d))
        return first.in_channels, model.image_size, model.image_size

    def shape(self, model: Any, grid: tuple[int, int]) -> ModelShape:
        return ModelShape(
            blocks=tuple(_block_shape(block) for block in model.encoder.layers),
            grid=grid,
            num_prefix=1,
            has_cls=True,
            stem_macs_per_patch=_stem_macs_per_patch(model.conv_proj, model.patch_size),
            head_macs=linear_macs(model.heads),
            head_macs_per_patch=0,
            head_reads_patches=False,
        )

    def embed(self, model: Any, images: Tensor, **options: Any) -> Tensor:
        self.grid(model, *images.shape[-2:])
        x = model._process_input(images)
        x = torch.cat([model.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        return model.encoder.dropout(x + model.encoder.pos_embedding)

    def final_norm(self, model: Any, tokens: Tensor) -> Tensor:
        return model.encoder.ln(tokens)

    def recipe(self, model: Any) -> dict[str, Any] | None:
        options = {
            "image_size": model.image_size,
            "patch_size": model.patch_size,
            "num_layers": len(model.encoder.layers),
            "num_heads": model.encoder.layers[0].num_heads,
            "hidden_dim": model.hidden_dim,
            "mlp_dim": model.mlp_dim,
            "dropout": model.dropout,
            "attention_dropout": model.attention_dropout,
            "num_classes": model.num_classes,
            "representation_size": model.representation_size,
        }
        return {"library": "torchvision", "options": options}

    def rebuild(self, recipe: dict[str, Any]) -> nn.Module:
        return VisionTransformer(**recipe["options"])


def _block_shape(block: Any) -> BlockShape:
    attention = block.self_attention
    width = attention.embed_dim
    return BlockShape(
        dim=width,
        heads=attention.num_heads,
        head_dim=attention.head_dim,
        query_macs=width * width,
        key_value_macs=2 * width * width,
        proj_macs=width * width,
        mlp_macs=linear_macs(block.mlp),
    )


def _stem_macs_per_patch(stem: nn.Module, patch_size: int) -> int:
    """Convolutions of the stem, one or several; each runs at the positions its strides so far have left."""
    total, stride = 0, 1
    for layer in stem.modules():
        if isinstance(layer, nn.Conv2d):
            stride *= layer.stride[0]
            total += (patch_size // stride) ** 2 * layer.weight.numel()
    return total


TORCHVISION = TorchvisionAdapter()
ReducedTorchvision._foveate_adapter = TORCHVISION
