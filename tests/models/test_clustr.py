"""ClusTR: its attention by loops, its pyramid as timm knows pyramids, its cost, and what it refuses."""

import copy

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate.core.density_peaks import cluster_peaks, find_peaks
from foveate.methods.cluster_attention import ClusterCount
from foveate.models.clustr import ClusTR, attend_in_windows
from foveate.models.clustr_attention import Clustering, GridAttention, MultiScaleClusterAttention

SMALL = {"depths": (1, 2, 2, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 2, 4), "num_classes": 5}
VARIANTS = {
    "faithful": {},
    "single scale": {"scales": (64, 16, 4, 1)},
    "windows": {"clustering": {"window": 7}},
    "shared": {"clustering": {"share": True}},
    "shared windows": {"clustering": {"window": 7, "share": True}},
    "projected": {"clustering": {"project": 4}},
    "nearest": {"clustering": {"joins": "nearest"}},
    "nearest in windows": {"clustering": {"joins": "nearest", "window": 7}},
    "attention in windows": {"clustering": {"attend_within": 64}},
    "grid": {"attention": "grid"},
    "grid, best keys": {"attention": "grid", "top_keys": 2},
}


def small(**options):
    torch.manual_seed(0)
    return ClusTR(**(SMALL | options)).eval()


def images(batch=2, height=96, width=96):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def by_loops(attention, x):
    """Equations 3 to 8 for one image x (N, C), from its own projections; every ratio above 1."""
    heads, dim = attention.num_heads, x.shape[1]
    scaled = x[None] / dim**0.5
    peaks = find_peaks(scaled, attention.clusters.clustering.k)
    q, summed = attention.q(x), torch.zeros_like(x)
    for ratio, project in zip(attention.ratios, attention.kv, strict=True):
        owner = cluster_peaks(scaled, peaks, round(len(x) / ratio)).owner[0]
        weight = attention.weigh(x)[:, 0].exp()
        members = [[i for i in range(len(x)) if owner[i] == j] for j in range(round(len(x) / ratio))]
        h = torch.stack([sum(weight[i] * x[i] for i in m) / sum(weight[i] for i in m) for m in members])
        k, v = project(h).chunk(2, dim=1)
        for head in range(heads):
            part = slice(head * dim // heads, (head + 1) * dim // heads)
            logits = q[:, part] @ k[:, part].T / (dim // heads) ** 0.5
            summed[:, part] += logits.softmax(dim=1) @ v[:, part]
    return attention.proj(summed)


def test_attention_is_what_the_equations_say():
    torch.manual_seed(0)
    attention = MultiScaleClusterAttention(8, 2, (6, 3), Clustering(k=3))
    torch.nn.init.normal_(attention.weigh.weight)
    x = torch.randn(2, 36, 8)
    with torch.no_grad():
        expected = torch.stack([by_loops(attention, one) for one in x])
        torch.testing.assert_close(attention(x, (6, 6)), expected, rtol=1e-4, atol=1e-5)


def test_a_ratio_of_one_is_plain_attention():
    torch.manual_seed(0)
    attention = MultiScaleClusterAttention(8, 2, (1,), Clustering())
    x = torch.randn(2, 9, 8)
    q, (k, v) = attention.q(x), attention.kv[0](x).chunk(2, dim=-1)
    heads = [part.unflatten(2, (2, 4)).transpose(1, 2) for part in (q, k, v)]
    plain = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x, (3, 3)), attention.proj(plain))
    assert attention.weigh is None


def test_a_query_sees_its_best_keys_alone():
    torch.manual_seed(0)
    attention = GridAttention(8, 2, stride=2, top_keys=3)
    x = torch.randn(1, 16, 8)
    with torch.no_grad():
        sources = attention.norm(attention.reduce(x.transpose(1, 2).unflatten(2, (4, 4))).flatten(2).transpose(1, 2))
        k, v = (p.unflatten(2, (2, 4))[0] for p in attention.kv(sources).chunk(2, dim=-1))
        q = attention.q(x).unflatten(2, (2, 4))[0]
        expected = torch.zeros(16, 2, 4)
        for query in range(16):
            for head in range(2):
                logits = k[:, head] @ q[query, head] / 2
                best = sorted(range(4), key=lambda j, logits=logits: -logits[j])[:3]
                expected[query, head] = logits[best].softmax(0) @ v[best, head]
        torch.testing.assert_close(attention(x, (4, 4)), attention.proj(expected.flatten(1))[None])


@pytest.mark.parametrize(
    ("name", "options", "millions"),
    [
        ("clustr_tiny", {}, 11.7),
        ("clustr_small", {}, 22.7),
        ("clustr_base", {}, 40.2),
        ("clustr_tiny", {"scales": (64, 16, 4, 1)}, 10.8),
        ("clustr_tiny", {"scales": (16, 4, 1, 1)}, 10.8),
        ("clustr_tiny", {"attention": "grid"}, 13.2),
    ],
)
def test_parameters_are_those_printed(name, options, millions):
    with torch.device("meta"):
        model = timm.create_model(name, **options)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("size", [(96, 96), (100, 141)], ids=str)
def test_macs_equal_torchs_flop_counter_at_any_size(options, size):
    model = small(**options)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        assert model(images(1, *size)).shape == (1, 5)
    assert fv.cost(model, (3, *size)).macs == counter.get_total_flops() // 2


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_an_image_does_not_depend_on_its_batch(options):
    model, x = small(**options), images(3)
    with torch.no_grad():
        alone = torch.cat([model(one[None]) for one in x])
        torch.testing.assert_close(model(x), alone, rtol=1e-4, atol=1e-5)


