"""Assignments of every kind, drawn by hypothesis, and pooling by plain loops over their edges."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from foveate.core import Assignment, partition, selection, weighted_means

KINDS = (
    "identity",
    "selection",
    "partition",
    "weighted partition",
    "means",
    "weighted means",
    "unweighted edges",
    "windows",
    "padded partition",
    "padded selection",
    "padded windows",
)
WEIGHTS = (0.25, 0.5, 1.0, 2.0)  # powers of two: sums over small integers are exact, so results compare exactly
SMALL = st.integers(1, 6)


def table(draw: st.DrawFn, batch: int, width: int, values: st.SearchStrategy) -> list[list]:
    return draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=batch, max_size=batch))


def numbers(draw: st.DrawFn, batch: int, width: int, end: int) -> Tensor:
    return torch.tensor(table(draw, batch, width, st.integers(0, end - 1)), dtype=torch.long)


def weights(draw: st.DrawFn, batch: int, width: int, choices: tuple[float, ...]) -> Tensor:
    return torch.tensor(table(draw, batch, width, st.sampled_from(choices)))


def membership(draw: st.DrawFn, batch: int, width: int) -> Tensor:
    return torch.tensor(table(draw, batch, width, st.booleans()))


@st.composite
def assignments(draw: st.DrawFn, batch: int, n: int, kind: str) -> Assignment:
    if kind == "identity":
        return Assignment(None, None, None, n, n)
    if kind == "selection":
        k = draw(st.integers(1, n))
        rows = [draw(st.permutations(range(n)))[:k] for _ in range(batch)]
        return selection(torch.tensor(rows), n)
    if kind == "padded selection":
        k = draw(st.integers(1, n))
        weight = weights(draw, batch, k, (0.0, *WEIGHTS)) if draw(st.booleans()) else None
        return Assignment(numbers(draw, batch, k, n), None, weight, n, k, present=membership(draw, batch, k))
    slots = draw(SMALL)
    if kind == "padded partition":
        owner = numbers(draw, batch, n, slots)
        return Assignment(None, owner, None, n, slots, present=membership(draw, batch, n))
    if kind == "partition":
        return partition(numbers(draw, batch, n, slots), slots)
    if kind == "weighted partition":
        return partition(numbers(draw, batch, n, slots), slots, weights(draw, batch, n, (0.0, *WEIGHTS)))
    if kind == "means":
        return weighted_means(numbers(draw, batch, n, slots), slots)
    if kind == "weighted means":
        return weighted_means(numbers(draw, batch, n, slots), slots, weights(draw, batch, n, WEIGHTS))
    edges = draw(st.integers(1, 2 * n + 2))  # tokens with several edges, and tokens with none
    src, dst = numbers(draw, batch, edges, n), numbers(draw, batch, edges, slots)
    weight = weights(draw, batch, edges, (0.0, *WEIGHTS)) if kind.endswith("windows") else None
    present = membership(draw, batch, edges) if kind == "padded windows" else None
    return Assignment(src, dst, weight, n, slots, present=present)


@st.composite
def cases(draw: st.DrawFn, *kinds: str) -> tuple[Tensor, Assignment]:
    """Tokens (B, N, 3) and an assignment for them."""
    batch, n = draw(st.integers(1, 3)), draw(SMALL)
    a = draw(assignments(batch, n, draw(st.sampled_from(kinds or KINDS))))
    return tokens(batch, n, draw(st.integers(0, 999))), a


@st.composite
def chains(draw: st.DrawFn, first: str, then: str) -> tuple[Tensor, Assignment, Assignment]:
    batch, n = draw(st.integers(1, 3)), draw(SMALL)
    a = draw(assignments(batch, n, first))
    return tokens(batch, n, draw(st.integers(0, 999))), a, draw(assignments(batch, a.num_out, then))


def tokens(batch: int, n: int, seed: int = 0, channels: int = 3) -> Tensor:
    """Small whole numbers, all different from zero."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.randint(1, 9, (batch, n, channels), generator=generator)
    sign = torch.randint(0, 2, (batch, n, channels), generator=generator) * 2 - 1
    return (magnitude * sign).double()


def edge_list(a: Assignment, image: int) -> list[tuple[int, int, float]]:
    """(token, slot, weight) of the edges of one image, read from the class's docstring."""
    given_fields = [field for field in (a.src, a.dst, a.weight, a.present) if field is not None]
    count = given_fields[0].shape[1] if given_fields else a.num_in
    edges = []
    for e in range(count):
        token = e if a.src is None else int(a.src[image, e])
        slot = e if a.dst is None else int(a.dst[image, e])
        weight = 1.0 if a.weight is None else float(a.weight[image, e])
        if a.present is None or a.present[image, e]:
            edges.append((token, slot, weight))
    return edges


def pool_by_loops(x: Tensor, a: Assignment) -> Tensor:
    y = x.new_zeros(x.shape[0], a.num_out, x.shape[2])
    for image in range(x.shape[0]):
        for token, slot, weight in edge_list(a, image):
            y[image, slot] += weight * x[image, token]
    return y


def max_by_loops(x: Tensor, a: Assignment) -> Tensor:
    y = x.new_full((x.shape[0], a.num_out, x.shape[2]), -math.inf)
    for image in range(x.shape[0]):
        for token, slot, _ in edge_list(a, image):
            y[image, slot] = torch.maximum(y[image, slot], x[image, token])
    return y
