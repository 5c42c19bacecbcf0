"""Dense models: every head on every kind of encoder keeps the laws; parameters are the paper's."""

import copy
import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate.adapters import rebuild
from foveate.models.by_name import comes_trained, load_model, load_with_report
from foveate.models.dense import DenseModel, dense_model, head_names
from foveate.models.dense.by_name import split_name
from foveate.models.dense.head import Levels, find_head, register_head
from zoo import make

SMALL_CLUSTR = {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 1, 2, 2), "img_size": 64}
SEGMENTATION = ("linear", "semantic-fpn", "simple-pyramid", "upernet")


def clustr() -> nn.Module:
    return timm.create_model("clustr_tiny", num_classes=0, **SMALL_CLUSTR)


def hvt() -> nn.Module:
    options = {"patch_size": 4, "img_size": 64, "depth": 4, "num_heads": 1, "stages": 2}
    return timm.create_model("hvt_small_2_2d", num_classes=0, **options)


def vit() -> nn.Module:
    options = {"img_size": (32, 48), "patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 0}
    return timm.create_model("vit_tiny_patch16_224", **options)


def reduced_vit() -> nn.Module:
    return fv.reduce_(vit(), fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2)))


ENCODERS = {
    "clustr": clustr,
    "hvt": hvt,
    "resnet": lambda: timm.create_model("test_resnet", num_classes=0),
    "vit": vit,
    "vit-reduced": reduced_vit,
    "transformers": lambda: make("hf-dinov2-model"),
    "torchvision": lambda: make("torchvision"),
}
PLAIN = ("vit", "vit-reduced", "transformers", "torchvision")
PAIRS = [(e, h) for e in ENCODERS for h in SEGMENTATION if (h == "linear") or (e in PLAIN) == (h == "simple-pyramid")]
PAIRS = [pair for pair in PAIRS if pair[0] != "resnet" or pair[1] == "linear"]  # its strides are not those of a pyramid


def built(encoder: str, head: str) -> DenseModel:
    torch.manual_seed(3)
    options = {"channels": 16, "width": 8} if head in ("semantic-fpn", "simple-pyramid") else {}
    options = {"channels": 16} if head == "upernet" else options
    made = ENCODERS[encoder]()
    size = (64, 64) if encoder == "resnet" else None
    model = dense_model(made, head, 5, image_size=size, encoder_name="test_resnet", **options)
    model.encoder_options = {"num_classes": 0} if encoder == "resnet" else {}
    for parameter in model.head.parameters():  # away from equal logits
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def images(model: DenseModel, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, *model.image_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "millions"), [("semantic-fpn", 26.4), ("upernet", 52.5)])
def test_parameters_are_the_papers(name, millions):
    model = load_model(f"clustr_small+{name}", options={"num_classes": 150})
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions
    assert fv.cost(model).params == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("encoder", "head"), PAIRS)
def test_a_dense_model_predicts_counts_and_travels(encoder, head, tmp_path):
    model = built(encoder, head)
    x = images(model)
    with torch.no_grad():
        logits = model(x)
        alone = model(x[:1])
    assert logits.shape == (2, 5, *model.image_size[1:])
    assert torch.allclose(logits[:1], alone, atol=1e-4), "an image's result depends on its batch"
    loaded = fv.load(fv.save(model, tmp_path / "saved"))
    with torch.no_grad():
        assert torch.allclose(loaded(x), logits, atol=1e-5)  # oneDNN rounds by where a tensor lies in memory
        assert torch.allclose(copy.deepcopy(model)(x), logits, atol=1e-5)
    assert fv.inspect(loaded).architecture() == fv.inspect(model).architecture()
    if encoder != "torchvision":  # nn.MultiheadAttention's fast path is not counted by torch
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(x[:1])
        assert fv.cost(model).macs == counter.get_total_flops() // 2


