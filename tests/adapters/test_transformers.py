"""What transformers users expect of a reduced model, beyond the contract."""

import pytest
import torch

import foveate as fv
from zoo import DIM, HEADS, PATCH, PATCHES, images, make

SCHEDULE = fv.KeepRate(0.6, blocks=(1, 2))
TOKENS = [36, 36, 22, 14, 14]  # patch tokens at the start and after each block


def test_labels_give_a_loss():
    model = fv.reduce_(make("hf-vit"), fv.EViT(), SCHEDULE)
    labels = torch.tensor([0, 1, 2])
    out = model(pixel_values=images(), labels=labels)
    assert torch.allclose(out.loss, torch.nn.functional.cross_entropy(out.logits, labels))


def test_hidden_states_are_the_tokens_that_were_left():
    model = fv.reduce_(make("hf-clip-vision"), fv.ToMe(), SCHEDULE)
    hidden = model(images(), output_hidden_states=True).hidden_states
    assert [h.shape[1] - 1 for h in hidden] == TOKENS
    plain = make("hf-clip-vision")(images(), output_hidden_states=True).hidden_states
    assert torch.equal(hidden[1], plain[1])


def test_return_dict_false_gives_a_tuple():
    model = fv.reduce_(make("hf-dinov2"), fv.ToMe(), SCHEDULE)
    assert isinstance(model(images(), return_dict=False), tuple)


@pytest.mark.parametrize("name", ["output_attentions", "bool_masked_pos", "attention_mask"])
def test_arguments_without_meaning_are_refused_rather_than_ignored(name):
    model = fv.reduce_(make("hf-vit"), fv.ToMe(), SCHEDULE)
    with pytest.raises(ValueError, match=f"takes no {name}"):
        model(images(), **{name: torch.ones(1)})


def test_other_image_sizes_need_interpolation_and_say_so():
    model = fv.reduce_(make("hf-vit"), fv.ToMe(), SCHEDULE)
    larger = torch.randn(2, 3, 32, 40)
    with pytest.raises(ValueError, match=r"32 x 40, the model takes 24 x 24.*interpolate_pos_encoding"):
        model(larger)
    assert model(larger, interpolate_pos_encoding=True).logits.shape == (2, 7)
    assert fv.features(model, larger, interpolate_pos_encoding=True).shape == (2, DIM, 8, 10)
    assert fv.trace(model, larger, interpolate_pos_encoding=True).counts[0] == 80


def test_dinov2_takes_any_size():
    model = fv.reduce_(make("hf-dinov2"), fv.ToMe(), SCHEDULE)
    assert fv.features(model, torch.randn(1, 3, 32, 48)).shape == (1, DIM, 32 // PATCH, 48 // PATCH)


def test_a_reduced_vision_tower_serves_its_two_tower_model():
    import transformers

    tower = {
        "hidden_size": DIM,
        "num_hidden_layers": 4,
        "num_attention_heads": HEADS,
        "intermediate_size": 64,
        "image_size": 24,
        "patch_size": PATCH,
    }
    clip = transformers.CLIPModel(transformers.CLIPConfig(vision_config=tower, text_config=tower)).eval()
    with torch.no_grad():
        before = clip.get_image_features(pixel_values=images()).pooler_output
        fv.reduce_(clip.vision_model, fv.ToMe(), SCHEDULE)
        after = clip.get_image_features(pixel_values=images()).pooler_output
    assert after.shape == before.shape
    assert not torch.equal(after, before)
    assert fv.cost(clip.vision_model).tokens[-1] < PATCHES


def test_a_model_without_a_classifier_takes_no_labels():
    model = fv.reduce_(make("hf-dinov2-model"), fv.ToMe(), SCHEDULE)
    with pytest.raises(ValueError, match="takes no labels"):
        model(images(), labels=torch.zeros(3))


def test_save_pretrained_writes_the_original_class_name(tmp_path):
    model = fv.reduce_(make("hf-vit"), fv.ToMe(), SCHEDULE)
    model.save_pretrained(tmp_path)
    assert '"ViTForImageClassification"' in (tmp_path / "config.json").read_text()
