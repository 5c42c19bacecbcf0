"""Vision-language models: their tower is reduced inside, and the language model sees the image tokens it expects."""

import pytest
import torch
import transformers

import foveate as fv

VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
VISION |= {"image_size": 24, "patch_size": 4}
TEXT = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 60}
TEXT |= {"max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
IMAGE = 59
KEEP = fv.KeepRate(0.5, blocks=(1,))
SIGLIP = VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}


def made(model):
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def pixels(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def prompt(images):
    ids = torch.tensor([[1, *[IMAGE] * images, 5, 6, 7]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def onevision():
    config = transformers.LlavaOnevisionConfig(
        vision_config=SIGLIP, text_config=TEXT, image_token_index=IMAGE, image_grid_pinpoints=[[24, 24]]
    )
    sizes = torch.tensor([[24, 24]])
    inputs = prompt(36 + 36 + 6) | {"pixel_values": pixels(1, 2, 3, 24, 24), "image_sizes": sizes}
    return transformers.LlavaOnevisionForConditionalGeneration(config), inputs


def internvl():
    vision = VISION | {"model_type": "internvl_vision", "image_size": [24, 24], "patch_size": [4, 4]}
    config = transformers.InternVLConfig(vision_config=vision, text_config=TEXT, image_token_id=IMAGE)
    return transformers.InternVLForConditionalGeneration(config), prompt(9) | {"pixel_values": pixels(1, 3, 24, 24)}


def aya():
    text = TEXT | {"model_type": "cohere2", "sliding_window": 8}
    config = transformers.AyaVisionConfig(
        vision_config=SIGLIP, text_config=text, image_token_index=IMAGE, alignment_intermediate_size=64
    )
    return transformers.AyaVisionForConditionalGeneration(config), prompt(9) | {"pixel_values": pixels(1, 3, 24, 24)}


def mistral3():
    vision = VISION | {"model_type": "pixtral"}
    config = transformers.Mistral3Config(
        vision_config=vision, text_config=TEXT | {"model_type": "mistral"}, image_token_id=IMAGE, spatial_merge_size=2
    )
    inputs = prompt(9 + 6) | {"pixel_values": pixels(2, 3, 24, 24), "image_sizes": torch.tensor([[24, 24], [16, 24]])}
    return transformers.Mistral3ForConditionalGeneration(config), inputs


def idefics3(kind="Idefics3"):
    config = getattr(transformers, f"{kind}Config")(
        vision_config=VISION, text_config=TEXT, image_token_id=IMAGE, scale_factor=2
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    return model, prompt(9) | {"pixel_values": pixels(1, 1, 3, 24, 24)}


def smolvlm():
    return idefics3("SmolVLM")


def qwen3():
    vision = {"depth": 4, "num_heads": 2, "deepstack_visual_indexes": [0, 2], "out_hidden_size": 32, "patch_size": 4}
    vision |= {"hidden_size": 32, "intermediate_size": 64, "num_position_embeddings": 36}
    text = {key: value for key, value in TEXT.items() if key != "model_type"}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    config = transformers.Qwen3VLConfig(
        vision_config=vision, text_config=text, image_token_id=IMAGE, vision_start_token_id=57, vision_end_token_id=58
    )
    types = torch.tensor([[0, *[1] * 9, 0, 0, 0]])
    inputs = prompt(9) | {"pixel_values": pixels(36, 96), "image_grid_thw": torch.tensor([[1, 6, 6]])}
    return transformers.Qwen3VLForConditionalGeneration(config), inputs | {"mm_token_type_ids": types}


def qwen2():
    vision = {"depth": 4, "num_heads": 2, "embed_dim": 32, "hidden_size": 32, "patch_size": 4, "mlp_ratio": 2}
    text = {key: value for key, value in TEXT.items() if key != "model_type"}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    config = transformers.Qwen2VLConfig(
        vision_config=vision, text_config=text, image_token_id=IMAGE, vision_start_token_id=57, vision_end_token_id=58
    )
    return transformers.Qwen2VLForConditionalGeneration(config), qwen3()[1]


def llava_next():
    vision = VISION | {"model_type": "clip_vision_model"}
    config = transformers.LlavaNextConfig(
        vision_config=vision, text_config=TEXT, image_token_index=IMAGE, image_grid_pinpoints=[[24, 24]]
    )
    inputs = prompt(36 + 36 + 6) | {"pixel_values": pixels(1, 2, 3, 24, 24), "image_sizes": torch.tensor([[24, 24]])}
    return transformers.LlavaNextForConditionalGeneration(config), inputs


def vip_llava():
    vision = VISION | {"model_type": "clip_vision_model"}
    config = transformers.VipLlavaConfig(
        vision_config=vision, text_config=TEXT, image_token_index=IMAGE, vision_feature_layers=[-2, -3]
    )
    return transformers.VipLlavaForConditionalGeneration(config), prompt(36) | {"pixel_values": pixels(1, 3, 24, 24)}


def gemma3():
    text = {key: value for key, value in TEXT.items() if key != "model_type"} | {"sliding_window": 64}
    config = transformers.Gemma3Config(
        vision_config=SIGLIP, text_config=text, mm_tokens_per_image=9, image_token_id=IMAGE, boi_token_index=57
    )
    inputs = prompt(9) | {"pixel_values": pixels(1, 3, 24, 24)}
    types = (inputs["input_ids"] == IMAGE).long()
    return transformers.Gemma3ForConditionalGeneration(config), inputs | {"token_type_ids": types}


def qwen3_moe():
    config, inputs = qwen3()[0].config, qwen3()[1]
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    text = {key: value for key, value in TEXT.items() if key != "model_type"} | experts
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    made_from = transformers.Qwen3VLMoeConfig(
        vision_config=config.vision_config.to_dict(),
        text_config=text,
        image_token_id=IMAGE,
        vision_start_token_id=57,
        vision_end_token_id=58,
    )
    return transformers.Qwen3VLMoeForConditionalGeneration(made_from), inputs


def encoder_decoder():
    vision = transformers.ViTConfig(**VISION)
    text = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=60, n_positions=64, add_cross_attention=True
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    inputs = {"pixel_values": pixels(1, 3, 24, 24), "decoder_input_ids": torch.tensor([[1, 5, 6]])}
    return transformers.VisionEncoderDecoderModel(config=config), inputs


MODELS = {onevision: "vision_tower", internvl: "vision_tower", aya: "vision_tower", mistral3: "vision_tower"}
MODELS |= {idefics3: "vision_model", smolvlm: "vision_model", qwen3: "visual", qwen2: "visual"}
MODELS |= {llava_next: "vision_tower", vip_llava: "vision_tower", gemma3: "vision_tower", qwen3_moe: "visual"}
MODELS |= {encoder_decoder: ""}


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_it_generates_with_fewer_tokens_inside_its_tower(build):
    model, inputs = build()
    made(model)

    def run():
        with torch.no_grad():
            said = model.generate(**inputs, max_new_tokens=2, do_sample=False)
            return said, model(**inputs).logits

    words, logits = run()
    with fv.reduced(model, fv.ToMe(), fv.Keep({})):
        same = run()
        assert torch.equal(same[0], words)
        assert torch.equal(same[1], logits)
    with fv.reduced(model, fv.ToMe(), KEEP):
        assert (f"model.{MODELS[build]}" if MODELS[build] else "encoder") in str(fv.inspect(model))
        assert fv.inspect(model).reducer.plan_for((6, 6)).counts[1] == 18
        found = run()[1]
        assert found.shape == logits.shape
        assert not torch.allclose(found, logits)
    assert torch.equal(run()[1], logits)


def test_where_any_number_of_tokens_is_taken_fewer_can_be_handed_on():
    """The second lever: LLaVA's language model then needs as many placeholders."""
    vision = VISION | {"model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(vision_config=vision, text_config=TEXT, image_token_index=IMAGE)
    model = made(transformers.LlavaForConditionalGeneration(config))
    fv.reduce_(model, fv.ToMe(), KEEP, output="tokens")
    with torch.no_grad():
        assert model(**prompt(18), pixel_values=pixels(1, 3, 24, 24)).logits.shape[1] == 22
        with pytest.raises(ValueError, match="do not match"):
            model(**prompt(36), pixel_values=pixels(1, 3, 24, 24))


def test_where_the_grid_is_read_fewer_are_refused():
    model, _ = internvl()
    with pytest.raises(ValueError, match=r"InternVL.* reads a feature for every patch, and output='tokens'"):
        fv.reduce_(model, fv.ToMe(), KEEP, output="tokens")
    assert not fv.is_reduced(model)


def two_towers(name, **options):
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {key: value for key, value in VISION.items() if name != "Siglip2" or key != "image_size"} | options
    config = getattr(transformers, f"{name}Config")(vision_config=vision, text_config=text)
    return made(getattr(transformers, f"{name}Model")(config))


def test_metaclip2_and_siglip2_reduce_their_image_tower_alone():
    masks = {"pixel_attention_mask": torch.ones(1, 36), "spatial_shapes": torch.tensor([[6, 6]])}
    cases = [
        (two_towers("MetaClip2"), {"pixel_values": pixels(1, 3, 24, 24)}),
        (two_towers("Siglip2", num_patches=36), {"pixel_values": pixels(1, 36, 48)} | masks),
    ]
    for model, inputs in cases:
        words = {"input_ids": torch.tensor([[1, 5, 6, 2]])}
        with torch.no_grad():
            before = model(**inputs, **words)
            with fv.reduced(model, fv.ToMe(), fv.Keep({})):
                assert torch.equal(model(**inputs, **words).logits_per_image, before.logits_per_image)
            fv.reduce_(model, fv.ToMe(), KEEP)
            after = model(**inputs, **words)
        assert torch.equal(after.text_embeds, before.text_embeds)
        assert not torch.allclose(after.image_embeds, before.image_embeds)


def test_towers_with_windows_are_refused_by_name_with_the_reason():
    text = {key: value for key, value in TEXT.items() if key != "model_type"}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
    vision = {"depth": 2, "num_heads": 2, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 32}
    model = transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(vision_config=vision, text_config=text)
    )
    with pytest.raises(fv.UnsupportedModel, match=r"encoder at model.visual.*Qwen2_5_VisionTransformer.*windows"):
        fv.reduce_(model, fv.ToMe(), 0.5)
    assert not fv.is_reduced(model)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 16, "image_size": 64}
    sam = transformers.SamModel(transformers.SamConfig(vision_config=small | {"global_attn_indexes": [1]}))
    with pytest.raises(fv.UnsupportedModel, match=r"encoder at vision_encoder.*SamVisionEncoder.*windows"):
        fv.inspect(sam)
