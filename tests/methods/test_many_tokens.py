"""Above 4,096 tokens nothing holds a value for every pair of them, whatever the method."""

import pytest
import timm
import torch
from tests.core.test_tiles import LargestTensor

import foveate as fv
from foveate.core.tiles import MOST_TOKENS

SIDE = 70  # patches; 4,900 are above the limit
SCHEDULED = [name for name in fv.list_methods() if name not in ("HVTPool", "PoWERSearch", "StridedConv")]  # own counts


@pytest.fixture(scope="module")
def images():
    return torch.randn(1, 3, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("name", "output"), [*((name, None) for name in SCHEDULED), ("ToMe", "grid-attention")])
def test_no_matrix_of_all_pairs_in_a_pass(name, output, images):
    model = timm.create_model(
        "test_vit", depth=1, embed_dim=16, num_heads=1, patch_size=2, img_size=2 * SIDE, num_classes=0
    )
    tokens = SIDE**2
    assert tokens > MOST_TOKENS
    fv.reduce_(model.eval(), name, fv.Keep({0: tokens // 2}), output=output)
    with torch.inference_mode(), LargestTensor() as seen:
        model(images)
    assert tokens < seen.elements <= MOST_TOKENS**2
