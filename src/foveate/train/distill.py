"""Task-agnostic distillation into a model that keeps fewer tokens (Lu and Nakamura: EViT from DINOv2, without labels).

The student's class token, and with ``tokens="all"`` its retained patch tokens too, learn to be what a frozen teacher
makes of the same image. A retained token is compared with the teacher's token at its own position, which the trace
knows; a token that stands for several patches (EViT's fused one) is compared with none.

The paper prints neither the loss nor the projection. Ours: one linear map to the teacher's width for class tokens and
one for patch tokens, and the mean squared difference to the teacher's tokens, which are normalised (mean 0 and
variance 1 over channels), so that teachers of any scale weigh the same:

    L = |P_c s_c - t_c|^2 / d  +  w * mean over retained i of |P_p s_i - t_i|^2 / d
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from foveate.adapters import Trace, encode, find_adapter, reduction_of
from foveate.data.preprocessing import Preprocessing
from foveate.train.classifier import classifiers
from foveate.train.objectives import Losses, Objective


class Distil(Objective):
    """A student, the projections to its teacher's width, and the teacher, which is no part of the module's state."""

    better = "loss"
    sign = -1

    def __init__(
        self, model: Any, teacher: Any, tokens: Literal["class", "all"] = "all", patch_weight: float = 1.0
    ) -> None:
        super().__init__(model)
        self.tokens, self.patch_weight = tokens, patch_weight
        self._teacher = (teacher.eval().requires_grad_(False),)  # a tuple hides it from state_dict and the optimiser
        check_pair(model, teacher, tokens)
        width, target = (find_adapter(m).shape(m, grid_of(m)).blocks[0].dim for m in (model, teacher))
        self.class_projection = nn.Linear(width, target)
        self.patch_projection = nn.Linear(width, target) if tokens == "all" else None
        for layer in classifiers(model):
            layer.requires_grad_(False)  # nothing is predicted here
        ours, theirs = Preprocessing.of(model), Preprocessing.of(teacher)
        self._colours = None if (ours.mean, ours.std) == (theirs.mean, theirs.std) else (ours, theirs)

    @property
    def teacher(self) -> nn.Module:
        return self._teacher[0]

    def forward(self, images: Tensor, labels: Tensor) -> Losses:
        return self._losses(self.model, images)

    def measure(self, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {name: loss * len(images) for name, loss in self._losses(model, images).items()}

    def _losses(self, model: nn.Module, images: Tensor) -> Losses:
        class_target, patch_targets = self._targets(images)
        student, retained = final_tokens(model, images, record=self.patch_projection is not None)
        losses = {"loss": squared_difference(self.class_projection(student.cls), class_target).mean()}
        if self.patch_projection is not None:
            position, single = retained
            targets = patch_targets.gather(1, position[..., None].expand(-1, -1, patch_targets.shape[-1]))
            differences = squared_difference(self.patch_projection(student.patches), targets)
            losses["patches"] = self.patch_weight * mean_over(differences, single)
        return losses

    @torch.no_grad()
    def _targets(self, images: Tensor) -> tuple[Tensor, Tensor]:
        self.teacher.to(images.device)
        if self._colours is not None:  # images come in the student's colours
            ours, theirs = self._colours
            images = theirs.normalise(ours.pixels(images))
        tokens, _ = final_tokens(self.teacher, images, record=False)
        return normalised(tokens.cls), normalised(tokens.patches)


class FinalTokens:
    """Tokens after the last block and norm."""

    def __init__(self, tokens: Tensor, prefix: int) -> None:
        self.cls, self.patches = tokens[:, 0], tokens[:, prefix:]


def final_tokens(model: Any, images: Tensor, record: bool) -> tuple[FinalTokens, tuple[Tensor, Tensor]]:
    """A model's last tokens; recorded, also the position of each patch token and whether it is one patch alone."""
    adapter = find_adapter(model)
    encoded = encode(adapter, model, images, record=record)
    prefix = adapter.num_prefix(model)
    tokens = FinalTokens(adapter.final_norm(model, encoded.stream.tokens), prefix)
    if not record:
        return tokens, (torch.empty(0), torch.empty(0))
    trace = Trace.of(encoded, adapter.grid(model, *images.shape[-2:]), prefix)
    return tokens, positions(trace)


def positions(trace: Trace) -> tuple[Tensor, Tensor]:
    """For each token after the last block, (B, K): the patch it holds, and whether it holds just that one."""
    whole = trace.after(-1)
    src, dst, weight = whole.edges(trace.batch, trace.device)
    there = (weight != 0).long()
    slots = torch.zeros(trace.batch, whole.num_out, dtype=torch.long, device=trace.device)
    count = slots.scatter_add(1, dst, there)
    position = slots.scatter_reduce(1, dst, src * there, "amax")
    return position, count == 1


def normalised(tokens: Tensor) -> Tensor:
    return layer_norm(tokens.float(), tokens.shape[-1:])


def squared_difference(ours: Tensor, theirs: Tensor) -> Tensor:
    """Mean over channels, (B,) or (B, K)."""
    return (ours.float() - theirs).square().mean(dim=-1)


def mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of the chosen values (B, K) of each image, then over images: an image weighs the same in any batch."""
    number = chosen.sum(dim=1).clamp(min=1)
    return ((values * chosen).sum(dim=1) / number).mean()


def grid_of(model: Any) -> tuple[int, int]:
    adapter = find_adapter(model)
    return adapter.grid(model, *adapter.image_size(model)[1:])


def check_pair(student: Any, teacher: Any, tokens: str) -> None:
    """Refuse a pair that cannot be compared, before any image is read."""
    for who, model in (("student", student), ("teacher", teacher)):
        if not find_adapter(model).has_cls(model):
            raise ValueError(f"Distillation compares class tokens; the {who} has none.")
    size = find_adapter(student).image_size(student)[1:]
    try:
        grids = grid_of(student), find_adapter(teacher).grid(teacher, *size)
    except ValueError as error:
        raise ValueError(f"Student and teacher see the same images; the teacher refuses them. {error}") from error
    if tokens == "all" and grids[0] != grids[1]:
        raise ValueError(
            f"Patch tokens are compared place by place; the student has {grids[0]} patches and the teacher {grids[1]}. "
            "Use patches and images of the same size, or objective.tokens=class."
        )
    if tokens == "all" and reduction_of(teacher) is not None:
        raise ValueError(
            "The teacher is reduced, so that it has no token of its own at every place. Give the teacher unreduced "
            "(foveate.restore_), or objective.tokens=class."
        )
    reduction = reduction_of(student)
    if tokens == "all" and reduction is not None and reduction.exact_last_block:
        raise ValueError("With exact_last_block no patch token is left to distil. Leave it off, or tokens=class.")
