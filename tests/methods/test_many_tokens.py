"""Above 4,096 tokens nothing holds a value for every pair of them, whatever the method."""

import pytest
import timm
import torch

import foveate as fv
from foveate.core.tiles import MOST_TOKENS
from largest_tensor import LargestTensor

SIDE = 70  # patches; 4,900 are above the limit
OWN_COUNTS, ALL_PAIRS = ("HVTPool", "PoWERSearch", "StridedConv"), ("ATC", "PiToMe")
TWO_BLOCKS = ("Mixture",)  # this model has one, and both parts are tried alone
SCHEDULED = [name for name in fv.list_methods() if name not in (*OWN_COUNTS, *ALL_PAIRS, *TWO_BLOCKS)]


@pytest.fixture(scope="module")
def images():
    return torch.randn(1, 3, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(3))


def reduced(name, output=None):
    model = timm.create_model(
        "test_vit", depth=1, embed_dim=16, num_heads=1, patch_size=2, img_size=2 * SIDE, num_classes=0
    )
    return fv.reduce_(model.eval(), name, fv.Keep({0: SIDE**2 // 2}), output=output)


@pytest.mark.parametrize("name", ALL_PAIRS)
def test_methods_that_need_all_pairs_are_refused(name, images):
    with pytest.raises(ValueError, match=r"of 4900 tokens; 4096 are the most\. Use ToMe"), torch.inference_mode():
        reduced(name)(images)


@pytest.mark.parametrize(("name", "output"), [*((name, None) for name in SCHEDULED), ("ToMe", "grid-attention")])
def test_no_matrix_of_all_pairs_in_a_pass(name, output, images):
    model, tokens = reduced(name, output), SIDE**2
    assert tokens > MOST_TOKENS
    with torch.inference_mode(), LargestTensor() as seen:
        model(images)
    assert tokens < seen.elements <= MOST_TOKENS**2
