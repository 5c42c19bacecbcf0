"""DynamicViT: efficient vision transformers with dynamic token sparsification (Rao et al., NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, gumbel_softmax, log_softmax

from foveate.core import Assignment, keep_topk, selection
from foveate.methods.base import BlockView, Kind, Method, Site, StepShape
from foveate.methods.learned import MaskTrainedMethod
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class DynamicViT(MaskTrainedMethod):
    """Let a small predictor before each reducing block choose the tokens to keep; it is trained with the model.

    At inference, stage s keeps the int(N rho^s) tokens with the largest keep probability and removes the rest. In
    training all tokens stay and attention is masked. Keep decisions D are drawn by Gumbel-softmax and multiply over
    stages; token i attends to j by

        exp(P_ij) G_ij / sum_k exp(P_ik) G_ik,   G_ij = 1 where i = j, else D_j.

    For the same kept set both give the same prefix tokens. ``KeepRate(rho, blocks=(3, 6, 9))`` is the paper's geometric
    rule. At least one patch token stays even if the draw would drop them all.
    """

    seed: int = 0
    """Seed of the predictors' initial weights."""

    site: ClassVar[Site] = Site.PRE_BLOCK
    kind: ClassVar[Kind] = "learned"
    training_free: ClassVar[bool] = False

    def build(self, step: StepShape, block: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                1000 * self.seed + block
            )  # torch.manual_seed would also seed accelerators
            return Predictor(step.dim, step.keep / step.n)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return keep_topk(_keep_chance(view, None)[..., 0], keep)

    def decide(self, view: BlockView, kept: Tensor | None) -> Tensor:
        chance = _keep_chance(view, kept)
        drawn = gumbel_softmax(chance, hard=True, dim=-1)[..., 0]
        before = torch.ones_like(drawn) if kept is None else kept
        decided = drawn * before
        likely = (chance[..., 0].detach() + before.detach().log()).argmax(dim=1, keepdim=True)
        nothing = (decided.detach().sum(dim=1, keepdim=True) == 0).to(decided.dtype)
        return decided + nothing * torch.zeros_like(decided).scatter(1, likely, 1.0)

    def fewest(self, n: int) -> int:
        return min(n, 1)

    def free_slice(self) -> Method:
        return PredictAndSlice(self.seed)

    def macs(self, step: StepShape) -> int:
        dim = step.dim
        return step.n * (dim * dim + dim * (dim // 2) + (dim // 2) * (dim // 4) + (dim // 4) * 2)

    def keep_count(self, rate: float, current: int, first: int, stage: int) -> int:
        return min(current, max(1, int(first * rate**stage + 1e-9)))


@dataclass(frozen=True)
class PredictAndSlice(DynamicViT):
    """The upper limit of DynamicViT's speed: predictors run, but the first tokens stay whatever they predict."""

    def assign(self, view: BlockView, keep: int) -> Assignment:
        chance = _keep_chance(view, None)
        batch, n = chance.shape[:2]
        return selection(torch.arange(keep, device=chance.device).expand(batch, keep), n)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        return view.tokens[:, : view.prefix + assignment.num_out]


class Predictor(nn.Module):
    """LN -> Linear -> GELU, then three layers on half of a token's features and the other half's mean over kept tokens.

    The supplement has two branches LN -> Linear(C, C/2) -> GELU. One Linear(C, C) cut in halves behind one LN is the
    same map with a shared LN.

    The last layer's bias starts the keep probability near the share that will be kept; the paper starts at one half.
    From one half, an early stage, which all later stages push up, can reach a flat softmax and stay there. The order of
    the tokens is the same.
    """

    def __init__(self, dim: int, share: float = 0.5) -> None:
        super().__init__()
        if dim % 4:
            raise ValueError(f"DynamicViT's predictor needs a width that is divisible by 4, got {dim}.")
        self.norm, self.entry = nn.LayerNorm(dim), nn.Linear(dim, dim)
        last = nn.Linear(dim // 4, 2)
        self.exit = nn.Sequential(nn.Linear(dim, dim // 2), nn.GELU(), nn.Linear(dim // 2, dim // 4), nn.GELU(), last)
        share = min(max(share, 0.01), 0.99)  # a share of 0 or 1 would have no gradient
        with torch.no_grad():
            last.bias.copy_(torch.tensor([share, 1 - share]).log())

    def forward(self, tokens: Tensor, kept: Tensor | None) -> Tensor:
        """Log probabilities (B, N, 2) of keeping and of dropping each token."""
        features = gelu(self.entry(self.norm(tokens)))
        local, shared = features.chunk(2, dim=-1)
        if kept is None:
            whole = shared.mean(dim=1, keepdim=True)
        else:
            weight = (kept / kept.sum(dim=1, keepdim=True)).unsqueeze(-1).to(shared.dtype)
            whole = (shared * weight).sum(dim=1, keepdim=True)
        return log_softmax(self.exit(torch.cat([local, whole.expand_as(local)], dim=-1)), dim=-1, dtype=torch.float32)


def _keep_chance(view: BlockView, kept: Tensor | None) -> Tensor:
    if not isinstance(view.module, Predictor):
        raise ValueError(
            f"DynamicViT has no predictor for block {view.block}, where it acts on images of this size. "
            "Reduce the model for images of this size, or use KeepRate with blocks=..."
        )
    return view.module(view.patches, kept)
