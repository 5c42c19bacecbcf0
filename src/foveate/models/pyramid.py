"""The feature pyramid of a model that shortens its sequence stage by stage (``features_only=True``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.models._features import FeatureInfo, feature_take_indices
from torch import Tensor, nn

from foveate.adapters import Step, inspect, reducer_of, spread
from foveate.methods.hvt_pool import HVTPool


class Pyramid(nn.Module):
    """Feature maps of an HVT, one level per sequence length: the last features before each pooling, and the final ones.

    With pooling over rows and columns, each level has a smaller grid. With pooling along the sequence there is no grid
    any more, so features are spread back: every patch gets the mean of the tokens that hold it.
    """

    def __init__(self, model: Any, out_indices: Any) -> None:
        super().__init__()
        self.ends = level_ends(model)
        self.levels, last = feature_take_indices(len(self.ends), out_indices)
        self.feature_info = FeatureInfo(self._describe(model, pools_the_grid(model)), tuple(self.levels))
        self.model = model
        self._prune(self.ends[last], pools=last < len(self.ends) - 1)

    def _describe(self, model: Any, smaller: bool) -> list[dict[str, Any]]:
        patch = max(model.patch_embed.patch_size)
        return [
            {"num_chs": model.embed_dim, "reduction": patch * 2**level if smaller else patch, "module": f"blocks.{end}"}
            for level, end in enumerate(self.ends)
        ]

    def _prune(self, last_block: int, pools: bool) -> None:
        """Remove what no level reads."""
        self.model.blocks = self.model.blocks[: last_block + 1]
        self.model.norm = nn.Identity()
        self.model.reset_classifier(0)
        reducer = reducer_of(self.model)
        if reducer is None:
            return
        reducer.drop_blocks_from(last_block + 1)
        if (
            pools
        ):  # the last level is read before this pooling, so it gets no gradient, which would stall distributed training
            reducer.learned[str(last_block)].requires_grad_(False)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.model.set_grad_checkpointing(enable)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Compute the chosen levels, each (B, C, H, W)."""
        found = grid_levels(self.model, images, self.ends[: max(self.levels) + 1], len(self.ends))
        return [found[level] for level in self.levels]


def level_ends(model: Any) -> list[int]:
    """The last block of each level: those that pool, and the last one."""
    reducer, depth = reducer_of(model), len(model.blocks)
    pooling = [] if reducer is None else [block for block in range(depth) if reducer.plan.acts_in(block)]
    return [*pooling, depth - 1]


def grid_levels(
    model: Any, images: Tensor, ends: Sequence[int] | None = None, count: int | None = None
) -> list[Tensor]:
    """The features at the end of each level, (B, C, H, W): before each pooling, and the final ones.

    Args:
        model: an HVT.
        images: (B, C, H, W).
        ends: the last block of each level that is read, if later ones are not there any more.
        count: number of levels with those that are not read.
    """
    family = inspect(model)
    ends = level_ends(model) if ends is None else ends
    count = len(ends) if count is None else count
    encoded = family.encode(images, record=True)
    prefix, grid = family.num_prefix, family.grid_for(*images.shape[-2:])
    maps: list[Tensor] = []
    steps: list[Step] = []
    for level, end in enumerate(ends):
        step = encoded.blocks[end].step if level < count - 1 else None
        tokens = encoded.stream.tokens[:, prefix:] if step is None else step.before
        maps.append(_map(model, tokens, steps, grid))
        steps += [] if step is None else [step]
    return maps


def _map(model: Any, tokens: Tensor, steps: list[Step], grid: tuple[int, int]) -> Tensor:
    if pools_the_grid(model):
        grid = model.foveate.method.shape_of(grid, tokens.shape[1])
    else:
        tokens = spread(tokens, steps)
    return tokens.unflatten(1, grid).permute(0, 3, 1, 2).contiguous()


def pools_the_grid(model: nn.Module) -> bool:
    """Whether ``model`` pools over rows and columns, so that each level has a smaller grid."""
    reducer = reducer_of(model)
    return reducer is not None and isinstance(reducer.method, HVTPool) and reducer.method.pool_dim == 2