@pytest.mark.parametrize("output", [None, "grid", "grid-residual", "grid-attention"])
@pytest.mark.parametrize("encoder", ["vit", "transformers"])
def test_a_dense_model_is_reduced_as_its_encoder_would_be(encoder, output, tmp_path):
    model = built(encoder, "linear")
    x = images(model)
    with torch.no_grad():
        whole = model(x)
        fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.5, blocks=(1, 2)), output=output)
        found = model(x)
        alone = copy.deepcopy(model.encoder)
        fv.reduce_(alone, fv.ToMe(), fv.KeepRate(0.5, blocks=(1, 2)), output=output or "grid")
        maps = fv.features(alone, x, [-1])
        assert torch.equal(model.head(maps, model.image_size[1:]), found)
        assert not torch.allclose(found, whole, atol=1e-3)
        assert torch.allclose(copy.deepcopy(model)(x), found, atol=1e-5)
        counter = FlopCounterMode(display=False)
        with sdpa_kernel(SDPBackend.MATH), counter:
            model(x[:1])
    assert fv.cost(model).macs == counter.get_total_flops() // 2
    if encoder == "vit":
        loaded = fv.load(fv.save(model, tmp_path / "saved"))
        assert fv.inspect(loaded).reduction == fv.inspect(model).reduction
        assert torch.allclose(loaded(x), found, atol=1e-5)
    assert fv.trace(model, x).counts[2] < fv.trace(model, x).counts[0]
    with torch.no_grad():
        assert torch.equal(fv.restore_(model)(x), whole)


def test_what_a_method_learns_is_trained_with_the_head():
    model = fv.reduce_(built("vit", "linear"), fv.DynamicViT(), fv.KeepRate(0.5, blocks=(1, 2))).train()
    model(images(model)).square().mean().backward()
    learned = [name for name, p in model.named_parameters() if name.startswith("foveate.") and p.grad is not None]
    assert learned
    assert model.head.classifier.weight.grad is not None


@pytest.mark.parametrize("encoder", ["clustr", "hvt", "resnet", "vit-reduced"])
def test_encoders_that_cannot_be_reduced_say_why(encoder):
    model = built(encoder, "linear")
    with pytest.raises(fv.UnsupportedModel, match=r"cannot be reduced|already reduced|cannot reduce"):
        fv.reduce_(model, fv.ToMe(), 0.5)
    assert "reducible   no" in str(fv.inspect(model))


def test_every_head_for_segmentation_is_covered():
    assert set(SEGMENTATION) == {name for name in head_names() if find_head(name).task == "segmentation"}


@pytest.mark.parametrize("encoder", ["vit-reduced", "clustr", "hvt"])
def test_gradients_reach_the_first_layer(encoder):
    model = built(encoder, "linear").train()
    model(images(model)).sum().backward()
    first = next(p for name, p in model.encoder.named_parameters() if "patch_embed" in name)
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


def test_features_of_several_blocks_are_read_side_by_side():
    model = dense_model(make("timm-cls"), "linear", 3, blocks=[1, 3])
    assert model.head.classifier.in_channels == 2 * model.encoder.embed_dim
    with torch.no_grad():
        maps = model.maps(images(model))
        expected = fv.features(model.encoder, images(model), [1, 3])
    assert all(torch.equal(a, b) for a, b in zip(maps, expected, strict=True))


def test_the_auxiliary_head_speaks_in_training_alone():
    model = built("clustr", "upernet")
    x = images(model)
    assert isinstance(model(x), torch.Tensor)
    trained = model.train()(x)
    assert trained.logits.shape == trained.auxiliary.shape == (2, 5, 64, 64)


def test_other_classes_keep_the_rest_of_the_head():
    model = built("clustr", "semantic-fpn")
    before = model.head.pyramid.laterals[0].weight.clone()
    fv.inspect(model).set_classes_(9)
    assert model(images(model)).shape[1] == 9
    assert torch.equal(model.head.pyramid.laterals[0].weight, before)
    assert fv.inspect(model).num_classes == 9


def test_names_are_divided_at_the_last_plus(tmp_path):
    assert split_name("clustr_small+upernet") == ("clustr_small", "upernet")
    assert split_name("vit_tiny_patch16_224") == ("vit_tiny_patch16_224", "")
    folder = tmp_path / "a+linear"
    folder.mkdir()
    assert split_name(str(folder)) == (str(folder), "")
    assert comes_trained("hf:org/name+linear", False, None)


