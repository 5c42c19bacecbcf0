"""Clustered keys and values on plain vision transformers."""

import pytest
import torch

import foveate as fv
from foveate.core.density_peaks import cluster_peaks, find_peaks
from foveate.methods.cluster_attention import ClusterCount
from zoo import DEPTH, PATCHES, images, main_output, make


def test_keys_and_values_are_those_of_cluster_means():
    model = make("timm-cls")
    fv.reduce_(model, fv.ClusterAttention(), fv.Keep({0: 9}))
    block, x = model.blocks[0], images(2)
    family = fv.inspect(model)
    pieces, embedded = family.pieces()[0], family.embed(x)
    with torch.no_grad():
        trace = fv.trace(model, x)
        normed = block.norm1(embedded)
        patches = normed[:, 1:]
        scaled = patches * (0.01 / 32) ** 0.5
        owner, _ = cluster_peaks(scaled, find_peaks(scaled, 5), 9)
        means = torch.stack([torch.stack([patches[b][owner[b] == j].mean(dim=0) for j in range(9)]) for b in range(2)])
        sizes = torch.stack([torch.bincount(one, minlength=9) for one in owner]).float()
        q = pieces.queries(normed)
        k, v = pieces.keys_values(torch.cat([normed[:, :1], means], dim=1))
        bias = torch.nn.functional.pad(sizes.log(), (1, 0))[:, None, None]
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        expected = pieces.mlp(embedded + pieces.after_attention(attended, normed))
        after = family.encode(x, record=True).blocks[0].stream.tokens
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(trace.key_steps[0].dst, owner)
    assert trace.counts == (PATCHES,) * DEPTH


def test_a_ratio_stands_for_a_schedule():
    by_ratio = fv.reduce_(make("timm-cls"), fv.ClusterAttention(ratio=4, blocks=(1, 2)))
    by_counts = fv.reduce_(make("timm-cls"), fv.ClusterAttention(), fv.Keep({1: 9, 2: 9}))
    x = images(2)
    with torch.no_grad():
        assert torch.equal(main_output(by_ratio, x), main_output(by_counts, x))
    assert fv.cost(by_ratio).macs == fv.cost(by_counts).macs
    everywhere = fv.reduce_(make("timm-cls"), fv.ClusterAttention(ratio=4))
    assert everywhere.foveate.plan.counts == (9,) * DEPTH


@pytest.mark.parametrize("family", ["timm-cls", "timm-mean", "torchvision"])
def test_content_decides_under_an_average(family):
    model, x = make(family), images(8)
    fv.reduce_(model, fv.ClusterAttention(average=0.5), fv.Keep({1: 20, 2: 20}))
    with torch.no_grad():
        before = main_output(model, x)  # not fitted: every image has the most
    fixed = fv.reduce_(make(family), fv.ClusterAttention(), fv.Keep({1: 20, 2: 20}))
    with torch.no_grad():
        torch.testing.assert_close(before, main_output(fixed, x), rtol=1e-4, atol=1e-5)
    fv.models.fit_cluster_counts_(model, [x[:5], x[5:]])
    counts = []
    for module in model.modules():
        if isinstance(module, ClusterCount):
            module.register_forward_hook(lambda m, args, out: counts.append(out))
    with torch.no_grad():
        together = main_output(model, x)
        assert [abs(found.float().mean().item() - 10) <= 0.2 for found in counts] == [True, True]
        assert len(set(counts[0].tolist())) > 1
        alone = torch.cat([main_output(model, one[None]) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_thresholds_travel_with_the_model():
    model, x = make("timm-cls"), images(4)
    fv.reduce_(model, fv.ClusterAttention(average=0.5), fv.Keep({1: 20}))
    fv.models.fit_cluster_counts_(model, [x])
    other = fv.reduce_(make("timm-cls"), fv.ClusterAttention(average=0.5), fv.Keep({1: 20}))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(main_output(other, x), main_output(model, x))


WRONG = {
    "ratio must be above 1": lambda: fv.ClusterAttention(ratio=0.5),
    "blocks needs ratio": lambda: fv.ClusterAttention(blocks=(1,)),
    "sharpness must be above 0": lambda: fv.ClusterAttention(sharpness=0),
    "k must be at least 1": lambda: fv.ClusterAttention(k=0),
    "average must be a share": lambda: fv.ClusterAttention(average=0),
    "ratio=37 is more than the 36 tokens": lambda: fv.reduce_(make("timm-cls"), fv.ClusterAttention(ratio=37)),
    "names block 4": lambda: fv.reduce_(make("timm-cls"), fv.ClusterAttention(ratio=2, blocks=(4,))),
    "k must be less than the number of tokens, 36": lambda: fv.reduce_(
        make("timm-cls"), fv.ClusterAttention(ratio=2, k=36)
    )(images(1)),
    "No clusters of this model depend on content": lambda: fv.models.fit_cluster_counts_(make("timm-cls"), [images(1)]),
    "asks for 40 tokens": lambda: fv.reduce_(make("timm-cls"), fv.ClusterAttention(), fv.Keep({1: 40})),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_is_refused_in_words(words):
    with pytest.raises(ValueError, match=words):
        WRONG[words]()
