"""What every family of transformers models shares: classifier, images, weight decay, and how it is built again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from timm.data.constants import (
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from torch import Tensor, nn

from foveate.adapters.family import Family

# transformers keeps these in its image processors, apart from the model; by model_type, where they are not ImageNet's
COLORS = {
    "vit": (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD),
    "siglip_vision_model": (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD),
    "clip_vision_model": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD),
}
SPARED_BY_DECAY = ("position_embedding", "cls_token", "class_embedding", "register_tokens")
ATTENTIONS = ("sdpa", "eager")


class HfFamily(Family):
    """A vision model of transformers."""

    library = "transformers"
    classifier_names = ("classifier", "cls_classifier", "distillation_classifier")
    embedding_names = frozenset({"embeddings", "pre_layrnorm"})  # transformers spells it so

    @classmethod
    def known_classes(cls) -> tuple[str, ...]:
        """Names of the transformers classes that a saved model may have."""
        return ()

    def logits(self, output: Any) -> Tensor:
        return output.logits

    def _replace_classifier(self, num_classes: int) -> None:
        model = self.model
        if not isinstance(getattr(model, "classifier", None), nn.Linear):
            super()._replace_classifier(num_classes)
        model.classifier = nn.Linear(model.classifier.in_features, num_classes)
        model.config.num_labels = model.num_labels = num_classes

    def preprocessing(self) -> dict[str, Any]:
        colors = COLORS.get(getattr(self.model.config, "model_type", ""))
        return {} if colors is None else {"mean": colors[0], "std": colors[1]}

    def no_weight_decay(self) -> set[str]:
        names = (name for name, _ in self.model.named_parameters())
        return {name for name in names if any(mark in name for mark in SPARED_BY_DECAY)}

    def architecture(self) -> dict[str, Any] | None:
        attention = self.model.config._attn_implementation
        return {
            "library": self.library,
            "class": class_name(self.model),
            "config": self.model.config.to_dict(),
            "attention": attention if attention in ATTENTIONS else ATTENTIONS[0],
        }

    @classmethod
    def can_rebuild(cls, architecture: Mapping[str, Any]) -> bool:
        return super().can_rebuild(architecture) and architecture.get("class") in cls.known_classes()

    @classmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> nn.Module:
        made = getattr(transformers, architecture["class"])
        config = made.config_class.from_dict(architecture["config"])
        return made._from_config(config, attn_implementation=architecture["attention"])


def class_name(model: Any) -> str:
    """The name of the transformers class that ``model`` is, or extends; "" for anything else."""
    for cls in type(model).__mro__:
        if cls.__module__.startswith("transformers.models."):
            return cls.__name__
    return ""


def pair(value: Any) -> tuple[int, int]:
    """Height and width from one number or two."""
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))
