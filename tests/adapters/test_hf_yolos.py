"""YOLOS: detection tokens stand behind the patches and are never reduced; positions are added again between blocks."""

import pytest
import torch
import transformers

import foveate as fv

SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
SIZE |= {"image_size": [24, 24], "patch_size": 4, "num_detection_tokens": 5, "num_labels": 3}
KEEP = fv.KeepRate(0.5, blocks=(1,))


def yolos(name="YolosForObjectDetection", **options):
    torch.manual_seed(3)
    model = getattr(transformers, name)(transformers.YolosConfig(**SIZE | options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def pixels(height=24, width=24):
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("again", [True, False], ids=["positions-again", "positions-once"])
def test_the_detector_reads_its_own_tokens(again):
    model, x = yolos(use_mid_position_embeddings=again), pixels()
    with torch.no_grad():
        plain = model(x, output_hidden_states=True)
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            same = model(x, output_hidden_states=True)
        assert torch.equal(same.pred_boxes, plain.pred_boxes)
        assert all(torch.equal(*pair) for pair in zip(same.hidden_states, plain.hidden_states, strict=True))
        fv.reduce_(model, fv.ToMe(), KEEP)
        found = model(x, output_hidden_states=True)
        assert "vit: YolosModel" in str(fv.inspect(model))
    assert found.last_hidden_state.shape == (2, 1 + 18 + 5, 32)
    assert found.logits.shape == plain.logits.shape
    assert not torch.allclose(found.logits, plain.logits)
    torch.testing.assert_close(found.hidden_states[1], plain.hidden_states[1])  # before the reduction, in its order


def test_tokens_that_all_stay_give_what_the_model_gives():
    """Detection tokens go to the front and back again, and positions are added in between."""
    model, x = yolos("YolosModel"), pixels(24, 32)
    family = fv.inspect(model)
    with torch.no_grad():
        found = family.head(family.encode(x), grid=(6, 8)).last_hidden_state
        torch.testing.assert_close(found, model(x).last_hidden_state, rtol=1e-4, atol=1e-5)


def test_a_selection_adds_the_positions_of_its_own_patches():
    """A reference without the engine: the library's layers over all tokens, hidden ones left out by hand."""
    model, x = yolos("YolosModel"), pixels()
    with torch.no_grad():
        with fv.reduced(model, fv.TopK(), fv.Keep({1: 10})):
            found, trace = model(x).last_hidden_state, fv.trace(model, x)
        kept = trace.owner(1) >= 0
        assert not torch.equal(kept[0], kept[1])
        tokens, added = model.embeddings(x), model.encoder.interpolation((24, 24))
        for image in range(2):
            state, places = tokens[image : image + 1], torch.arange(1 + 36 + 5)
            for block, layer in enumerate(model.encoder.layer):
                state = state if block == 0 else state + added[block - 1][:, places]
                if block == 1:  # reduced between attention and MLP
                    state = state + layer.attention(layer.layernorm_before(state))
                    stays = torch.cat([torch.ones(1, dtype=torch.bool), kept[image], torch.ones(5, dtype=torch.bool)])
                    state, places = state[:, stays], places[stays]
                    state = layer.output(layer.intermediate(layer.layernorm_after(state)), state)
                else:
                    state = layer(state)
            torch.testing.assert_close(found[image], model.layernorm(state)[0], rtol=1e-4, atol=1e-5)


def test_it_learns_from_boxes_and_saves(tmp_path):
    model = fv.reduce_(yolos(), fv.ToMe(), KEEP, exact_last_block=True)
    labels = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.2]])}] * 2
    loss = model(pixels(), labels=labels).loss
    loss.backward()
    assert model.vit.embeddings.detection_tokens.grad.abs().sum() > 0
    fv.save(model, tmp_path / "m")
    with torch.no_grad():
        assert torch.equal(fv.load(tmp_path / "m")(pixels()).logits, model(pixels()).logits)


def test_what_it_does_not_have_is_refused():
    model = yolos()
    with pytest.raises(ValueError, match="no class token"):  # nothing has ever read the one it has
        fv.reduce_(model, fv.EViT(), 0.5)
    with pytest.raises(ValueError, match="positions='mean' needs blocks"):
        fv.reduce_(model, fv.ToMe(), 0.5, positions="mean")
    assert not fv.is_reduced(model)
