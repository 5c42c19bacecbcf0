"""What timm's vision towers of language models share: rotary positions, no prefix, a projector that reads the grid.

timm has each as an encoder and as a classifier around it. Both are reduced as one model.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces, linear_macs
from foveate.adapters.family import UnsupportedModel
from foveate.adapters.pooling import mean_of_patches, tag_weights, tagged_weights
from foveate.adapters.positions import PositionSource
from foveate.adapters.stream import Encoded
from foveate.adapters.timm_encoder import drop_rates
from foveate.adapters.timm_family import TimmFamily
from foveate.adapters.timm_reduced import ReducedTimm, refuse_patches
from foveate.costs import ModelShape, Output

FORWARDS = ("forward", "forward_features", "forward_head", "forward_intermediates", "_pos_embed", "_encode")


class ReducedTower(ReducedTimm):
    """Methods of a reduced tower."""

    def forward(self, x: Tensor, *patches: Any, **options: Any) -> Any:
        refuse_patches(x, *patches, *options.values())
        family = self._family
        return family.head(family.encode(x))

    def forward_features(self, x: Tensor, *patches: Any, **options: Any) -> Tensor:
        """What the projector gives; without one, the grid, or the tokens that are left for a head that averages."""
        refuse_patches(x, *patches, *options.values())
        family = self._family
        encoded = family.encode(x)
        found = family.features(encoded)
        return tag_weights(found, encoded.stream.size) if family.reads_weights else found

    def forward_head(self: Any, x: Tensor, pre_logits: bool = False) -> Any:
        family = self._family
        if not hasattr(self, "head"):
            return super().forward_head(x, pre_logits)  # which says that there is none
        return family.predict(x, tagged_weights(x) if family.reads_weights else None, pre_logits)

    def prune_intermediate_layers(self, *args: Any, **options: Any) -> list[int]:
        raise ValueError(
            "This model is reduced with all its blocks. Call restore_(model), prune it, and reduce it again."
        )


class TimmTower(TimmFamily):
    """A tower: an encoder without prefix tokens, alone or inside a classifier."""

    mixin = ReducedTower
    kinds: ClassVar[tuple[type, type]]
    """The classes of the encoder and of the classifier around it."""
    block_forwards: ClassVar[tuple[Any, ...]]
    projector_name: ClassVar[str]
    """The encoder's attribute that holds its projector."""
    positions_between_patches = True
    saved_options = TimmFamily.saved_options | {"encoder_pool", "out_features", "final_norm"}

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, cls.kinds)

    def check(self) -> None:
        for part in {id(m): m for m in (self.model, self.tower)}.values():
            kind = getattr(type(part), "_foveate_base", type(part))
            known = next(known for known in self.kinds if isinstance(part, known))
            changed = [n for n in FORWARDS if getattr(kind, n, None) is not getattr(known, n, None)]
            if changed:
                raise UnsupportedModel(f"{kind.__name__} is a {known.__name__} that overrides {', '.join(changed)}.")
        for index, block in enumerate(self.blocks):
            if type(block).forward not in self.block_forwards:
                name, found = self.base_class.__name__, type(block).__name__
                raise UnsupportedModel(f"block {index} of timm's {name} is a {found}.")

    # -- the model's parts

    @property
    def tower(self) -> Any:
        """The encoder: the model itself, or the part of a classifier."""
        return getattr(self.model, "encoder", self.model)

    @property
    def classifies(self) -> bool:
        return isinstance(self.model, self.kinds[1])

    @property
    def projector(self) -> Any:
        """What turns the grid into tokens of the language model; None if the model has none."""
        return getattr(self.tower, self.projector_name)

    @property
    def head_averages(self) -> bool:
        """Whether all that is behind the blocks is a mean over patches, so that fewer tokens do."""
        return self.projector is None and self.model.global_pool == "avg"

    @property
    def grid_only(self) -> bool:  # type: ignore[override]
        return not self.head_averages

    @property
    def output(self) -> Output | None:  # type: ignore[override]
        return "grid" if self.grid_only else None

    @property
    def ends_in_tokens(self) -> bool:
        """Whether fewer tokens than patches may leave the last block."""
        return self.reducer is not None and self.reducer.plan.output == "tokens"

    @property
    def reads_weights(self) -> bool:
        return self.ends_in_tokens and self.reducer is not None and self.reducer.heads_weigh_by_size

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.tower.blocks)

    @property
    def image_size(self) -> tuple[int, int, int]:
        height, width = self.tower.patch_embed.img_size
        return int(self.tower.patch_embed.proj.in_channels), int(height), int(width)

    @property
    def patch_size(self) -> tuple[int, int]:
        return tuple(self.tower.patch_embed.patch_size)

    @property
    def cell(self) -> int:
        """Patches in a row and a column that the projector joins, and that images must have a multiple of."""
        return 1

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        (ph, pw), cell = self.patch_size, self.cell
        if min(height, width) < 1 or height % (ph * cell) or width % (pw * cell):
            raise ValueError(
                f"The image is {height} x {width}; height and width must be multiples of {ph * cell} and {pw * cell}."
            )
        return height // ph, width // pw

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        grid = self.grid if grid is None else grid
        per_patch = 0 if self.projector is not None or self.head_averages else self.classifier_macs
        projected = 0 if self.projector is None else self.projector_macs(grid)
        return ModelShape(
            blocks=tuple(pieces.shape() for pieces in self.pieces()),
            grid=grid,
            num_prefix=0,
            has_cls=False,
            stem_macs_per_patch=self.stem_macs_per_patch,
            head_macs=projected + (0 if per_patch else self.classifier_macs * self.classified(grid)),
            head_macs_per_patch=per_patch,
            head_reads_patches=True,
        )

    @property
    def stem_macs_per_patch(self) -> int:
        return int(self.tower.patch_embed.proj.weight.numel())

    @property
    def classifier_macs(self) -> int:
        return linear_macs(getattr(self.model, "head", None))

    def classified(self, grid: tuple[int, int]) -> int:
        """How often the classifier runs for an image: for its mean, or for every token of the projector."""
        return 1 if self.model.global_pool == "avg" or not self.classifies else self.projected_tokens(grid)

    def projected_tokens(self, grid: tuple[int, int]) -> int:
        """Tokens that leave the projector."""
        rows, columns = grid
        return -(-rows // self.cell) * -(-columns // self.cell)

    @abstractmethod
    def projector_macs(self, grid: tuple[int, int]) -> int:
        """MACs of the projector for an image."""

    @abstractmethod
    def project(self, grid: Tensor) -> Tensor:
        """The projector on a grid (B, H, W, C)."""

    @abstractmethod
    def pieces(self) -> list[BlockPieces]: ...

    # -- running the model

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        return self.embed_with_positions(images, **options)[0]

    def position_source(self, images: Tensor, **options: Any) -> PositionSource | None:
        return self.embed_with_positions(images, **options)[1]

    def features(self, encoded: Encoded) -> Tensor:
        """What ``forward_features`` of the model returns."""
        tokens, positions = self.final_norm(encoded.stream.tokens), encoded.stream.positions
        if self.ends_in_tokens:
            return tokens
        assert positions is not None
        grid = tokens.unflatten(1, positions.source.grid)
        return grid if self.projector is None or not self.classifies else self.project(grid)

    def head(self, encoded: Encoded) -> Any:
        found = self.features(encoded)
        if self.classifies:
            return self.predict(found, encoded.stream.size if self.reads_weights else None)
        if self.projector is not None:
            return self.project(found)
        return mean_of_patches(found.flatten(1, -2), encoded.stream.size) if self.head_averages else found

    def predict(self, features: Tensor, size: Tensor | None, pre_logits: bool = False) -> Tensor:
        """Mean, norm and classifier; a token counts once for each patch it stands for."""
        model: Any = self.model
        x = features.flatten(1, -2)
        x = mean_of_patches(x, size) if model.global_pool == "avg" else x
        x = model.head_drop(model.norm(x))
        return x if pre_logits else model.head(x)

    @property
    def recomputes(self) -> bool:
        return bool(self.tower.grad_checkpointing)

    # -- files

    def build_options(self) -> dict[str, Any]:
        model, shape = self.model, self.pieces()[0].shape()
        options = {"img_size": list(self.image_size[1:]), "in_chans": self.image_size[0], "depth": len(self.blocks)}
        options |= {"embed_dim": shape.dim, "num_heads": shape.heads, "global_pool": model.global_pool}
        if self.classifies:
            options |= {"num_classes": model.num_classes, "encoder_pool": model.encoder_pool}
        return options | drop_rates(model, self.blocks[-1])
