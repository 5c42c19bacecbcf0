"""On real weights and photographs: reduction must keep most of a pretrained model's decisions."""

import csv
import dataclasses
import math

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms.functional import pil_to_tensor

import foveate as fv

PHOTOGRAPHS = 100


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


@torch.inference_mode()
def decisions(model, images):
    return torch.cat([model(batch) for batch in images.split(20)]).argmax(dim=1)


@pytest.mark.parametrize(("r", "known"), [(8, 0.957), (13, 0.930)])
def test_tome_keeps_as_many_decisions_as_it_is_known_to(vit_tiny, photographs, r, known):
    """``known`` was measured with ToMe on other photographs; three standard errors of our few are allowed."""
    whole = decisions(vit_tiny, photographs)
    fv.reduce_(vit_tiny, fv.ToMe(), fv.RemovePerBlock(r))
    try:
        kept = decisions(vit_tiny, photographs)
    finally:
        fv.restore_(vit_tiny)
    error = math.sqrt(known * (1 - known) / PHOTOGRAPHS)
    assert (kept == whole).float().mean() >= known - 3 * error


def test_carrying_sizes_keeps_more_decisions_than_not(vit_tiny, photographs):
    whole = vit_tiny(photographs[:40]).log_softmax(-1)
    divergence = {}
    for carry in (True, False):
        fv.reduce_(vit_tiny, fv.ToMe(carry=carry), fv.RemovePerBlock(13))
        with torch.inference_mode():
            reduced = vit_tiny(photographs[:40]).log_softmax(-1)
        fv.restore_(vit_tiny)
        divergence[carry] = (whole.exp() * (whole - reduced)).sum(-1).mean().item()
    assert divergence[True] < divergence[False]


@torch.inference_mode()
def divergence_from_unreduced(model, images, method, budget):
    """Mean KL(unreduced || reduced), and the share of equal decisions."""
    whole = torch.cat([model(batch) for batch in images.split(20)]).log_softmax(-1)
    fv.reduce_(model, method, fv.Budget(budget), exact_last_block=True)
    try:
        kept = torch.cat([model(batch) for batch in images.split(20)]).log_softmax(-1)
    finally:
        fv.restore_(model)
    agreement = (kept.argmax(1) == whole.argmax(1)).float().mean().item()
    return (whole.exp() * (whole - kept)).sum(-1).mean().item(), agreement


@pytest.mark.parametrize("budget", [0.65, 0.5])
def test_without_training_clusters_keep_more_than_tome_and_tome_more_than_selection(vit_tiny, photographs, budget):
    methods = (fv.Ward(), fv.TokenPooling(), fv.ToMe(), fv.TopK())
    ward, pooling, tome, topk = (divergence_from_unreduced(vit_tiny, photographs, m, budget)[0] for m in methods)
    assert max(ward, pooling) < tome < topk


@pytest.mark.parametrize("search", ["rounds", "greedy"])
@pytest.mark.parametrize(("budget", "wanted"), [(0.65, 0.97), (0.5, 0.925)])
def test_ward_keeps_the_decisions_it_promises(vit_tiny, photographs, search, budget, wanted):
    """The promise is for thousands of photographs; two standard errors of our few are allowed."""
    _, agreement = divergence_from_unreduced(vit_tiny, photographs, fv.Ward(search), budget)
    assert agreement >= wanted - 2 * math.sqrt(wanted * (1 - wanted) / PHOTOGRAPHS)


@pytest.mark.parametrize("method", [fv.TokenPooling(), fv.TokenPooling(output="medoid"), fv.Ward()], ids=repr)
def test_carrying_counts_keeps_more_of_clusters_too(vit_tiny, photographs, method):
    without = dataclasses.replace(method, carry=False)
    few = photographs[:40]
    with_counts, _ = divergence_from_unreduced(vit_tiny, few, method, 0.5)
    assert with_counts < divergence_from_unreduced(vit_tiny, few, without, 0.5)[0]
