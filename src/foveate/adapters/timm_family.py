"""What all timm families share: classifier, preprocessing, weight decay and rebuilding."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from foveate.adapters.family import Family

SAVED_OPTIONS = (
    *("num_classes", "in_chans", "img_size", "patch_size", "embed_dim", "depth", "num_heads", "class_token"),
    *("global_pool", "fc_norm", "dynamic_img_size", "drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate"),
    *("drop_path_rate", "stages"),  # the last is HVT's
)
IMAGE_FACTS = ("mean", "std", "interpolation", "crop_pct", "crop_mode")


class TimmFamily(Family):
    """A model from timm's registry, or built by hand from timm's classes."""

    library = "timm"
    classifier_names = ("head", "head_dist")
    saved_options: ClassVar[frozenset[str]] = frozenset(SAVED_OPTIONS)
    """Names of all options that ``build_options`` may write."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules of timm whose models only this family rebuilds; empty for the family that rebuilds all others."""
    embedding_names = frozenset({"patch_embed", "pos_embed", "cls_token", "reg_token", "dist_token", "norm_pre"})

    def logits(self, output: Any) -> Tensor:
        if isinstance(output, tuple):  # DeiT's two heads in distillation training
            return torch.stack(output).mean(dim=0)
        return output

    def _replace_classifier(self, num_classes: int) -> None:
        self.model.reset_classifier(num_classes)

    def preprocessing(self) -> dict[str, Any]:
        if not self._config:
            return {}
        known = resolve_model_data_config(self.model)
        return {name: known[name] for name in IMAGE_FACTS}

    def at_image_size(self, height: int, width: int) -> nn.Module:
        if not hasattr(self.model, "set_input_size"):
            return super().at_image_size(height, width)
        shared = {id(tensor): tensor for tensor in (*self.model.parameters(), *self.model.buffers())}
        resized = copy.deepcopy(self.model, shared)
        with torch.no_grad():
            resized.set_input_size(img_size=(height, width))
        return resized

    def architecture(self) -> dict[str, Any] | None:
        name = self._config.get("architecture")
        return None if not name else {"library": self.library, "architecture": name, "options": self.build_options()}

    @abstractmethod
    def build_options(self) -> dict[str, Any]:
        """Options that rebuild a model of this shape, as plain data."""

    @classmethod
    def can_rebuild(cls, architecture: Mapping[str, Any]) -> bool:
        if not super().can_rebuild(architecture) or not cls.modules:
            return super().can_rebuild(architecture)
        name = architecture.get("architecture")
        known = isinstance(name, str) and timm.is_model(name)
        return known and timm.model_entrypoint(str(name)).__module__.split(".")[-1] in cls.modules

    @classmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> nn.Module:
        name = architecture.get("architecture")
        if not isinstance(name, str) or ":" in name or "/" in name or not timm.is_model(name):
            raise ValueError(f"The saved model has the architecture {name!r:.80}, which this timm does not have.")
        options = cls.check_saved_options(architecture.get("options"), cls.saved_options)
        return timm.create_model(name, pretrained=False, **options)

    @property
    def _config(self) -> dict[str, Any]:
        return dict(getattr(self.model, "pretrained_cfg", None) or {})
