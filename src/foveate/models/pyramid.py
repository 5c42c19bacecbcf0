"""The feature pyramid of a model that shortens its sequence stage by stage (``features_only=True``)."""

from __future__ import annotations

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
        reducer = reducer_of(model)
        depth = len(model.blocks)
        pooling = [] if reducer is None else [block for block in range(depth) if reducer.plan.acts_in(block)]
        self.ends = [*pooling, depth - 1]
        """The last block of each level."""
        self.levels, last = feature_take_indices(len(self.ends), out_indices)
        self.feature_info = FeatureInfo(self._describe(model, _pools_the_grid(model)), tuple(self.levels))
        self.model = model
        self._prune(self.ends[last], pools=last < len(pooling))

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
        family = inspect(self.model)
        encoded = family.encode(images, record=True)
        prefix, grid = family.num_prefix, family.grid_for(*images.shape[-2:])
        maps: dict[int, Tensor] = {}
        steps: list[Step] = []
        for level, end in enumerate(self.ends[: max(self.levels) + 1]):
            step = encoded.blocks[end].step if level < len(self.ends) - 1 else None
            if level in self.levels:
                tokens = encoded.stream.tokens[:, prefix:] if step is None else step.before
                maps[level] = self._map(tokens, steps, grid)
            steps += [] if step is None else [step]
        return [maps[level] for level in self.levels]

    def _map(self, tokens: Tensor, steps: list[Step], grid: tuple[int, int]) -> Tensor:
        if _pools_the_grid(self.model):
            grid = self.model.foveate.method.shape_of(grid, tokens.shape[1])
        else:
            tokens = spread(tokens, steps)
        return tokens.unflatten(1, grid).permute(0, 3, 1, 2).contiguous()


def _pools_the_grid(model: nn.Module) -> bool:
    reducer = reducer_of(model)
    return reducer is not None and isinstance(reducer.method, HVTPool) and reducer.method.pool_dim == 2
