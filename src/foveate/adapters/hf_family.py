"""What all transformers families share: classifier, preprocessing, weight decay and rebuilding."""

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

# by model_type, where not ImageNet's: transformers keeps these in image processors, apart from the model
COLORS = {
    "vit": (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD),
    "siglip_vision_model": (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD),
    "clip_vision_model": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD),
}
SPARED_BY_DECAY = ("position_embedding", "cls_token", "class_embedding", "register_tokens")
ATTENTIONS = ("sdpa", "eager")
ALWAYS_ALLOWED = {
    "architectures",
    "id2label",
    "label2id",
    "problem_type",
    "transformers_version",
    "dtype",
    "torch_dtype",
}
"""Keys that a configuration may have beside those of its class."""


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
    def class_named(cls, name: str) -> Any:
        """The transformers class of this name, one of ``known_classes``."""
        return getattr(transformers, name)

    @classmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> nn.Module:
        made = cls.class_named(architecture["class"])
        config, attention = architecture.get("config"), architecture.get("attention")
        if not isinstance(config, Mapping) or attention not in ATTENTIONS:
            raise ValueError(
                f"The saved model needs a config and an attention of {', '.join(ATTENTIONS)}; got {attention!r:.80}."
            )
        unknown = sorted(config.keys() - made.config_class().to_dict().keys() - ALWAYS_ALLOWED)
        if unknown:
            raise ValueError(f"The saved config has a key {unknown[0]!r:.80}, which {made.__name__} does not have.")
        return made._from_config(made.config_class.from_dict(dict(config)), attn_implementation=attention)


def library_class(model: Any) -> Any:
    """The transformers class that ``model`` is or extends; None for other models."""
    original = getattr(type(model), "_foveate_base", type(model))
    return next((cls for cls in original.__mro__ if cls.__module__.startswith("transformers.models.")), None)


def class_name(model: Any) -> str:
    """Name of the transformers class that ``model`` is or extends; empty for other models."""
    return getattr(library_class(model), "__name__", "")


def pair(value: Any) -> tuple[int, int]:
    """Height and width from one number or two."""
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))
