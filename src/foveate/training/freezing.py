"""Freezing parameters."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from foveate.adapters import CHILD, inspect


def freeze_(model: nn.Module, what: str, blocks: int = 0, parameters: Sequence[str] = ()) -> None:
    """Freeze the backbone, or the embedding and the first ``blocks`` blocks; and ``parameters``, by part of a name."""
    family = inspect(model)
    if what == "backbone":
        if not family.classifiers():
            raise ValueError(f"freeze=backbone trains only the classifier, but this {type(model).__name__} has none.")
        model.requires_grad_(False)
        for layer in family.classifiers():
            layer.requires_grad_(True)
    all_blocks = family.blocks
    if not 0 <= blocks <= len(all_blocks):
        raise ValueError(f"freeze_blocks must be 0 to {len(all_blocks)}, the number of blocks; got {blocks}.")
    if blocks:
        for block in all_blocks[:blocks]:
            block.requires_grad_(False)
        for name, parameter in model.named_parameters():
            if family.embedding_names & set(name.split(".")) and not name.startswith(f"{CHILD}."):
                parameter.requires_grad_(False)
    for part in parameters:
        _freeze_part_(model, part)


def _freeze_part_(model: nn.Module, part: str) -> None:
    """Freeze the model's own parameters that have ``part`` in their dotted name."""
    own = [(name, p) for name, p in model.named_parameters() if not name.startswith(f"{CHILD}.")]
    found = [parameter for name, parameter in own if f".{part}." in f".{name}."]
    if not found:
        raise ValueError(
            f"model.freeze_parameters names {part!r}, and this {type(model).__name__} has no such parameter."
        )
    for parameter in found:
        parameter.requires_grad_(False)


def train_mode_(model: nn.Module) -> None:
    """Put the model into training mode, except frozen modules, where dropout would only add noise."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()
