"""On real weights and photographs: reduction must keep most of a pretrained model's decisions."""

import csv
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
