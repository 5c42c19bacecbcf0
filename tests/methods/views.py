"""Views of random tokens, for tests that hold a method against plain loops."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from foveate.methods import BlockView, Method

HEADS, HEAD_DIM, BATCH = 2, 3, 2
Rows = list[list[float]]


def random_view(n: int, prefix: int = 1, seed: int = 0, block: int = 0, depth: int = 4, **given: Any) -> BlockView:
    """A view of random tokens with sizes from 1 to 3; keys are the tokens cut into heads, scores are positive."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tokens = draw(BATCH, prefix + n, HEADS * HEAD_DIM)
    size = torch.randint(1, 4, (BATCH, n), generator=generator).double()
    scores = {name: draw(BATCH, n).exp() for name in ("cls_attn", "attn_received", "cls_value_attn", "mlp_shift")}
    patches = tokens[:, prefix:]
    keys = patches.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2)
    values: dict[str, Any] = {"keys": keys, "normed": patches, **scores, **given}
    return BlockView(tokens, prefix, size, block, has_cls=prefix > 0, depth=depth, **values)


def reduced(method: Method, view: BlockView, keep: int) -> tuple[list[Rows], list[list[float]]]:
    """Patch tokens after the method, and their sizes, of each image."""
    assignment = method.assign(view, keep)
    out = method.combine(view, assignment)
    assert torch.equal(out[:, : view.prefix], view.tokens[:, : view.prefix])
    assert assignment.sizes is not None
    return out[:, view.prefix :].tolist(), assignment.sizes.tolist()


def cosine(a: list[float], b: list[float]) -> float:
    return dot(a, b) / math.sqrt(dot(a, a)) / math.sqrt(dot(b, b))


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def mean_key(row: list[float]) -> list[float]:
    return [sum(row[h * HEAD_DIM + d] for h in range(HEADS)) / HEADS for d in range(HEAD_DIM)]


def weighted_mean(rows: Rows, weights: list[float]) -> list[float]:
    total = sum(weights)
    return [sum(w * row[c] for w, row in zip(weights, rows, strict=True)) / total for c in range(len(rows[0]))]


def merged(rows: Rows, sizes: list[float], owner: list[int], weights: list[float] | None = None) -> tuple[Rows, list]:
    """Slots in the order of ``owner``'s tokens: token i belongs to the slot of token ``owner[i]``."""
    weights = sizes if weights is None else weights
    slots = [i for i in range(len(rows)) if owner[i] == i]
    members = [[i for i in range(len(rows)) if owner[i] == slot] for slot in slots]
    means = [weighted_mean([rows[i] for i in group], [weights[i] for i in group]) for group in members]
    return means, [sum(sizes[i] for i in group) for group in members]


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-5
    )