def test_the_weights_of_an_encoder_fill_it_at_its_size(tmp_path):
    whole = timm.create_model("vit_tiny_patch16_224", depth=1)
    save_file(whole.state_dict(), tmp_path / "vit.safetensors")
    options = {"num_classes": 4, "image_size": (96, 128), "depth": 1}
    model, untrained = load_with_report(
        "vit_tiny_patch16_224+linear", weights=tmp_path / "vit.safetensors", options=options
    )
    assert torch.equal(model.encoder.blocks[0].mlp.fc1.weight, whole.blocks[0].mlp.fc1.weight)
    assert model.encoder.pos_embed.shape[1] == 1 + 6 * 8
    assert {name.split(".")[0] for name in untrained} == {"head"}
    save_file(model.state_dict(), tmp_path / "dense.safetensors")
    again, untrained = load_with_report(
        "vit_tiny_patch16_224+linear", weights=tmp_path / "dense.safetensors", options=options
    )
    assert not untrained
    assert torch.equal(again.head.classifier.weight, model.head.classifier.weight)


def test_the_weights_of_a_foreign_pyramid_fill_it_too(tmp_path):
    whole = timm.create_model("test_resnet")
    save_file(whole.state_dict(), tmp_path / "w.safetensors")
    model, untrained = load_with_report("test_resnet+linear", weights=tmp_path / "w.safetensors")
    assert all(torch.equal(v, whole.state_dict()[k]) for k, v in model.encoder.state_dict().items())
    assert {name.split(".")[0] for name in untrained} == {"head"}
    save_file({"stem": torch.zeros(1)}, tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match="do not fit this ResNet"):
        load_model("test_resnet+linear", weights=tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("clustr_tiny+upernets", {}, r"no dense head 'upernets'\. Did you mean upernet"),
        ("+linear", {}, "names no encoder"),
        ("vit_tiny_patch16_224+semantic-fpn", {}, "strides double.* gives 16"),
        ("vit_tiny_patch16_224+upernet", {}, "strides double"),
        ("clustr_tiny+simple-pyramid", {}, "one stride; this encoder gives 4, 8, 16, 32"),
        ("vit_tiny_patch16_224+linear", {"image_size": (10, 128)}, "10"),
        ("vit_tiny_patch16_224+linear", {"head": {"blocks": [12]}}, "12 blocks"),
        ("vit_tiny_patch16_224+linear", {"head": {"width": 3}}, "no option 'width'"),
        ("vit_tiny_patch16_224+linear", {"num_classes": 0}, "num_classes"),
        ("clustr_tiny+linear", {"image_size": "big"}, "height and width"),
        ("clustr_tine+linear", {}, "no timm model 'clustr_tine'"),
    ],
)
def test_names_and_options_that_cannot_be_are_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        load_model(name, options=options)


def test_a_model_without_features_is_refused():
    with pytest.raises(fv.UnsupportedModel, match="gives no feature maps"):
        dense_model(nn.Sequential(nn.Conv2d(3, 4, 3)), "linear", 2)


def test_images_smaller_than_the_stride_are_refused():
    model = built("clustr", "semantic-fpn")
    with pytest.raises(ValueError, match="at least 32 x 32 pixels"):
        model(torch.zeros(1, 3, 24, 64))


def test_a_changed_manifest_reaches_no_other_options(tmp_path):
    model = built("vit", "linear")
    folder = fv.save(model, tmp_path / "saved")
    architecture = json.loads((folder / "foveate.json").read_text())["model"]
    for part, name in (("head", "path"), ("encoder", "pretrained")):
        changed = copy.deepcopy(architecture)
        changed[part]["options"][name] = True
        with pytest.raises(ValueError, match="cannot be built") as caught:
            rebuild(changed)
        first = caught.value
        while first.__cause__ is not None:
            first = first.__cause__
        assert f"has an option {name!r}" in str(first)


def test_a_head_is_registered_once():
    with pytest.raises(ValueError, match="already registered"):
        register_head("linear")(find_head("linear"))
    assert Levels((1,), (2,)).strides == (2,)
