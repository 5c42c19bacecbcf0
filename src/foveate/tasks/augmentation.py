"""Augmentation of training images with timm's transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image, ImageOps
from timm.data import Mixup, create_transform
from torch import Tensor

from foveate.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Augmentation:
    """Settings for timm's training transforms and Mixup."""

    kind: Literal["random", "evaluation"] = "random"
    """``evaluation`` prepares training images as for evaluation, without randomness."""
    scale: tuple[float, ...] = (0.08, 1.0)
    """Smallest and largest share of the image that a random crop covers."""
    flip: float = 0.5
    color_jitter: float = 0.0
    auto_augment: str = ""
    """A timm policy, e.g. ``rand-m9-mstd0.5-inc1``; empty for none."""
    erase: float = 0.0
    """Probability that a rectangle is erased."""
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_chance: float = 1.0
    cutmix_share: float = 0.5
    """How often CutMix is used instead of Mixup if both are on."""
    interpolation: str = "bicubic"
    repeats: int = 1
    """Consecutive copies of each image, each augmented differently; an epoch shows fewer images by this factor."""


def training_transform(preprocessing: Preprocessing, options: Augmentation) -> Callable[[Image.Image], Tensor]:
    """Return timm's transform for training images, for the model's image size and normalization."""
    if options.kind == "evaluation":
        return preprocessing.evaluation()
    try:
        return _random_transform(preprocessing, options)
    except (AssertionError, KeyError, NotImplementedError) as error:
        raise ValueError(f"timm does not know this auto_augment or interpolation: {error!r}.") from error


def _random_transform(preprocessing: Preprocessing, options: Augmentation) -> Callable[[Image.Image], Tensor]:
    transform = create_transform(
        (3, preprocessing.height, preprocessing.width),
        is_training=True,
        scale=(options.scale[0], options.scale[1]),
        hflip=options.flip,
        color_jitter=options.color_jitter,
        auto_augment=options.auto_augment or None,
        re_prob=options.erase,
        re_mode="pixel",
        interpolation=options.interpolation,
        mean=preprocessing.mean,
        std=preprocessing.std,
    )
    for op in _operations(transform):
        if op.name.startswith("Posterize"):
            op.aug_fn = posterize
    return transform


def build_mixup(options: Augmentation, num_classes: int | None, smoothing: float) -> Mixup | None:
    """Return timm's Mixup and CutMix, which make labels soft; None if both are off or there are no classes."""
    if num_classes is None or not (options.mixup or options.cutmix):
        return None
    return Mixup(
        mixup_alpha=options.mixup,
        cutmix_alpha=options.cutmix,
        prob=options.mix_chance,
        switch_prob=options.cutmix_share,
        label_smoothing=smoothing,
        num_classes=num_classes,
    )


def posterize(image: Image.Image, bits: int, **_: object) -> Image.Image:
    """Keep the highest ``bits`` of each color. RandAugment also uses 0 bits, which Pillow rejects since version 13."""
    if bits >= 8:
        return image
    return ImageOps.posterize(image, bits) if bits >= 1 else Image.new(image.mode, image.size)


def _operations(transform: Any) -> Iterator[Any]:
    """Yield the operations of timm's RandAugment (a list) and AutoAugment (lists of lists) in a transform."""
    for part in transform.transforms:
        yield from getattr(part, "ops", ())
        yield from (op for policy in getattr(part, "policy", ()) for op in policy)
