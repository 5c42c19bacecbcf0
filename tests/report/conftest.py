import pytest
import torch

from foveate.report.drawing import picture_of


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    pixels = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture_of(pixels).save(path)
    return path
