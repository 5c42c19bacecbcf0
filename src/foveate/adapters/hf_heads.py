"""Heads of transformers' vision models, with tokens weighted by size.

Each head is a function of (model, backbone, final tokens, sizes, labels, hidden states) that returns the model's
own output class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.models.clip.modeling_clip import CLIPVisionModelOutput
from transformers.models.deit.modeling_deit import DeiTForImageClassificationWithTeacherOutput

from foveate.adapters.blocks import linear_macs
from foveate.adapters.pooling import mean_of_patches

Hidden = Any  # a tuple of tensors or None; the annotations of transformers' outputs are narrower


def pooler_output(backbone: Any, tokens: Tensor, size: Tensor | None) -> Tensor | None:
    """The backbone's pooled vector, if it has one."""
    name = _backbone_name(backbone)
    if name == "SiglipVisionModel":
        return siglip_pool(backbone.head, tokens, size) if backbone.use_head else None
    if name == "CLIPVisionModel":
        return backbone.post_layernorm(tokens[:, 0])
    if name in ("ViTModel", "DeiTModel"):
        return None if backbone.pooler is None else backbone.pooler(tokens)
    return tokens[:, 0]


def siglip_pool(head: Any, tokens: Tensor, size: Tensor | None) -> Tensor:
    """SigLIP's attention pooling with a log-size bias, for which its own forward has no argument."""
    if size is None:
        return head(tokens)
    probe = head.probe.repeat(tokens.shape[0], 1, 1)
    bias = size.log().to(tokens.dtype)
    x = head.attention(probe, tokens, tokens, key_padding_mask=bias, need_weights=False)[0]
    return (x + head.mlp(head.layernorm(x)))[:, 0]


def plain(model: Any, backbone: Any, tokens: Tensor, size: Tensor | None, labels: Any, hidden: Hidden) -> Any:
    """A backbone without a classifier."""
    if labels is not None:
        raise ValueError(f"{type(model).__name__} has no classifier, so it takes no labels.")
    pooled = pooler_output(backbone, tokens, size)
    return BaseModelOutputWithPooling(tokens, pooled, hidden)  # type: ignore[arg-type]


def class_token(model: Any, backbone: Any, tokens: Tensor, size: Tensor | None, labels: Any, hidden: Hidden) -> Any:
    return _classified(model, model.classifier(tokens[:, 0]), labels, hidden)


def class_and_mean(model: Any, backbone: Any, tokens: Tensor, size: Tensor | None, labels: Any, hidden: Hidden) -> Any:
    """DINOv2: the class token concatenated with the mean over patches."""
    prefix = 1 + getattr(model.config, "num_register_tokens", 0)
    mean = mean_of_patches(tokens[:, prefix:], size)
    return _classified(model, model.classifier(torch.cat([tokens[:, 0], mean], dim=1)), labels, hidden)


def mean(model: Any, backbone: Any, tokens: Tensor, size: Tensor | None, labels: Any, hidden: Hidden) -> Any:
    """CLIP and SigLIP classifiers: the mean over patches, without CLIP's class token."""
    prefix = 1 if _backbone_name(backbone) == "CLIPVisionModel" else 0
    pooler_output(backbone, tokens, size)  # unused, as in the original, whose cost includes it
    return _classified(model, model.classifier(mean_of_patches(tokens[:, prefix:], size)), labels, hidden)


def both_classifiers(
    model: Any, backbone: Any, tokens: Tensor, size: Tensor | None, labels: Any, hidden: Hidden
) -> Any:
    """DeiT with a distillation token: the mean of the two classifiers."""
    if labels is not None:
        raise ValueError(f"{type(model).__name__} is for inference and takes no labels.")
    by_class, by_teacher = model.cls_classifier(tokens[:, 0]), model.distillation_classifier(tokens[:, 1])
    return DeiTForImageClassificationWithTeacherOutput((by_class + by_teacher) / 2, by_class, by_teacher, hidden)


def projection(model: Any, backbone: Any, tokens: Tensor, size: Tensor | None, labels: Any, hidden: Hidden) -> Any:
    """CLIP's image embedding."""
    if labels is not None:
        raise ValueError(f"{type(model).__name__} has no classifier, so it takes no labels.")
    embeds = model.visual_projection(pooler_output(backbone, tokens, size))
    return CLIPVisionModelOutput(image_embeds=embeds, last_hidden_state=tokens, hidden_states=hidden)  # type: ignore[arg-type]


def head_macs(model: Any, backbone: Any) -> tuple[int, int]:
    """MACs after the last block, with the backbone's pooling: (per image, per token that the head reads)."""
    classifiers = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")
    per_image = linear_macs(*(getattr(model, name, None) for name in classifiers))
    per_image += linear_macs(getattr(backbone, "pooler", None))
    if _backbone_name(backbone) != "SiglipVisionModel" or not backbone.use_head:
        return per_image, 0
    width = backbone.head.attention.embed_dim
    # the probe's query and output projection once per image; keys, values and attention for every token
    return per_image + 2 * width**2 + linear_macs(backbone.head.mlp), 2 * width**2 + 2 * width


def _classified(model: Any, logits: Tensor, labels: Any, hidden: Hidden) -> ImageClassifierOutput:
    loss = None if labels is None else model.loss_function(labels, logits, model.config)
    return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=hidden)  # type: ignore[arg-type]


def _backbone_name(backbone: Any) -> str:
    return type(backbone).__name__
