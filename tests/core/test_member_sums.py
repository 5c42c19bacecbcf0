"""Merging by sums, the exported form of Ward and TokenPooling, gives the merges of the eager form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import foveate as fv
from foveate.methods.base import BlockView, Method
from served import RUNTIMES, in_openvino

PREFIX = 2


class Site(nn.Module):
    """One reduction: the new tokens, their sizes, and the slot of every token."""

    def __init__(self, method: Method, keep: int, sized: bool = True) -> None:
        super().__init__()
        self.method, self.keep, self.sized = method, keep, sized

    def forward(self, tokens: Tensor, received: Tensor) -> tuple[Tensor, ...]:
        scores = {"attn_received": received, "cls_attn": received.flip(1)}
        size = received.round() + 1 if self.sized else None
        has_cls = isinstance(self.method, fv.Ward)
        view = BlockView(tokens, PREFIX, size, 0, has_cls, **scores)
        assignment, merged = self.method.reduce(view, self.keep)
        edges = assignment.edges(tokens.shape[0])
        owner = torch.zeros_like(edges.src).scatter(1, edges.src, edges.dst)
        assert assignment.sizes is not None
        return merged, assignment.sizes, owner


def random_inputs(batch: int, n: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(n)
    tokens = 3 + torch.randn(batch, PREFIX + n, 16, generator=draw)
    return tokens, torch.rand(batch, n, generator=draw) * 3 + 0.1


def tied_inputs(batch: int, n: int) -> tuple[Tensor, Tensor]:
    """Whole numbers of one channel, so that costs are exact and many are equal."""
    draw = torch.Generator().manual_seed(n)
    tokens = torch.randint(0, 3, (batch, PREFIX + n, 1), generator=draw).float()
    return tokens, torch.ones(batch, n)


def exported(site: Site, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with torch.no_grad():
        return torch.export.export(site, inputs, dynamic_shapes=(batch, batch))


def assert_equal_merges(found: list[Tensor] | tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    merged, sizes, owner = found
    assert torch.equal(owner.long(), expected[2])
    torch.testing.assert_close(sizes, expected[1])
    torch.testing.assert_close(merged, expected[0], rtol=1e-5, atol=1e-5)


METHODS = [
    fv.Ward(),
    fv.Ward(rounds=1, rescale=False),
    fv.TokenPooling(),
    fv.TokenPooling(weights="size", rescale=False),
    fv.TokenPooling(weights="none"),
]


@pytest.mark.parametrize("sized", [True, False], ids=["sizes", "no sizes"])
@pytest.mark.parametrize(("n", "keep"), [(17, 11), (16, 9), (17, 3), (5, 5), (1, 1)])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_exported_form_makes_the_eager_merges(method, n, keep, sized):
    site = Site(method, keep, sized)
    run = exported(site, random_inputs(2, n)).module()
    for batch in (1, 3):
        inputs = random_inputs(batch, n)
        assert_equal_merges(run(*inputs), site(*inputs))


@pytest.mark.parametrize("runtime", [*RUNTIMES, "openvino for one image"])
@pytest.mark.parametrize("method", [fv.Ward(rounds=1), fv.TokenPooling(), fv.Ward()], ids=repr)
def test_of_equal_costs_the_lower_index_is_merged(method, runtime):
    n, keep = 41, 28
    site = Site(method, keep)
    program = exported(site, tied_inputs(2, n))
    one = runtime == "openvino for one image"
    run = in_openvino(program, batch=1) if one else RUNTIMES[runtime](program)
    for batch in (1,) if one else (1, 4):
        inputs = tied_inputs(batch, n)
        assert_equal_merges(run(*inputs), site(*inputs))
    equal = (torch.full((1, PREFIX + n, 1), 2.0), torch.ones(1, n))
    assert_equal_merges(run(*equal), site(*equal))


def test_half_precision_is_merged_in_float32():
    tokens, received = random_inputs(2, 17)
    site = Site(fv.Ward(), 11)
    merged, _, owner = exported(site, (tokens.bfloat16(), received)).module()(tokens.bfloat16(), received)
    expected = site(tokens.bfloat16(), received)
    assert merged.dtype == torch.bfloat16
    assert torch.equal(owner, expected[2])
    torch.testing.assert_close(merged.float(), expected[0].float(), rtol=0.02, atol=0.02)
