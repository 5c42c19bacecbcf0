"""torchvision's VisionTransformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.family import Family, UnsupportedModel
from foveate.adapters.reduced import Reduced
from foveate.adapters.registry import register_family
from foveate.adapters.stream import Encoded
from foveate.costs import BlockShape, ModelShape

SPARED_BY_DECAY = {"pos_embedding", "class_token"}
SAVED_OPTIONS = (
    *("image_size", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim", "dropout", "attention_dropout"),
    *("num_classes", "representation_size"),
)


class TorchvisionBlock(BlockPieces):
    """``EncoderBlock`` around ``nn.MultiheadAttention`` with one packed input projection."""

    @property
    def attn(self) -> Any:
        return self.block.self_attention

    def normed(self, x: Tensor) -> Tensor:
        return self.block.ln_1(x)

    def queries(self, normed: Tensor) -> Tensor:
        return _projected(self.attn, normed, 0, 1)[0]

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        k, v = _projected(self.attn, normed, 1, 3)
        return k, v

    def project(self, normed: Tensor) -> Heads:
        return Heads(*_projected(self.attn, normed, 0, 3))

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        return self.block.dropout(self.attn.out_proj(attended.transpose(1, 2).flatten(2)))

    def mlp(self, x: Tensor) -> Tensor:
        return x + self.block.mlp(self.block.ln_2(x))

    @property
    def scale(self) -> float:
        return float(self.attn.head_dim**-0.5)

    @property
    def attention_dropout(self) -> float:
        return float(self.attn.dropout) if self.attn.training else 0.0

    def shape(self) -> BlockShape:
        width = self.attn.embed_dim
        return BlockShape(
            dim=width,
            heads=self.attn.num_heads,
            head_dim=self.attn.head_dim,
            query_macs=width * width,
            key_value_macs=2 * width * width,
            proj_macs=width * width,
            mlp_macs=linear_macs(self.block.mlp),
        )


def _projected(attention: Any, x: Tensor, start: int, stop: int) -> Tensor:
    """Parts ``start`` to ``stop`` of the packed q, k, v projection, as (stop - start, B, H, N, D)."""
    b, n, width = x.shape
    rows = slice(start * width, stop * width)
    bias = None if attention.in_proj_bias is None else attention.in_proj_bias[rows]
    out = linear(x, attention.in_proj_weight[rows], bias)
    return out.view(b, n, stop - start, attention.num_heads, -1).permute(2, 0, 3, 1, 4)


class ReducedTorchvision(Reduced):
    """The forward of a reduced torchvision model."""

    def forward(self: Any, x: Tensor) -> Tensor:
        family = self._family
        return family.head(family.encode(x))


@register_family
class TorchvisionVit(Family):
    """torchvision's ``VisionTransformer``."""

    title = "torchvision VisionTransformer"
    library = "torchvision"
    mixin = ReducedTorchvision
    classifier_names = ("heads",)
    embedding_names = frozenset({"conv_proj", "class_token", "pos_embedding"})

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    def check(self) -> None:
        if type(self.model).forward is not VisionTransformer.forward:
            raise UnsupportedModel(f"{type(self.model).__name__} overrides torchvision's VisionTransformer.forward.")
        for i, block in enumerate(self.blocks):
            if type(block) is not EncoderBlock:
                raise UnsupportedModel(f"Block {i} is a {type(block).__name__}. Supported: EncoderBlock.")

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.model.encoder.layers)

    def pieces(self) -> list[BlockPieces]:
        return [TorchvisionBlock(block) for block in self.blocks]

    @property
    def num_prefix(self) -> int:
        return 1

    @property
    def has_cls(self) -> bool:
        return True

    @property
    def image_size(self) -> tuple[int, int, int]:
        model = self.model
        first = next(m for m in model.conv_proj.modules() if isinstance(m, nn.Conv2d))
        return first.in_channels, model.image_size, model.image_size

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        size = self.model.image_size
        if (height, width) != (size, size):
            raise ValueError(
                f"The image is {height} x {width}, the model takes {size} x {size}. "
                "Resize it; torchvision's models have one size."
            )
        side = size // self.model.patch_size
        return side, side

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        return ModelShape(
            blocks=tuple(pieces.shape() for pieces in self.pieces()),
            grid=self.grid if grid is None else grid,
            num_prefix=1,
            has_cls=True,
            stem_macs_per_patch=_stem_macs_per_patch(self.model.conv_proj, self.model.patch_size),
            head_macs=linear_macs(self.model.heads),
            head_macs_per_patch=0,
            head_reads_patches=False,
        )

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        self.grid_for(*images.shape[-2:])
        model = self.model
        x = model._process_input(images)
        x = torch.cat([model.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        return model.encoder.dropout(x + model.encoder.pos_embedding)

    def final_norm(self, tokens: Tensor) -> Tensor:
        return self.model.encoder.ln(tokens)

    def head(self, encoded: Encoded) -> Tensor:
        return self.model.heads(self.final_norm(encoded.stream.tokens)[:, 0])

    def _replace_classifier(self, num_classes: int) -> None:
        heads = self.model.heads
        heads.head = nn.Linear(heads.head.in_features, num_classes)
        self.model.num_classes = num_classes

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.model.named_parameters() if SPARED_BY_DECAY & set(name.split("."))}

    def architecture(self) -> dict[str, Any]:
        model = self.model
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
        return {"library": self.library, "options": options}

    @classmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> nn.Module:
        return VisionTransformer(**cls.check_saved_options(architecture.get("options"), SAVED_OPTIONS))


def _stem_macs_per_patch(stem: nn.Module, patch_size: int) -> int:
    """MACs of the stem's convolutions; each runs at the resolution that earlier strides have left."""
    total, stride = 0, 1
    for layer in stem.modules():
        if isinstance(layer, nn.Conv2d):
            stride *= layer.stride[0]
            total += (patch_size // stride) ** 2 * layer.weight.numel()
    return total