def test_it_is_a_pyramid_as_timm_knows_them():
    model = timm.create_model("clustr_tiny", features_only=True, out_indices=(0, 2, 3)).eval()
    assert model.feature_info.channels() == [64, 256, 512]
    assert model.feature_info.reduction() == [4, 16, 32]
    with torch.no_grad():
        maps = model(images(1, 64, 128))
    assert [tuple(m.shape) for m in maps] == [(1, 64, 16, 32), (1, 256, 4, 8), (1, 512, 2, 4)]


def test_the_classifier_can_be_reset_and_the_head_is_a_mean():
    model, x = small(), images(1)
    with torch.no_grad():
        features = model.forward_features(x)
        torch.testing.assert_close(model(x), model.head(features.mean(dim=(2, 3))))
    model.reset_classifier(3)
    assert model(x).shape == (1, 3)
    model.reset_classifier(0)
    assert model(x).shape == (1, 32)


@pytest.mark.parametrize("options", [{}, {"clustering": {"share": True}}], ids=["faithful", "shared"])
def test_checkpointing_changes_no_gradient_and_gradients_reach_the_token_weights(options):
    model, x = small(**options).train(), images()
    again = copy.deepcopy(model)
    again.set_grad_checkpointing()
    for one in (model, again):
        one(x).square().mean().backward()
    for (name, p), (_, q) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    weights = [p.grad for name, p in model.named_parameters() if "weigh.weight" in name]
    assert len(weights) == 5
    assert all(grad.abs().max() > 0 for grad in weights)


def test_shared_clusters_are_those_of_the_first_block(monkeypatch):
    model, seen = small(clustering={"share": True}), []
    original = MultiScaleClusterAttention.forward
    monkeypatch.setattr(
        MultiScaleClusterAttention,
        "forward",
        lambda self, x, grid, scales=None: (seen.append(scales), original(self, x, grid, scales))[1],
    )
    with torch.no_grad():
        model(images(1))
    assert all(scales is not None for scales in seen)
    assert seen[1] is seen[2]  # the second stage has two blocks
    assert seen[0] is not seen[1]


def test_attention_in_windows_is_that_of_each_window():
    torch.manual_seed(0)
    attention = MultiScaleClusterAttention(8, 2, (4,), Clustering(k=3))
    x = torch.randn(2, 8 * 12, 8)
    with torch.no_grad():
        out = attend_in_windows(attention, x, (8, 12), 6).unflatten(1, (8, 12))
        for rows in (slice(0, 4), slice(4, 8)):
            for columns in (slice(0, 6), slice(6, 12)):
                part = x.unflatten(1, (8, 12))[:, rows, columns]
                alone = attention(part.flatten(1, 2), (4, 6)).unflatten(1, (4, 6))
                torch.testing.assert_close(out[:, rows, columns], alone)


def test_content_decides_how_many_clusters_there_are():
    model, x = small(clustering={"average": 0.5}), images(6)
    fv.models.fit_cluster_counts_(model, [x[:4], x[4:]], passes=1)
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, ClusterCount):
            module.register_forward_hook(lambda m, args, out, name=name: seen.update({name: (out, args[1])}))
    with torch.no_grad():
        together = model(x)
    first, most = seen["stages.0.blocks.0.attn.clusters.counts.1"]  # 576 tokens, at most 36 clusters
    assert most == 36
    assert abs(first.float().mean() - 18) <= 0.5
    assert len(set(first.tolist())) > 1
    with torch.no_grad():
        alone = torch.cat([model(one[None]) for one in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    again = small(clustering={"average": 0.5})
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(x), together)


def test_it_is_saved_and_loaded_with_its_options(tmp_path):
    options = {"scales": (16, 4, 1, 1), "clustering": {"window": 7, "share": True}, "num_classes": 3, "img_size": 64}
    model = timm.create_model("clustr_tiny", **options).eval()
    loaded = fv.load(fv.save(model, tmp_path / "model"))
    x = images(1, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    assert loaded.clustering == model.clustering
    assert fv.cost(loaded) == fv.cost(model)


def test_it_is_no_model_to_reduce():
    with pytest.raises(fv.UnsupportedModel, match="ClusTR clusters keys and values itself and cannot be reduced"):
        fv.reduce_(small(), fv.ToMe(), fv.RemovePerBlock(1))


WRONG = {
    "at least 1 for each of the 4 stages": lambda: small(scales=(64, 16, 4)),
    "less than one cluster of 256 tokens": lambda: small(scales=(300, 1, 1, 1))(images(1, 64, 64)),
    "there are 4 tokens": lambda: small()(images(1, 32, 32)),
    "at least 32 x 32 pixels": lambda: small()(images(1, 31, 64)),
    "attention must be 'cluster' or 'grid'": lambda: small(attention="none"),
    "top_keys needs attention='grid'": lambda: small(top_keys=3),
    "Clustering has no option 'windows'": lambda: small(clustering={"windows": 3}),
    "Leave out window, share and attend_within": lambda: small(clustering={"average": 0.5, "share": True}),
    "Choose one of them": lambda: small(clustering={"share": True, "attend_within": 64}),
    "attend_within must be at least 32 pixels": lambda: small(clustering={"attend_within": 16}),
    "at most the tokens' width": lambda: small(clustering={"project": 9}),
    "smaller than the stride 2": lambda: GridAttention(8, 2, stride=2)(torch.randn(1, 6, 8), (1, 6)),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_is_refused_in_words(words):
    with pytest.raises(ValueError, match=words):
        WRONG[words]()
