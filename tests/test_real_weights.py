"""On real weights and photographs: reduction must keep most of a pretrained model's decisions."""

import copy
import csv
import dataclasses
import math
from functools import cache

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms.functional import pil_to_tensor

import foveate as fv

PHOTOGRAPHS, FEW = 200, 40


@pytest.fixture(scope="module")
def photographs(assets):
    with (assets / "imagenet_dev" / "labels.csv").open() as file:
        names = [next(iter(row.values())) for row in csv.DictReader(file)][:PHOTOGRAPHS]
    folder = assets / "imagenet_dev"
    paths = [next(p for p in (folder / name, folder / "images" / name) if p.is_file()) for name in names]
    pictures = [Image.open(p).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC) for p in paths]
    return torch.stack([pil_to_tensor(p).float().div(255).sub(0.5).div(0.5) for p in pictures])


@pytest.fixture(scope="module")
def vit_tiny(assets):
    model = timm.create_model("vit_tiny_patch16_224")
    model.load_state_dict(load_file(assets / "vit_tiny" / "model.safetensors"))
    return model.eval()


@pytest.fixture(scope="module")
def predicted(vit_tiny, photographs):
    """Log-probabilities of the first photographs under a reduction, or of the whole model; each computed once."""

    @cache
    @torch.inference_mode()
    def predict(method=None, schedule=None, number=PHOTOGRAPHS, exact=True):
        model = copy.deepcopy(vit_tiny)
        if method is not None:
            fv.reduce_(model, method, schedule, exact_last_block=exact)
        return torch.cat([model(batch) for batch in photographs[:number].split(20)]).log_softmax(-1)

    return predict


@pytest.mark.parametrize(("r", "known"), [(8, 0.957), (13, 0.930)])
def test_tome_keeps_as_many_decisions_as_it_is_known_to(predicted, r, known):
    """``known`` was measured with ToMe on other photographs; three standard errors of our few are allowed."""
    kept = predicted(fv.ToMe(), fv.RemovePerBlock(r), exact=False)
    error = math.sqrt(known * (1 - known) / PHOTOGRAPHS)
    assert (kept.argmax(1) == predicted().argmax(1)).float().mean() >= known - 3 * error


def divergence(whole, kept):
    """Mean KL(unreduced || reduced)."""
    return (whole.exp() * (whole - kept)).sum(-1).mean().item()


def test_carrying_sizes_keeps_more_decisions_than_not(predicted):
    whole, schedule = predicted()[:FEW], fv.RemovePerBlock(13)
    carried = predicted(fv.ToMe(), schedule, exact=False)[:FEW]
    assert divergence(whole, carried) < divergence(
        whole, predicted(fv.ToMe(proportional_attention=False), schedule, FEW, exact=False)
    )


@pytest.mark.parametrize("budget", [0.65, 0.5])
def test_without_training_clusters_keep_more_than_tome_and_tome_more_than_selection(predicted, budget):
    methods = (fv.Ward(), fv.TokenPooling(), fv.ToMe(), fv.TopK())
    ward, pooling, tome, topk = (divergence(predicted(), predicted(m, fv.Budget(budget))) for m in methods)
    assert max(ward, pooling) < tome < topk


@pytest.mark.parametrize("search", ["rounds", "greedy"])
@pytest.mark.parametrize(("budget", "wanted"), [(0.65, 0.97), (0.5, 0.925)])
def test_ward_keeps_the_decisions_it_promises(predicted, search, budget, wanted):
    """The promise is for thousands of photographs; two standard errors of our few are allowed."""
    kept = predicted(fv.Ward(search), fv.Budget(budget))
    agreement = (kept.argmax(1) == predicted().argmax(1)).float().mean().item()
    assert agreement >= wanted - 2 * math.sqrt(wanted * (1 - wanted) / PHOTOGRAPHS)


@pytest.mark.parametrize("method", [fv.TokenPooling(), fv.TokenPooling(output="medoid"), fv.Ward()], ids=repr)
def test_carrying_counts_keeps_more_of_clusters_too(predicted, method):
    whole, budget = predicted()[:FEW], fv.Budget(0.5)
    without = predicted(dataclasses.replace(method, proportional_attention=False), budget, FEW)
    assert divergence(whole, predicted(method, budget, FEW)) < divergence(whole, without)
