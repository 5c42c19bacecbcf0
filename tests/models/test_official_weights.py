"""Files as the authors of DynamicViT, HVT, EViT and LV-ViT publish them: names, shapes and what else they pickle."""

import argparse
import collections
import os

import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import gelu, max_pool1d

import foveate as fv
from foveate.adapters import Built
from foveate.cli.requests import load_from
from foveate.models import by_name, convert_weights, load_model
from foveate.models.by_name import load_weights_

DIM, DEPTH, HEADS, CLASSES, IMAGE, PATCH = 64, 4, 1, 5, 64, 8
SHAPE = {"embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "num_classes": CLASSES, "img_size": IMAGE}
PATCHES = (IMAGE // PATCH) ** 2
SCHEDULE = fv.KeepRate(0.7, blocks=(1, 2, 3))


def photos():
    return torch.randn(2, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(5))


def deit(**options):
    return timm.create_model("deit_tiny_patch16_224", patch_size=PATCH, **(SHAPE | options)).eval()


def lvvit(**options):
    return timm.create_model("lvvit_small", **(SHAPE | {"patch_size": PATCH} | options)).eval()


def hvt(**options):
    own = {name: value for name, value in SHAPE.items() if name != "embed_dim"}
    return timm.create_model("hvt_tiny", **(own | {"patch_size": PATCH, "stages": 2} | options)).eval()


def draw(shapes):
    generator = torch.Generator().manual_seed(3)
    drawn = {name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    norms = (".norm", "norm.", "bn", "in_conv.0")
    for name, tensor in drawn.items():
        if "running_var" in name or (name.endswith("weight") and any(norm in name for norm in norms)):
            tensor.abs_().add_(1)
    return {name: t.long() if name.endswith("num_batches_tracked") else t for name, t in drawn.items()}


def linear(name, inputs, outputs, bias=True):
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name, channels=DIM):
    return {f"{name}.weight": (channels,), f"{name}.bias": (channels,)}


def blocks(mlp_ratio, qkv_bias):
    shapes = {}
    for index in range(DEPTH):
        block = f"blocks.{index}"
        shapes |= norm(f"{block}.norm1") | linear(f"{block}.attn.qkv", DIM, 3 * DIM, qkv_bias)
        shapes |= linear(f"{block}.attn.proj", DIM, DIM) | norm(f"{block}.norm2")
        shapes |= linear(f"{block}.mlp.fc1", DIM, mlp_ratio * DIM) | linear(f"{block}.mlp.fc2", mlp_ratio * DIM, DIM)
    return shapes | norm("norm") | linear("head", DIM, CLASSES)


def evit_file():
    shapes = {"cls_token": (1, 1, DIM), "pos_embed": (1, 1 + PATCHES, DIM)}
    shapes |= {"patch_embed.proj.weight": (DIM, 3, PATCH, PATCH), "patch_embed.proj.bias": (DIM,)}
    return draw(shapes | blocks(4, qkv_bias=True))


def predictors(number):
    shapes = {}
    for stage in range(number):
        name = f"score_predictor.{stage}"
        shapes |= norm(f"{name}.in_conv.0") | linear(f"{name}.in_conv.1", DIM, DIM)
        shapes |= linear(f"{name}.out_conv.0", DIM, DIM // 2) | linear(f"{name}.out_conv.2", DIM // 2, DIM // 4)
        shapes |= linear(f"{name}.out_conv.4", DIM // 4, 2)
    return draw(shapes)


def dynamicvit_file(stages=3):
    return evit_file() | predictors(stages)


def lvvit_file(side=PATCH // 2):
    shapes = {"cls_token": (1, 1, DIM), "pos_embed": (1, 1 + PATCHES, DIM)}
    for number, (channels, kernel) in enumerate(((3, 7), (64, 3), (64, 3)), start=1):
        shapes |= {f"patch_embed.conv{number}.weight": (64, channels, kernel, kernel)} | norm(
            f"patch_embed.bn{number}", 64
        )
        shapes |= {f"patch_embed.bn{number}.running_{what}": (64,) for what in ("mean", "var")}
        shapes |= {f"patch_embed.bn{number}.num_batches_tracked": ()}
    shapes |= {"patch_embed.proj.weight": (DIM, 64, side, side), "patch_embed.proj.bias": (DIM,)}
    return draw(shapes | blocks(3, qkv_bias=False) | linear("aux_head", DIM, CLASSES))


def hvt_file(width=2):
    shapes = {"pos_embed": (1, PATCHES, DIM), "patch_embed.proj.weight": (DIM, 3, PATCH, PATCH)}
    shapes |= {"patch_embed.proj.bias": (DIM,)} | blocks(4, qkv_bias=True)
    length = PATCHES
    for index in range(0, DEPTH, width):
        length = (length - 3) // 2 + 1
        shapes[f"blocks.{index}.pos_embed"] = (1, length, DIM)
    return draw(shapes)


def as_saved(weights):
    """As their training loops save: the model, the optimizer's state and the arguments of the command line."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    scheduler = {"base_values": [1e-3], "metric": None, "noise_range_t": None}
    args = argparse.Namespace(model="m", lr=5e-4, opt_betas=None, distributed=True, cutmix_minmax=None)
    state = {"model": collections.OrderedDict(weights), "optimizer": optimizer.state_dict(), "lr_scheduler": scheduler}
    return state | {"epoch": 299, "scaler": {"scale": 65536.0, "_growth_tracker": 12}, "args": args}


def attention(x, w, name, heads=HEADS):
    q, k, v = (x @ w[f"{name}.qkv.weight"].T + w.get(f"{name}.qkv.bias", 0)).unflatten(2, (3, heads, -1)).unbind(2)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mixed = ((q @ k.transpose(2, 3)) * (DIM // heads) ** -0.5).softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(2) @ w[f"{name}.proj.weight"].T + w[f"{name}.proj.bias"]


def normed(x, w, name, eps):
    return nn.functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def fc(x, w, name):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def run_block(x, w, index, eps, skip=1.0):
    name = f"blocks.{index}"
    x = x + attention(normed(x, w, f"{name}.norm1", eps), w, f"{name}.attn") / skip
    hidden = gelu(fc(normed(x, w, f"{name}.norm2", eps), w, f"{name}.mlp.fc1"))
    return x + fc(hidden, w, f"{name}.mlp.fc2") / skip


def keep_by_predictor(x, w, stage, count):
    """The class token, and the patches that the predictor of ``stage`` keeps, most likely first."""
    name, patches = f"score_predictor.{stage}", x[:, 1:]
    features = gelu(fc(normed(patches, w, f"{name}.in_conv.0", 1e-5), w, f"{name}.in_conv.1"))
    local, shared = features[..., : DIM // 2], features[..., DIM // 2 :]
    both = torch.cat([local, shared.mean(1, keepdim=True).expand_as(local)], -1)
    hidden = gelu(fc(gelu(fc(both, w, f"{name}.out_conv.0")), w, f"{name}.out_conv.2"))
    score = fc(hidden, w, f"{name}.out_conv.4").log_softmax(-1)[..., 0]
    kept = score.argsort(dim=1, descending=True)[:, :count]
    return torch.cat([x[:, :1], patches.gather(1, kept.unsqueeze(-1).expand(-1, -1, DIM))], 1)


def with_class_token(patches, w):
    return torch.cat([w["cls_token"].expand(len(patches), -1, -1), patches], 1) + w["pos_embed"]


def plain_patches(x, w):
    embedded = nn.functional.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH)
    return embedded.flatten(2).transpose(1, 2)


def dynamicvit_by_hand(w, x, stages=(1, 2, 3), rate=0.7):
    x = with_class_token(plain_patches(x, w), w)
    for index in range(DEPTH):
        if index in stages:
            stage = stages.index(index)
            x = keep_by_predictor(x, w, stage, int(PATCHES * rate ** (stage + 1)))
        x = run_block(x, w, index, 1e-6)
    return fc(normed(x, w, "norm", 1e-6)[:, 0], w, "head")


def hvt_by_hand(w, x):
    x = plain_patches(x, w) + w["pos_embed"]
    for index in range(DEPTH):
        x = run_block(x, w, index, 1e-6)
        if f"blocks.{index}.pos_embed" in w:
            x = max_pool1d(x.transpose(1, 2), 3, 2).transpose(1, 2) + w[f"blocks.{index}.pos_embed"]
    return fc(normed(x, w, "norm", 1e-6).mean(1), w, "head")


def lvvit_by_hand(w, x, skip=2.0):
    for number, stride in ((1, 2), (2, 1), (3, 1)):
        kernel, n = w[f"patch_embed.conv{number}.weight"], f"patch_embed.bn{number}"
        x = nn.functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        statistics = (w[f"{n}.running_mean"], w[f"{n}.running_var"])
        x = nn.functional.batch_norm(x, *statistics, w[f"{n}.weight"], w[f"{n}.bias"]).relu()
    x = nn.functional.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH // 2)
    x = with_class_token(x.flatten(2).transpose(1, 2), w)
    for index in range(DEPTH):
        x = run_block(x, w, index, 1e-5, skip)
    x = normed(x, w, "norm", 1e-5)
    return fc(x[:, 0], w, "head") + 0.5 * fc(x[:, 1:], w, "aux_head").amax(1)


def evit_model():
    return fv.reduce_(deit(), fv.EViT(), fv.KeepRate(0.7, blocks=(1,)))


def dynamicvit_model():
    return fv.reduce_(deit(), fv.DynamicViT(), SCHEDULE)


CASES = {
    "DynamicViT": (dynamicvit_model, dynamicvit_file, dynamicvit_by_hand),
    "HVT": (hvt, hvt_file, hvt_by_hand),
    "LV-ViT": (lvvit, lvvit_file, lvvit_by_hand),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "with optimizer and args"])
def test_a_published_file_gives_the_published_outputs(name, wrapped, tmp_path):
    build, make_file, by_hand = CASES[name]
    weights, model = make_file(), build()
    path = tmp_path / "best_checkpoint.pth"
    torch.save(as_saved(weights) if wrapped else weights, path)
    assert load_weights_(model, path) == []
    with torch.no_grad():
        torch.testing.assert_close(model(photos()), by_hand(weights, photos()), rtol=1e-4, atol=1e-4)
    again = build()
    again.load_state_dict(convert_weights(as_saved(weights) if wrapped else weights, again))
    with torch.no_grad():
        assert torch.equal(again(photos()), model(photos()))


def test_evits_files_have_timms_names(tmp_path):
    weights, model = evit_file(), evit_model()
    torch.save(as_saved(weights), tmp_path / "evit.pth")
    assert load_weights_(model, tmp_path / "evit.pth") == []
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_dynamicvit_on_lvvit_is_both(tmp_path):
    model = fv.reduce_(lvvit(), fv.DynamicViT(), SCHEDULE)
    weights = lvvit_file() | predictors(3)
    model.load_state_dict(convert_weights({f"module.{name}": tensor for name, tensor in weights.items()}, model))
    assert torch.equal(model.patch_embed.proj[6].weight, weights["patch_embed.conv3.weight"])
    assert torch.equal(model.foveate.learned["3"].exit[4].bias, weights["score_predictor.2.out_conv.4.bias"])


def test_own_weights_still_fit():
    for build in (lvvit, hvt, dynamicvit_model):
        one, other = build(), build()
        other.load_state_dict(convert_weights(one.state_dict(), other))
        with torch.no_grad():
            assert torch.equal(one(photos()), other(photos()))


def test_predictors_need_a_model_that_has_as_many(tmp_path):
    for model, words in (
        (deit(), "3 predictors of DynamicViT, and the model has 0. Reduce it first"),
        (fv.reduce_(deit(), fv.DynamicViT(), fv.KeepRate(0.7, blocks=(1, 2))), "the model has 2"),
        (fv.reduce_(deit(), fv.ToMe(), fv.RemovePerBlock(4)), "the model has 0"),
    ):
        with pytest.raises(ValueError, match=words):
            convert_weights(dynamicvit_file(), model)


@pytest.mark.parametrize("stages", [0, 1, 4])
def test_pooled_positions_of_another_hvt_are_never_left_random(stages):
    model = hvt(stages=stages) if stages else deit(class_token=False, global_pool="avg", fc_norm=False)
    with pytest.raises(ValueError, match="other stages or another pooling"):
        convert_weights(hvt_file(), model)


def test_unknown_names_are_an_error():
    weights = evit_file() | {"blocks.0.position": torch.zeros(3), "quant": torch.zeros(1)}
    with pytest.raises(
        ValueError, match=r"2 of their names are unknown to this VisionTransformer, such as blocks\.0\."
    ):
        convert_weights(weights, deit())


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_file_that_asks_for_more_is_refused_and_nothing_runs(tmp_path):
    trap = tmp_path / "trap"
    for extra in ({"args": Evil(trap)}, {"args": argparse.Namespace(inner=Evil(trap))}):
        torch.save({"model": evit_file(), **extra}, tmp_path / "evil.pth")
        with pytest.raises(
            ValueError, match=r"evil.pth cannot be read .*asks for \w+\.mkdir, and foveate runs nothing"
        ) as error:
            load_model("deit_tiny_patch16_224", weights=tmp_path / "evil.pth", options=SHAPE | {"patch_size": PATCH})
        assert "weights_only" not in str(error.value)
    assert not trap.exists()


def test_the_command_line_fills_the_predictors_from_the_file(tmp_path, monkeypatch):
    weights, reduction = dynamicvit_file(), fv.Reduction(fv.DynamicViT(), SCHEDULE)
    torch.save(as_saved(weights), tmp_path / "dynamic-vit.pth")
    monkeypatch.setattr(by_name, "_find", lambda *_: Built(deit(), ()))
    args = argparse.Namespace(model="deit", pretrained=False, weights=tmp_path / "dynamic-vit.pth", image_size=None)
    loaded = load_from(args, [reduction])
    assert not fv.is_reduced(loaded.model)
    ((name, model),) = loaded.variants([reduction])
    assert name == reduction
    with torch.no_grad():
        torch.testing.assert_close(model(photos()), dynamicvit_by_hand(weights, photos()), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"dynamic-vit\.pth do not fit .*Reduce it first"):
        load_from(args)
