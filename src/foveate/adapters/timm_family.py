"""What every family of timm models shares: classifier, images, weight decay, and how it is built again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from foveate.adapters.family import Family

IMAGE_FACTS = ("mean", "std", "interpolation", "crop_pct", "crop_mode")


class TimmFamily(Family):
    """A model of timm's registry, or one built by hand from timm's classes."""

    library = "timm"
    classifier_names = ("head", "head_dist")
    embedding_names = frozenset({"patch_embed", "pos_embed", "cls_token", "reg_token", "dist_token", "norm_pre"})

    def logits(self, output: Any) -> Tensor:
        if isinstance(output, tuple):  # DeiT's two heads while it is trained to be distilled
            return torch.stack(output).mean(dim=0)
        return output

    def _replace_classifier(self, num_classes: int) -> None:
        self.model.reset_classifier(num_classes)

    @property
    def pretrained_classes(self) -> int | None:
        return self._config.get("num_classes")

    def preprocessing(self) -> dict[str, Any]:
        if not self._config:
            return {}
        known = resolve_model_data_config(self.model)
        return {name: known[name] for name in IMAGE_FACTS}

    def architecture(self) -> dict[str, Any] | None:
        name = self._config.get("architecture")
        return None if not name else {"library": self.library, "architecture": name, "options": self.build_options()}

    @abstractmethod
    def build_options(self) -> dict[str, Any]:
        """What builds a model of this shape again, as plain data."""

    @classmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> nn.Module:
        return timm.create_model(architecture["architecture"], pretrained=False, **architecture["options"])

    @property
    def _config(self) -> dict[str, Any]:
        return dict(getattr(self.model, "pretrained_cfg", None) or {})
