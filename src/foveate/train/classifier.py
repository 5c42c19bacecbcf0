"""The classifier of a model, whichever library it is from, and which parameters learn."""

from __future__ import annotations

from typing import Any

from torch import nn

from foveate.adapters import CHILD, find_keeper
from foveate.models.by_name import CLASSIFIERS

# parts of a parameter's name that say it comes before the first block
EMBEDDING = {
    *("patch_embed", "pos_embed", "cls_token", "reg_token", "dist_token", "norm_pre"),  # timm
    *("embeddings", "pre_layrnorm"),  # transformers, which spells it so
    *("conv_proj", "class_token", "pos_embedding"),  # torchvision
}


def classifiers(model: Any) -> list[nn.Module]:
    """The layers that turn features into a prediction; none where there is no classifier."""
    found = [getattr(model, name, None) for name in CLASSIFIERS]
    return [layer for layer in found if isinstance(layer, nn.Module) and any(True for _ in layer.parameters())]


def set_classes_(model: Any, num_classes: int) -> None:
    """Give ``model`` a classifier for ``num_classes``, a new one unless it has just that many."""
    if num_classes == predicted_classes(model):
        return
    if hasattr(model, "reset_classifier"):
        model.reset_classifier(num_classes)
    elif isinstance(getattr(model, "classifier", None), nn.Linear):
        model.classifier = nn.Linear(model.classifier.in_features, num_classes)
        model.config.num_labels = model.num_labels = num_classes
    elif isinstance(getattr(getattr(model, "heads", None), "head", None), nn.Linear):
        model.heads.head = nn.Linear(model.heads.head.in_features, num_classes)
        model.num_classes = num_classes
    else:
        raise ValueError(
            f"{type(model).__name__} has no classifier that foveate can replace. Use a model for image classification."
        )


def predicted_classes(model: Any) -> int | None:
    """How many classes a model predicts."""
    for layer in classifiers(model):
        last = [part for part in layer.modules() if isinstance(part, nn.Linear)]
        if last:
            return last[-1].out_features
    return None


def freeze_(model: nn.Module, what: str, blocks: int = 0) -> None:
    """Keep the backbone, or the embedding and the first ``blocks`` blocks, from learning."""
    if what == "backbone":
        if not classifiers(model):
            raise ValueError(f"freeze=backbone trains the classifier, and this {type(model).__name__} has none.")
        model.requires_grad_(False)
        for layer in classifiers(model):
            layer.requires_grad_(True)
    all_blocks = find_keeper(model).blocks(model)
    if not 0 <= blocks <= len(all_blocks):
        raise ValueError(f"freeze_blocks is 0 to {len(all_blocks)}, the blocks of this model; got {blocks}.")
    if blocks:
        for block in all_blocks[:blocks]:
            block.requires_grad_(False)
        for name, parameter in model.named_parameters():
            if EMBEDDING & set(name.split(".")) and not name.startswith(f"{CHILD}."):
                parameter.requires_grad_(False)


def train_mode_(model: nn.Module) -> None:
    """Training mode, but not for what is frozen: dropout there would only add noise."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()
