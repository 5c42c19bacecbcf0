"""Models on the meta device, which have shapes and no values: a forward gives the right shape, the rest says so."""

import pytest
import torch

import foveate as fv
from zoo import CLASSES, IMAGE, SITES, defaults, make, variants

KEPT = fv.Keep({SITES[0]: 20, SITES[1]: 12})


@pytest.mark.parametrize("method", [*defaults(), *variants()], ids=repr)
def test_every_method_runs_on_shapes_alone(method):
    schedule = None if method.own_counts(4, (6, 6)) is not None else KEPT
    model = fv.reduce_(make("timm-cls").to("meta"), method, schedule)
    images = torch.zeros(2, 3, IMAGE, IMAGE, device="meta")
    assert model(images).shape == (2, CLASSES)
    assert fv.trace(model, images).batch == 2


def test_a_model_without_weights_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="on the meta device and has no weights to save"):
        fv.save(make("timm-cls").to("meta"), tmp_path / "saved")
    assert not list(tmp_path.iterdir())
