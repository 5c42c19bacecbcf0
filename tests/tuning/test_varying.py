"""Many pictures from few."""

import pytest
import torch

from foveate.tuning import varying
from foveate.tuning.varying import (
    BLENDED,
    COLOR,
    MIXED,
    PASTED,
    SMALLEST_CROP,
    blended,
    mixed,
    random_crops,
    recolored,
    varied,
)


def generator():
    return torch.Generator().manual_seed(1)


def test_crops_show_a_part_of_their_own_image():
    flat = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 3, 20, 30)
    crops = random_crops(flat, torch.Generator().manual_seed(1))
    assert crops.shape == flat.shape
    assert torch.allclose(crops, flat, atol=1e-5)
    ramp = torch.linspace(0, 1, 30).expand(40, 3, 20, 30)
    slopes = random_crops(ramp, torch.Generator().manual_seed(1)).diff(dim=-1).mean((1, 2, 3))
    assert (slopes > 0).any()  # some are mirrored,
    assert (slopes < 0).any()
    assert slopes.abs().max() <= 1 / 29 + 1e-4
    assert slopes.abs().min() < 0.8 / 29  # and some are enlarged


def test_a_mixed_crop_has_one_rectangle_of_the_next_crop():
    flat = torch.arange(200.0).view(200, 1, 1, 1).expand(200, 3, 20, 30)
    found = mixed(flat, torch.Generator().manual_seed(0))
    changed = found != flat
    assert changed.flatten(1).any(1).float().mean() == pytest.approx(MIXED, abs=0.1)
    for number in changed.flatten(1).any(1).nonzero().flatten().tolist():
        where = changed[number, 0]
        rows, columns = where.any(1).sum(), where.any(0).sum()
        assert where.sum() == rows * columns  # a rectangle
        assert round(20 * PASTED[0]) <= rows <= round(20 * PASTED[1])
        assert round(30 * PASTED[0]) <= columns <= round(30 * PASTED[1])
        assert (found[number][:, where] == (number + 1) % 200).all()
        assert torch.equal(changed[number, 0], changed[number, 2])


def test_no_crop_is_smaller_than_asked():
    ramp = torch.linspace(0, 1, 101).expand(300, 1, 101, 101)
    slopes = random_crops(ramp, generator()).diff(dim=-1)[..., 20:80].mean((1, 2, 3)).abs() * 100
    assert slopes.min() == pytest.approx(SMALLEST_CROP, abs=0.02)
    assert slopes.max() == pytest.approx(1, abs=0.02)


def test_colors_change_by_no_more_than_the_strength():
    colors = torch.randn(200, 3, generator=generator())
    found = recolored(colors[:, :, None, None].expand(-1, -1, 4, 5), generator())
    assert torch.equal(found, found[..., :1, :1].expand_as(found))  # each picture in its own way, all over
    gray, before = found[..., 0, 0].mean(1), colors.mean(1)
    assert ((gray - before).abs() <= COLOR * (1 + before.abs()) + 1e-5).all()
    ratio = (found[..., 0, 0] - gray[:, None]).norm(dim=1) / (colors - before[:, None]).norm(dim=1)
    assert ratio.min() < 1 - COLOR / 2  # contrast times saturation
    assert (1 - COLOR) ** 2 - 1e-4 <= ratio.min() <= ratio.max() <= (1 + COLOR) ** 2 + 1e-4
    assert ratio.max() > 1 + COLOR / 2
    assert torch.allclose(recolored(found, generator(), strength=0.0), found, atol=1e-6)


def test_a_blended_crop_is_at_least_half_its_own():
    flat = torch.arange(200.0).view(200, 1, 1, 1).expand(200, 3, 4, 5)
    own = 1 - (blended(flat, generator()) - flat)[:-1, 0, 0, 0]  # the next is larger by one
    assert (own < 1).float().mean() == pytest.approx(BLENDED, abs=0.1)
    assert own.min() == pytest.approx(0.5, abs=0.02)
    assert own[own < 1].mean() == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("change", ["random_crops", "recolored", "mixed", "blended"])
def test_every_change_takes_part(monkeypatch, change):
    images = torch.randn(16, 3, 20, 30, generator=generator())
    found = varied(images, generator())
    assert found.shape == images.shape
    monkeypatch.setattr(varying, change, lambda images, generator: images)
    assert not torch.allclose(varied(images, generator()), found)
