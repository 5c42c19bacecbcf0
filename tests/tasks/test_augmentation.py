"""Training images: every policy of timm runs with the Pillow that is installed."""

import random

import pytest
import torch
from PIL import Image

from foveate.data.preprocessing import Preprocessing
from foveate.tasks import Classification
from foveate.tasks.augmentation import posterize
from foveate.training.config import override
from foveate.training.recipe import read_recipe
from small_runs import SMALL, small_config


def picture(size=(24, 20)):
    return Image.effect_noise(size, 80).convert("RGB")


def model():
    import timm

    return timm.create_model("vit_tiny_patch16_224", **SMALL)


def training_transform(config, model):
    return Classification(2).training_transform(Preprocessing.of(model), config.augmentation)


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "rand-m10-inc1", "original", "v0", "3a"])
def test_every_policy_runs(policy):
    transform = training_transform(small_config("nowhere", f"augmentation.auto_augment={policy}"), model())
    random.seed(0)
    for _ in range(150):
        assert transform(picture()).shape == (3, 32, 32)


def test_no_bits_are_black_and_all_are_the_image():
    image = picture()
    assert posterize(image, 0).getextrema() == ((0, 0),) * 3
    assert posterize(image, 8) is image
    assert set(posterize(image, 1).tobytes()) <= {0, 128}


def test_the_recipes_augmentation_is_what_the_transform_does():
    transform = training_transform(read_recipe("deit"), model())
    said = repr(transform)
    assert "RandAugment" in said
    assert "RandomErasing" in said
    plain = override(read_recipe("deit"), ["augmentation.auto_augment=", "augmentation.erase=0"])
    assert "RandAugment" not in repr(training_transform(plain, model()))
    assert "RandomErasing" not in repr(training_transform(plain, model()))
    same = override(plain, ["augmentation.kind=evaluation"])
    first, second = (training_transform(same, model())(picture((32, 32))) for _ in range(2))
    assert first.shape == second.shape == torch.Size((3, 32, 32))
