"""Heads of transformers' vision models, with tokens weighted by size. Each returns the model's own output class."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.models.clip.modeling_clip import CLIPVisionModelOutput
from transformers.models.deit.modeling_deit import DeiTForImageClassificationWithTeacherOutput
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTBackboneOutput
from transformers.models.dpt.modeling_dpt import BaseModelOutputWithPoolingAndIntermediateActivations as DPTOutput
from transformers.models.metaclip_2.modeling_metaclip_2 import MetaClip2VisionModelOutput
from transformers.models.vit_mae.modeling_vit_mae import ViTMAEModelOutput

from foveate.adapters.blocks import linear_macs
from foveate.adapters.hf_backbones import Pool, pool_siglip
from foveate.adapters.pooling import mean_of_patches


class Final(NamedTuple):
    """What a head reads."""

    model: Any
    backbone: Any
    tokens: Tensor  # (B, P + N, C) after the final norm
    size: Tensor | None  # (B, N) patches each token stands for
    prefix: int
    grid: tuple[int, int]
    pool: Pool
    labels: Tensor | None = None
    hidden: Any = None  # tokens before the first block and after each, if they are wanted; transformers' types differ
    shows_hidden: bool = False  # whether the output has them

    @property
    def shown(self) -> Any:
        return self.hidden if self.shows_hidden else None

    def pooled(self) -> Tensor | None:
        return self.pool(self.backbone, self.tokens, self.size)

    def classified(self, logits: Tensor) -> ImageClassifierOutput:
        model = self.model
        loss = None if self.labels is None else model.loss_function(self.labels, logits, model.config)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=self.shown)  # type: ignore[arg-type]

    def refuse_labels(self) -> None:
        if self.labels is not None:
            raise ValueError(f"{type(self.model).__name__} has no classifier, so it takes no labels.")


def plain(final: Final) -> Any:
    """A backbone without a classifier."""
    final.refuse_labels()
    return BaseModelOutputWithPooling(final.tokens, final.pooled(), final.shown)  # type: ignore[arg-type]


def dpt(final: Final) -> Any:
    """DPT's own encoder, whose hidden states its neck reads."""
    final.refuse_labels()
    return DPTOutput(final.tokens, final.pooled(), final.shown)  # type: ignore[arg-type]


def unmasked(final: Final) -> Any:
    """ViT-MAE without a mask: all patches are there, in order."""
    final.refuse_labels()
    count = final.grid[0] * final.grid[1]
    order: Any = torch.arange(count, device=final.tokens.device).expand(final.tokens.shape[0], -1)
    tokens: Any = final.tokens
    return ViTMAEModelOutput(tokens, torch.zeros_like(order, dtype=torch.float32), order, final.shown)  # type: ignore[arg-type]


def class_token(final: Final) -> Any:
    return final.classified(final.model.classifier(final.tokens[:, 0]))


def pooled(final: Final) -> Any:
    """A classifier on the backbone's pooled vector."""
    return final.classified(final.model.classifier(final.pooled()))


def class_and_mean(final: Final) -> Any:
    """DINOv2: the class token concatenated with the mean over patches."""
    mean = mean_of_patches(final.tokens[:, final.prefix :], final.size)
    return final.classified(final.model.classifier(torch.cat([final.tokens[:, 0], mean], dim=1)))


def mean(final: Final) -> Any:
    """CLIP and SigLIP classifiers: the mean over patches, without CLIP's class token."""
    final.pooled()  # unused, as in the original, whose cost includes it
    mean = mean_of_patches(final.tokens[:, final.prefix :], final.size)
    return final.classified(final.model.classifier(mean))


def both_classifiers(final: Final) -> Any:
    """DeiT with a distillation token: the mean of the two classifiers."""
    model, tokens = final.model, final.tokens
    if final.labels is not None:
        raise ValueError(f"{type(model).__name__} is for inference and takes no labels.")
    by_class, by_teacher = model.cls_classifier(tokens[:, 0]), model.distillation_classifier(tokens[:, 1])
    return DeiTForImageClassificationWithTeacherOutput((by_class + by_teacher) / 2, by_class, by_teacher, final.shown)


def projection(final: Final) -> Any:
    """The image embedding of CLIP and MetaCLIP 2."""
    final.refuse_labels()
    embeds = final.model.visual_projection(final.pooled())
    own: Any = (
        MetaClip2VisionModelOutput if type(final.model).__name__.startswith("MetaClip2") else CLIPVisionModelOutput
    )
    return own(image_embeds=embeds, last_hidden_state=final.tokens, hidden_states=final.shown)


# -- maps


def dinov2_maps(final: Final) -> Any:
    config = final.model.config
    maps = []
    for hidden in _stages(final):
        hidden = final.backbone.layernorm(hidden) if config.apply_layernorm else hidden
        maps.append(_as_map(final, hidden[:, final.prefix :]) if config.reshape_hidden_states else hidden)
    return BackboneOutput(tuple(maps), final.shown)  # type: ignore[arg-type]


def dinov3_maps(final: Final) -> Any:
    """The last stage is always normed, and prefix tokens are always cut off."""
    config, norm, last = final.model.config, final.backbone.norm, final.hidden[-1]
    stages = [norm(one) if one is last or config.apply_layernorm else one for one in _stages(final)]
    maps = [one[:, final.prefix :] for one in stages]
    shown = tuple(_as_map(final, one) for one in maps) if config.reshape_hidden_states else tuple(maps)
    classes = tuple(one[:, 0] for one in stages) if getattr(config, "return_class_token", False) else None
    output = DINOv3ViTBackboneOutput(shown, final.shown, cls_tokens=classes)  # type: ignore[arg-type]
    output.last_hidden_state = final.tokens
    return output


def vitpose_maps(final: Final) -> Any:
    maps = tuple(final.backbone.layernorm(hidden) for hidden in _stages(final))
    return BackboneOutput(maps, final.shown)


def _stages(final: Final) -> list[Tensor]:
    """The hidden states that become maps."""
    model = final.model
    return [one for name, one in zip(model.stage_names, final.hidden, strict=True) if name in model.out_features]


def _as_map(final: Final, patches: Tensor) -> Tensor:
    return patches.unflatten(1, final.grid).permute(0, 3, 1, 2).contiguous()


def head_macs(model: Any, backbone: Any, pool: Pool) -> tuple[int, int]:
    """MACs after the last block, with the backbone's pooling: (per image, per token that the head reads)."""
    classifiers = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")
    per_image = linear_macs(*(getattr(model, name, None) for name in classifiers))
    per_image += linear_macs(getattr(backbone, "pooler", None))
    if pool is not pool_siglip or not backbone.use_head:
        return per_image, 0
    width = backbone.head.attention.embed_dim
    # the probe's query and output projection once per image; keys, values and attention for every token
    return per_image + 2 * width**2 + linear_macs(backbone.head.mlp), 2 * width**2 + 2 * width
