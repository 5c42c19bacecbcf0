"""What happens to training images, by timm's transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from PIL import Image, ImageOps
from timm.data import Mixup, create_transform
from torch import Tensor, nn

from foveate.data.preprocessing import Preprocessing
from foveate.train.config import AugmentationSection, TrainConfig


def training_transform(config: TrainConfig, model: nn.Module) -> Callable[[Image.Image], Tensor]:
    """timm's transform for training, to the size and colours the model wants."""
    wanted, section = Preprocessing.of(model), config.augmentation
    if section.kind == "evaluation":
        return wanted.evaluation()
    try:
        return _random_transform(section, wanted)
    except (AssertionError, KeyError, NotImplementedError) as error:
        raise ValueError(f"timm has no such auto_augment or interpolation: {error!r}.") from error


def _random_transform(section: AugmentationSection, wanted: Preprocessing) -> Callable[[Image.Image], Tensor]:
    transform = create_transform(
        (3, wanted.height, wanted.width),
        is_training=True,
        scale=(section.scale[0], section.scale[1]),
        hflip=section.flip,
        color_jitter=section.colour_jitter,
        auto_augment=section.auto_augment or None,
        re_prob=section.erase,
        re_mode="pixel",
        interpolation=section.interpolation,
        mean=wanted.mean,
        std=wanted.std,
    )
    for op in _operations(transform):
        if op.name.startswith("Posterize"):
            op.aug_fn = posterize
    return transform


def build_mixup(config: TrainConfig, num_classes: int | None) -> Mixup | None:
    section = config.augmentation
    if num_classes is None or not (section.mixup or section.cutmix):
        return None
    return Mixup(
        mixup_alpha=section.mixup,
        cutmix_alpha=section.cutmix,
        prob=section.mix_chance,
        switch_prob=section.cutmix_share,
        label_smoothing=config.objective.smoothing,
        num_classes=num_classes,
    )


def posterize(image: Image.Image, bits: int, **_: object) -> Image.Image:
    """Keep the highest ``bits`` of each colour. RandAugment also asks for none, which Pillow refuses since 13."""
    if bits >= 8:
        return image
    return ImageOps.posterize(image, bits) if bits >= 1 else Image.new(image.mode, image.size)


def _operations(transform: Any) -> Iterator[Any]:
    """The single operations of timm's RandAugment (a list) and AutoAugment (lists of lists) in a transform."""
    for part in transform.transforms:
        yield from getattr(part, "ops", ())
        yield from (op for policy in getattr(part, "policy", ()) for op in policy)
