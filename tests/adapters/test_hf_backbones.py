"""transformers' encoders as backbones of dense models: maps of all patches, wherever they are read."""

import pytest
import torch
import transformers
from transformers import BeitConfig, Dinov2Config, Dinov2WithRegistersConfig, DINOv3ViTConfig, VitPoseBackboneConfig

import foveate as fv
from foveate.adapters import spread_to_patches

SIZE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 24, "patch_size": 4}
STAGES = {"out_features": ["stage1", "stage3"]}
DINO = SIZE | {"layerscale_value": 0.4}
KEEP = fv.KeepRate(0.5, blocks=(1,))


def made(model):
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn_like(parameter) + (parameter.dim() == 1))
    return model.eval()


def pixels(height=24, width=24, build=None):
    if build in (vitpose, pose):  # its patches overlap the border
        height = width = 48
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def dinov2(**options):
    return transformers.Dinov2Backbone(Dinov2Config(**DINO | STAGES | options))


def dinov2_registers():
    config = Dinov2WithRegistersConfig(**DINO | STAGES, num_register_tokens=2, apply_layernorm=False)
    return transformers.Dinov2WithRegistersBackbone(config)


def dinov3():
    options = {"num_register_tokens": 2, "return_class_token": True, "intermediate_size": 64}
    return transformers.DINOv3ViTBackbone(DINOv3ViTConfig(**DINO | options, out_features=["stage2", "stage4"]))


def beit():
    config = BeitConfig(**SIZE | STAGES, intermediate_size=64, use_relative_position_bias=True)
    return transformers.BeitBackbone(config)


def vitpose_config():
    return VitPoseBackboneConfig(**SIZE | {"image_size": [48, 48], "patch_size": [8, 8], "mlp_ratio": 2})


def vitpose():
    return transformers.VitPoseBackbone(vitpose_config())


BACKBONES = [dinov2, dinov2_registers, dinov3, beit, vitpose]


@pytest.mark.parametrize("build", BACKBONES)
def test_maps_have_every_patch(build):
    model = made(build())
    with torch.no_grad():
        x = pixels(build=build)
        plain = model(x)
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            same = model(x)
        for one, other in zip(plain.feature_maps, same.feature_maps, strict=True):
            assert torch.equal(one, other)
        with fv.reduced(model, fv.ToMe(), KEEP):
            assert fv.inspect(model).reducer.plan.counts[1] == 18
            found = model(x).feature_maps
        assert [m.shape for m in found] == [m.shape for m in plain.feature_maps]
        assert not torch.allclose(found[-1], plain.feature_maps[-1])
        if len(found) > 1 and build is not dinov3:
            assert torch.equal(found[0], plain.feature_maps[0])  # before the first reduction


@pytest.mark.parametrize("build", [dinov2, dinov3])
def test_a_map_holds_for_each_patch_the_feature_of_its_token(build):
    model = made(build())
    grid = fv.reduce_(model, fv.ToMe(), KEEP)
    family = fv.inspect(grid)
    with torch.no_grad():
        found = grid(pixels(24, 32), output_hidden_states=True)
        encoded = family.encode(pixels(24, 32), record=True)
        block = int(grid.out_features[-1].removeprefix("stage")) - 1
        patches, _ = spread_to_patches(encoded, block, family.num_prefix)
        expected = family.final_norm(patches).unflatten(1, (6, 8)).permute(0, 3, 1, 2)
    torch.testing.assert_close(found.feature_maps[-1], expected)
    assert len(found.hidden_states) == 5


def test_nothing_is_reduced_behind_the_last_map():
    model = fv.reduce_(made(dinov2()), fv.ToMe(), fv.RemovePerBlock(4))
    assert fv.inspect(model).reducer.plan.counts == (32, 28, 24, 36)


def test_maps_of_fewer_tokens_are_refused():
    model = made(dinov2())
    for options in ({"output": "tokens"}, {"exact_last_block": True}):
        with pytest.raises(ValueError, match="Dinov2Backbone reads a feature for every patch"):
            fv.reduce_(model, fv.ToMe(), KEEP, **options)
        assert not fv.is_reduced(model)


# -- dense models around them


def dpt():
    config = transformers.DPTConfig(
        backbone_config=Dinov2Config(
            **DINO, out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False
        ),
        **DPT,
    )
    return transformers.DPTForDepthEstimation(config)


DPT = {"is_hybrid": False, "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "num_labels": 3}
OWN = SIZE | DPT | {"intermediate_size": 64, "backbone_out_indices": [0, 1, 2, 3], "readout_type": "ignore"}


def dpt_with_its_own_encoder():
    return transformers.DPTForDepthEstimation(transformers.DPTConfig(**OWN))


def dpt_segmentation():
    return transformers.DPTForSemanticSegmentation(transformers.DPTConfig(**OWN | {"readout_type": "project"}))


def prompt_depth():
    stages = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}
    config = transformers.PromptDepthAnythingConfig(
        backbone_config=Dinov2Config(**DINO, **stages),
        patch_size=4,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_hidden_size=8,
    )
    return transformers.PromptDepthAnythingForDepthEstimation(config)


def zoe_depth():
    """Its backbone has the encoder inside."""
    stages = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}
    config = transformers.ZoeDepthConfig(
        backbone_config=BeitConfig(**SIZE | stages, intermediate_size=64, use_relative_position_bias=True),
        backbone_hidden_size=32,
        bottleneck_features=16,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=16,
        bin_embedding_dim=8,
        num_attractors=[2, 2, 2, 2],
    )
    return transformers.ZoeDepthForDepthEstimation(config)


