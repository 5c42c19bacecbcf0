import pytest
import torch

from foveate.drawing.pixels import to_pil_image


@pytest.fixture(scope="session")
def photo(tmp_path_factory):
    """A file with a noisy picture."""
    path = tmp_path_factory.mktemp("photos") / "photo.png"
    pixels = torch.randint(0, 256, (3, 90, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    to_pil_image(pixels).save(path)
    return path
