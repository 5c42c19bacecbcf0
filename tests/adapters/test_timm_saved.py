"""Models of timm by name are saved with their architecture, and built again without it being given."""

import pytest
import timm
import torch

import foveate as fv

TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
NAMES = {
    "eva02_tiny_patch14_224": {"img_size": 28},
    "vit_small_patch16_dinov3": {"img_size": 32},
    "vit_small_patch16_rope_mixed_224": {"img_size": 32, "global_pool": "token"},
    "beit_base_patch16_224": {"img_size": 32, "drop_path_rate": 0.2},
    "vit_relpos_small_patch16_224": {"img_size": 32},
    "naflexvit_base_patch16_gap": {"img_size": 32},
    "qwen3_vit_88m": {"img_size": 32},
    "deepseek_vit_412m": {"img_size": 28},
    "gemma4_vit_167m": {"img_size": 48, "head_dim": 16, "intermediate_size": 32, "position_embedding_size": 8},
    "vit_tiny_r_s16_p8_224": {"img_size": 64},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_by_name_comes_back_from_its_folder(name, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model(name, **TINY, **NAMES[name]).eval()
    size = NAMES[name]["img_size"]
    fv.reduce_(model, fv.ToMe(), fv.RemovePerBlock(1))
    x = torch.randn(2, 3, size, size)
    fv.save(model, tmp_path / "saved")
    loaded = fv.load(tmp_path / "saved").eval()
    assert type(fv.inspect(loaded)) is type(fv.inspect(model))
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    assert fv.cost(loaded, (3, size, size)) == fv.cost(model, (3, size, size))
