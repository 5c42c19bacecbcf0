"""EViT: the paper's counts, and the fused token written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate import EViT, KeepRate
from foveate.core import pool_size
from foveate.methods import BlockView
from zoo import PATCHES, images, make

BATCH, PREFIX, N, CHANNELS = 2, 2, 9, 4


@pytest.fixture
def view() -> BlockView:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(BATCH, PREFIX + N, CHANNELS, generator=generator, dtype=torch.float64)
    attention = torch.rand(BATCH, N, generator=generator)
    return BlockView(tokens, PREFIX, None, block=3, has_cls=True, cls_attn=attention)


def evit_by_loops(view: BlockView, keep: int, fuse: bool, normalize: bool) -> Tensor:
    """Prefix, then the most attentive patches in their order, then the fused one."""
    images = []
    for image in range(BATCH):
        attention = view.cls_attn[image].tolist()
        ranked = sorted(range(N), key=lambda i: attention[i], reverse=True)
        kept, rest = sorted(ranked[: keep - fuse]), ranked[keep - fuse :]
        rows = [view.tokens[image, i] for i in range(PREFIX)] + [view.patches[image, i] for i in kept]
        if fuse:
            fused = sum(attention[i] * view.patches[image, i] for i in rest)
            rows.append(fused / sum(attention[i] for i in rest) if normalize else fused)
        images.append(torch.stack(rows))
    return torch.stack(images)


@pytest.mark.parametrize(
    ("patches", "rate", "fuse", "expected"),
    [
        (196, 0.7, True, (139, 99, 71)),
        (196, 0.7, False, (138, 97, 68)),
        (256, 0.7, False, (180, 126, 89)),
        (256, 0.5, False, (128, 64, 32)),
    ],
)
def test_counts_are_those_of_the_paper(patches, rate, fuse, expected):
    counts = KeepRate(rate, blocks=(3, 6, 9)).counts(EViT(fuse=fuse), depth=12, n=patches)
    a, b, c = expected
    assert counts == (*[patches] * 3, *[a] * 3, *[b] * 3, *[c] * 3)


@pytest.mark.parametrize("keep", [1, 2, 5, N])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
def test_tokens_match_plain_loops(view, fuse, normalize, keep):
    method = EViT(fuse=fuse, normalize=normalize)
    out = method.combine(view, method.assign(view, keep))
    assert out.shape == (BATCH, PREFIX + keep, CHANNELS)
    assert torch.allclose(out, evit_by_loops(view, keep, fuse, normalize), atol=1e-6)


def test_the_fused_token_uses_the_attention_as_it_is_by_default(view):
    assert EViT() == EViT(fuse=True, normalize=False, proportional_attention=False)
    louder = BlockView(view.tokens, PREFIX, None, 3, True, cls_attn=2 * view.cls_attn)
    quiet, loud = (EViT().combine(v, EViT().assign(v, 4)) for v in (view, louder))
    assert torch.allclose(loud[:, -1], 2 * quiet[:, -1])
    assert torch.equal(loud[:, :-1], quiet[:, :-1])


def test_the_fused_token_stands_for_every_patch_that_was_not_kept(view):
    assert pool_size(torch.ones(BATCH, N), EViT().assign(view, 4)).tolist() == [[1.0, 1.0, 1.0, 6.0]] * BATCH


@pytest.mark.parametrize("fuse", [False, True])
def test_keeping_no_patch_leaves_the_prefix_alone(view, fuse):
    method = EViT(fuse=fuse)
    assert torch.equal(method.combine(view, method.assign(view, 0)), view.tokens[:, :PREFIX])


@pytest.mark.parametrize(("rate", "acts"), [(0.96, True), (0.98, False), (1.0, False)])
def test_a_single_token_left_over_is_scaled_by_its_attention_as_in_the_published_code(rate, acts):
    """36 patches: at 0.96 ceil(34.56) = 35 stay and one is fused with none; at 0.98 ceil(35.28) = 36 stay."""
    model, x = make("timm-cls"), images()
    with torch.no_grad():
        whole = model(x)
        fv.reduce_(model, EViT(), KeepRate(rate, blocks=(1,)))
        assert model.foveate.plan.counts == (PATCHES,) * len(model.blocks)
        assert model.foveate.plan.acts_in(1) == acts
        assert torch.equal(model(x), whole) != acts
        if acts:
            torch.testing.assert_close(model(x), scaled_by_hand(model, x))
            with FlopCounterMode(display=False) as counter:
                model(x[:1])
            assert fv.cost(model).macs == counter.get_total_flops() // 2


def scaled_by_hand(model, x: Tensor) -> Tensor:
    """A timm ViT whose block 1 multiplies its least attentive patch by the class token's attention to it."""
    stream = model.norm_pre(model._pos_embed(model.patch_embed(x)))
    for index, block in enumerate(model.blocks):
        if index != 1:
            stream = block(stream)
            continue
        normed, attn = block.norm1(stream), block.attn
        q, k, _ = attn.qkv(normed).unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        row = ((q[:, :, :1] @ k.transpose(2, 3)) * attn.scale).softmax(-1).mean(1)[:, 0, 1:]
        stream = stream + block.drop_path1(block.ls1(attn(normed)))
        for image in range(len(x)):
            least = int(row[image].argmin())
            stream[image, 1 + least] *= row[image, least]
        stream = stream + block.drop_path2(block.ls2(block.mlp(block.norm2(stream))))
    return model.head(model.norm(stream)[:, 0])
