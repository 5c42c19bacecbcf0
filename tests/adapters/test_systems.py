"""Models with an encoder inside: it is found and reduced there, and the rest gets what it expects."""

import copy

import pytest
import torch
import transformers

import foveate as fv
from foveate.adapters import copy_unreduced

VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
VISION |= {"image_size": 24, "patch_size": 4}
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {"vocab_size": 60, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
PATCHES = 36
IMAGE_TOKEN = 59


def two_towers(name):
    text = {k: v for k, v in TEXT.items() if k != "max_position_embeddings"}
    config = getattr(transformers, f"{name}Config")(vision_config=VISION, text_config=text)
    return getattr(transformers, f"{name}Model")(config)


def language(kind="llama"):
    return {"model_type": kind, "num_key_value_heads": 2, "head_dim": 16} | TEXT


def llava():
    vision = VISION | {"model_type": "clip_vision_model", "projection_dim": 16}
    config = transformers.LlavaConfig(vision_config=vision, text_config=language(), image_token_index=IMAGE_TOKEN)
    return transformers.LlavaForConditionalGeneration(config)


def paligemma():
    vision = VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}
    text = language("gemma")
    config = transformers.PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, projection_dim=32, hidden_size=32
    )
    return transformers.PaliGemmaForConditionalGeneration(config)


GENERATIVE = {"llava": llava, "paligemma": paligemma}


def made(build, *arguments):
    torch.manual_seed(3)
    model = build(*arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def pixels(batch=2):
    return torch.randn(batch, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def prompt(batch=2):
    ids = torch.tensor([[1, *[IMAGE_TOKEN] * PATCHES, 5, 6, 7]] * batch)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


def generated(model):
    given = prompt()
    if isinstance(model, transformers.LlavaForConditionalGeneration):
        del given["token_type_ids"]
    return model.generate(**given, pixel_values=pixels(), max_new_tokens=5, do_sample=False)


@pytest.mark.parametrize("name", ["CLIP", "Siglip"])
def test_two_towers_reduce_their_image_tower_alone(name):
    model = made(two_towers, name)
    text = {"input_ids": torch.tensor([[1, 5, 6, 2]])}
    with torch.no_grad():
        before = model.get_image_features(pixels()).pooler_output
        words = model.get_text_features(**text).pooler_output
        fv.reduce_(model, fv.ToMe(), fv.Keep({}))
        assert torch.equal(model.get_image_features(pixels()).pooler_output, before)
        fv.restore_(model)
        fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2)))
        assert fv.is_reduced(model)
        alone = fv.reduce_(copy_unreduced(model).vision_model, fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2)))
        seen = model.get_image_features(pixels()).last_hidden_state
        assert torch.equal(seen, alone(pixels()).last_hidden_state)
        assert not torch.allclose(model.get_image_features(pixels()).pooler_output, before)
        assert torch.equal(model.get_text_features(**text).pooler_output, words)
        assert fv.trace(model, pixels()).counts[-1] == 14
        assert fv.cost(model).macs == fv.cost(model.vision_model).macs
        assert fv.inspect(model).reduction.method == fv.ToMe()
        fv.restore_(model)
        assert torch.equal(model.get_image_features(pixels()).pooler_output, before)


def test_a_copy_of_a_system_is_reduced_and_restored_apart():
    model = made(two_towers, "CLIP")
    fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2)))
    whole = copy_unreduced(model)
    assert fv.is_reduced(model)
    assert not fv.is_reduced(whole)
    fv.reduce_(whole, fv.TopK(), fv.KeepRate(0.5, blocks=(1,)))
    assert fv.inspect(model).reduction.method == fv.ToMe()


@pytest.mark.parametrize("name", GENERATIVE)
def test_a_language_model_sees_the_image_tokens_it_expects(name):
    model = made(GENERATIVE[name])
    before = generated(model)
    with fv.reduced(model, fv.ToMe(), fv.Keep({})):
        assert torch.equal(generated(model), before)
    with fv.reduced(model, fv.ToMe(), fv.KeepRate(0.5, blocks=(1,))):
        assert generated(model).shape[0] == 2
        with torch.no_grad():
            features = model.get_image_features(pixels()).pooler_output
        assert {tuple(one.shape) for one in features} == {(PATCHES, 32)}
        assert fv.inspect(model).encoder.reduction.output == "grid"
    assert torch.equal(generated(model), before)


def test_nothing_is_reduced_behind_the_last_layer_that_is_read():
    """LLaVA reads the last layer but one; its last block would be reduced for nobody."""
    model = fv.reduce_(made(llava), fv.ToMe(), fv.RemovePerBlock(4))
    assert fv.inspect(model).last_read == 2
    assert fv.inspect(model).reducer.plan.counts == (32, 28, 24, PATCHES)
    assert "vision_tower" in str(fv.inspect(model))


def test_a_system_is_saved_copied_and_loaded(tmp_path):
    model = fv.reduce_(made(two_towers, "CLIP"), fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2)))
    with torch.no_grad():
        expected = model.get_image_features(pixels()).pooler_output
        assert torch.equal(copy.deepcopy(model).get_image_features(pixels()).pooler_output, expected)
        fv.save(model, tmp_path / "m")
        assert torch.equal(fv.load(tmp_path / "m").get_image_features(pixels()).pooler_output, expected)


def test_an_encoder_that_is_not_supported_is_named():
    config = transformers.LlavaConfig(
        vision_config={"model_type": "swin", "image_size": 24, "embed_dim": 16, "depths": [1], "num_heads": [2]},
        text_config=language(),
        image_token_index=IMAGE_TOKEN,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    with pytest.raises(fv.UnsupportedModel, match=r"encoder at model.vision_tower.*SwinModel"):
        fv.reduce_(model, fv.ToMe(), 0.5)
    assert not fv.is_reduced(model)