def depth_anything():
    stages = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}
    config = transformers.DepthAnythingConfig(
        backbone_config=Dinov2Config(**DINO, **stages),
        patch_size=4,
        reassemble_hidden_size=32,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_hidden_size=8,
    )
    return transformers.DepthAnythingForDepthEstimation(config)


def upernet():
    config = transformers.UperNetConfig(
        backbone_config=Dinov2Config(**DINO, out_features=["stage1", "stage2", "stage3", "stage4"]),
        hidden_size=8,
        auxiliary_in_channels=32,
        auxiliary_channels=8,
        num_labels=3,
        pool_scales=[1, 2],
    )
    return transformers.UperNetForSemanticSegmentation(config)


def pose():
    config = transformers.VitPoseConfig(backbone_config=vitpose_config(), num_labels=3)
    return transformers.VitPoseForPoseEstimation(config)


DEPTH = (dpt, dpt_with_its_own_encoder, depth_anything, prompt_depth, zoe_depth)
DENSE = dict.fromkeys(DEPTH, "predicted_depth") | {dpt_segmentation: "logits", upernet: "logits", pose: "heatmaps"}


@pytest.mark.parametrize("build", DENSE)
def test_dense_models_are_reduced_in_their_backbone(build):
    model, answer = made(build()), DENSE[build]
    x = pixels(build=build)
    with torch.no_grad():
        plain = model(x)[answer]
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            assert torch.equal(model(x)[answer], plain)
        with fv.reduced(model, fv.ToMe(), KEEP):
            found = model(x)[answer]
            assert any(f"encoder     {place}" in str(fv.inspect(model)) for place in ("backbone", "dpt:"))
            assert fv.is_reduced(model)
        assert found.shape == plain.shape
        assert not torch.allclose(found, plain)
        assert torch.equal(model(x)[answer], plain)


# -- encoders of their own kind


def test_vit_mae_runs_without_masks_and_in_order():
    config = transformers.ViTMAEConfig(**SIZE, intermediate_size=64, mask_ratio=0.0)
    model, x = made(transformers.ViTMAEModel(config)), pixels()
    noise = torch.arange(36).expand(2, -1)
    with torch.no_grad():
        plain = model(x, noise=noise)
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            same = model(x)
        assert torch.equal(same.last_hidden_state, plain.last_hidden_state)
        assert torch.equal(same.ids_restore, plain.ids_restore)
        assert torch.equal(same.mask, plain.mask)
        with fv.reduced(model, fv.ToMe(), KEEP):
            assert model(x).last_hidden_state.shape[1] == 19


def test_vit_mae_with_masks_is_refused():
    model = transformers.ViTMAEModel(transformers.ViTMAEConfig(**SIZE, intermediate_size=64))
    with pytest.raises(fv.UnsupportedModel, match=r"hides 75% of the patches.*mask_ratio = 0"):
        fv.reduce_(model, fv.ToMe(), KEEP)


def test_dpt_with_convolutions_is_refused():
    config = transformers.DPTConfig(**OWN | {"is_hybrid": True, "readout_type": "project"})
    with pytest.raises(fv.UnsupportedModel, match="has convolutions in front"):
        fv.reduce_(transformers.DPTForDepthEstimation(config), fv.ToMe(), KEEP)


def test_a_pooler_without_a_class_token_and_several_experts_are_refused():
    jepa = transformers.IJepaModel(transformers.IJepaConfig(**SIZE, intermediate_size=64), add_pooling_layer=True)
    with pytest.raises(fv.UnsupportedModel, match="its pooler reads the first patch"):
        fv.reduce_(jepa, fv.ToMe(), KEEP)
    config = VitPoseBackboneConfig(**vitpose_config().to_dict() | {"num_experts": 2, "part_features": 8})
    with pytest.raises(fv.UnsupportedModel, match="has 2 experts"):
        fv.reduce_(transformers.VitPoseBackbone(config), fv.ToMe(), KEEP)


OTHERS = {
    "IJepaForImageClassification": transformers.IJepaConfig,
    "ViTMSNForImageClassification": transformers.ViTMSNConfig,
    "ViTMSNModel": transformers.ViTMSNConfig,
    "MetaClip2VisionModelWithProjection": transformers.MetaClip2VisionConfig,
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_with_known_blocks_differ_only_in_names(name):
    model = made(getattr(transformers, name)(OTHERS[name](**SIZE, intermediate_size=64, num_labels=3)))
    with torch.no_grad():
        plain = model(pixels())
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            same = model(pixels())
        assert plain.keys() <= same.keys() | {"pooler_output"}
        for key in plain:
            assert torch.equal(plain[key], same[key]), key
        with fv.reduced(model, fv.ToMe(), KEEP):
            assert fv.cost(model).tokens[-1] < 36
            found = model(pixels())[0]
        assert found.shape != plain[0].shape or not torch.allclose(found, plain[0])


def test_a_timm_model_inside_transformers_is_reduced_as_timms_own():
    config = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", model_args={"img_size": 24, "patch_size": 4, "depth": 4}, num_labels=3
    )
    model, x = made(transformers.TimmWrapperForImageClassification(config)), pixels()
    with torch.no_grad():
        plain = model(x).logits
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            assert torch.equal(model(x).logits, plain)
        fv.reduce_(model, fv.ToMe(), KEEP)
        assert torch.equal(model(x).logits, model.timm_model(x))
        assert not torch.allclose(model(x).logits, plain)
    assert fv.inspect(model).num_classes == 3
    assert "timm_model" in str(fv.inspect(model))
