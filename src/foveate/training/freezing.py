"""Which parameters learn."""

from __future__ import annotations

from torch import nn

from foveate.adapters import CHILD, inspect


def freeze_(model: nn.Module, what: str, blocks: int = 0) -> None:
    """Freeze the backbone, or the embedding and the first ``blocks`` blocks."""
    family = inspect(model)
    if what == "backbone":
        if not family.classifiers():
            raise ValueError(f"freeze=backbone trains the classifier, and this {type(model).__name__} has none.")
        model.requires_grad_(False)
        for layer in family.classifiers():
            layer.requires_grad_(True)
    all_blocks = family.blocks
    if not 0 <= blocks <= len(all_blocks):
        raise ValueError(f"freeze_blocks is 0 to {len(all_blocks)}, the blocks of this model; got {blocks}.")
    if blocks:
        for block in all_blocks[:blocks]:
            block.requires_grad_(False)
        for name, parameter in model.named_parameters():
            if family.embedding_names & set(name.split(".")) and not name.startswith(f"{CHILD}."):
                parameter.requires_grad_(False)


def train_mode_(model: nn.Module) -> None:
    """Training mode, but not for what is frozen: dropout there would only add noise."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()
