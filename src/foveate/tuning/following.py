"""What a reduced model is tuned to: the unreduced model's predictions, and its class token after every block.

    L = KL(p_unreduced || p_reduced) + w * mean over blocks of |n(c_reduced) - n(c_unreduced)|^2 / d

where n gives a token mean 0 and variance 1 over its d channels, and 1 - cos replaces KL where there are no classes.
Predictions on a few hundred images are soon learned by heart. Class tokens are harder to fit by chance, since all
channels of all blocks must agree. Prefix tokens are compared where they alone reach the head; a head that reads patches
follows predictions only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, kl_div, layer_norm, mse_loss

from foveate.adapters import inspect
from foveate.tasks import Task

TOKEN_WEIGHT = 40.0
"""Weight of prefix tokens: at a third of the MACs both parts of the loss are then of one order."""


class Following:
    """The loss of a student that follows a teacher."""

    def __init__(self, student: nn.Module, teacher: nn.Module, task: Task) -> None:
        self.student, self.teacher, self.task = student, teacher, task
        self.classifies = inspect(teacher).num_classes is not None

    def loss(self, images: Tensor) -> Tensor:
        """How far the student is from the teacher on images as they read them."""
        with torch.no_grad(), prefix_tokens(self.teacher) as theirs:
            target = self.task.predict(self.teacher, images)
        with prefix_tokens(self.student) as ours:
            predicted = self.task.predict(self.student, images)
        found = divergence(predicted, target, self.classifies)
        return found + TOKEN_WEIGHT * token_error(ours, theirs) if ours else found


def divergence(predicted: Any, target: Any, classifies: bool) -> Tensor:
    """KL(target || predicted) of logits (B, classes, ...), or one minus the cosine of embeddings: the mean."""
    if not classifies:
        return (1 - cosine_similarity(predicted.float(), target.float(), dim=-1)).mean()
    ours, theirs = (logits.float().movedim(1, -1).flatten(0, -2).log_softmax(-1) for logits in (predicted, target))
    return kl_div(ours, theirs, log_target=True, reduction="batchmean")


def token_error(ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """Mean squared difference of normalized tokens (B, P, C), over blocks."""
    one, other = (layer_norm(torch.stack(tokens).float(), tokens[0].shape[-1:]) for tokens in (ours, theirs))
    return mse_loss(one, other)


@contextmanager
def prefix_tokens(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the prefix tokens (B, P, C) after every block that runs; none if the head reads patch tokens too."""
    family = inspect(model)
    shape, found = family.shape(), list[Tensor]()

    def keep(block: nn.Module, given: Any, output: Any) -> None:
        tokens = output[0] if isinstance(output, tuple) else output
        found.append(tokens[:, : shape.num_prefix])

    watched = family.blocks if shape.num_prefix and not shape.head_reads_patches else []
    hooks = [block.register_forward_hook(keep) for block in watched]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
