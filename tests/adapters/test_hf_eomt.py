"""EoMT: tokens are reduced before the queries join, and every patch has a token again from there on."""

import copy

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv

SIZE = {"hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 2, "patch_size": 4, "image_size": 24}
SIZE |= {"num_blocks": 2, "num_queries": 5, "num_labels": 3, "num_register_tokens": 2, "layerscale_value": 0.4}
KINDS = {"Eomt": {}, "EomtDinov3": {"intermediate_size": 64}}
KEEP = fv.KeepRate(0.5, blocks=(1,))
every_kind = pytest.mark.parametrize("kind", KINDS)
FIELDS = ("masks_queries_logits", "class_queries_logits", "last_hidden_state")


def eomt(kind, masked=False, **options):
    """With or without masks in attention, which training ends without."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SIZE | KINDS[kind] | options)
    model = getattr(transformers, f"{kind}ForUniversalSegmentation")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.attn_mask_probs.fill_(float(masked))
    return model.eval()


def pixels(batch=2):
    return torch.randn(batch, 3, 24, 24, generator=torch.Generator().manual_seed(1))


@every_kind
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_queries_meet_every_patch(kind, masked):
    model, x = eomt(kind, masked), pixels()
    with torch.no_grad():
        plain = model(x)
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            same = model(x)
        family = fv.inspect(model)
        own = family.head(family.encode(x))  # our run of the blocks with queries
        fv.reduce_(model, fv.ToMe(), KEEP)
        found = model(x)
        alone = model(x[1:])
    for name in FIELDS:
        assert torch.equal(plain[name], same[name])
        torch.testing.assert_close(own[name], plain[name], rtol=1e-4, atol=1e-5)
        assert found[name].shape == plain[name].shape
        torch.testing.assert_close(alone[name], found[name][1:], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found.masks_queries_logits, plain.masks_queries_logits)
    assert fv.inspect(model).reducer.plan.counts == (36, 18, 18)


@every_kind
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_costs_are_exact(kind, masked):
    model = eomt(kind, masked)
    for schedule in (fv.Keep({}), KEEP):
        with fv.reduced(model, fv.TopK(), schedule), torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(pixels(1))
            assert fv.cost(model).macs * 2 == counter.get_total_flops()


@every_kind
def test_its_losses_are_those_of_the_library(kind):
    masks = [(torch.rand(2, 24, 24, generator=torch.Generator().manual_seed(i)) > 0.5).float() for i in range(2)]
    given = {"mask_labels": masks, "class_labels": [torch.tensor([0, 1])] * 2}
    still = {"pos_embed_rescale": None} if kind == "EomtDinov3" else {}  # else positions are drawn at random
    model = eomt(kind, masked=True, **still).train()
    torch.manual_seed(0)
    expected = model(pixels(), **given).loss
    fv.reduce_(model, fv.ToMe(), fv.Keep({2: 35}), merge_unmerge=(2, 2))
    torch.manual_seed(0)
    found = model(pixels(), **given).loss
    found.backward()
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)  # one token of 36 was merged, once
    assert model.embeddings.cls_token.grad.abs().sum() > 0


@every_kind
def test_it_travels(kind, tmp_path):
    model = fv.reduce_(eomt(kind), fv.ToMe(), KEEP)
    fv.save(model, tmp_path / "m")
    with torch.no_grad():
        expected = model(pixels()).masks_queries_logits
        assert torch.equal(copy.deepcopy(model)(pixels()).masks_queries_logits, expected)
        assert torch.equal(fv.load(tmp_path / "m")(pixels()).masks_queries_logits, expected)
        assert fv.trace(model, pixels()).counts == (36, 18, 18)


def test_bad_input_is_refused_in_words():
    model = eomt("Eomt")
    with pytest.raises(ValueError, match="EomtForUniversalSegmentation reads a feature for every patch"):
        fv.reduce_(model, fv.ToMe(), KEEP, output="tokens")
    fv.reduce_(model, fv.ToMe(), KEEP)
    with pytest.raises(ValueError, match="takes images of 24 x 24, got 24 x 32"):
        model(torch.zeros(1, 3, 24, 32))
    with pytest.raises(ValueError, match="takes no output_hidden_states"):
        model(pixels(), output_hidden_states=True)
    with pytest.raises(fv.UnsupportedModel, match="no blocks"):
        fv.reduce_(eomt("Eomt", num_blocks=5), fv.ToMe(), KEEP)


@pytest.mark.parametrize(("kind", "masked"), [("Eomt", True), ("EomtDinov3", False)])
def test_it_is_exported_with_its_masks_decided(kind, masked, tmp_path):
    pytest.importorskip("onnxruntime")
    model = fv.reduce_(eomt(kind, masked), fv.ToMe(), KEEP)
    fv.export(model, tmp_path / "out", to="onnx")
    assert "attn_mask_probs" in dict(model.named_buffers())  # held as numbers only for the export
    with torch.no_grad():
        expected, found = model(pixels(3)), fv.load_exported(tmp_path / "out")(pixels(3))
    torch.testing.assert_close(found["masks_queries_logits"], expected.masks_queries_logits, rtol=1e-4, atol=1e-4)


def test_a_model_that_cannot_be_traced_is_refused_without_printing_the_program(tmp_path, capfd, monkeypatch):
    model = fv.reduce_(eomt("Eomt"), fv.ToMe(), KEEP)
    monkeypatch.setattr(type(fv.inspect(model)), "branches_on", ())
    with pytest.raises(ValueError, match=r"torch\.export cannot trace this model"):
        fv.export(model, tmp_path / "out", to="torch-export")
    assert "torch.ops.aten" not in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
