import pytest
import timm
import torch
from noise_pictures import picture

import foveate as fv


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """The folder of a saved model with 5 classes for images of 32 pixels; saved models count as trained."""
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 16, "num_heads": 2, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **options).eval()
    return fv.save(model, tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """25 pictures in nested folders; number 7 is broken."""
    folder = tmp_path_factory.mktemp("source") / "photos"
    for number in range(25):
        path = folder / f"album{number % 3}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not an image" if number == 7 else picture(number))
    return folder
