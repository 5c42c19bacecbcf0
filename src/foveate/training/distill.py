"""Task-agnostic distillation into a model that keeps fewer tokens (Lu and Nakamura: EViT from DINOv2, without labels).

The student's class token, and with ``tokens="all"`` its retained patch tokens too, learn to match those of a frozen
teacher for the same image. A retained token is compared with the teacher's token at its position, which the trace
provides; a token that holds several patches (EViT's fused one) is not compared.

The paper prints neither the loss nor the projection. Ours: one linear map to the teacher's width for class tokens and
one for patch tokens, and the mean squared difference to the teacher's tokens, which are normalized (mean 0 and
variance 1 over channels), so that the teacher's scale does not matter:

    L = |P_c s_c - t_c|^2 / d  +  w * mean over retained i of |P_p s_i - t_i|^2 / d
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from foveate.adapters import Trace, inspect
from foveate.data.preprocessing import Preprocessing
from foveate.tasks import Metrics
from foveate.training.objectives import Losses, Objective


class Distill(Objective):
    """A student, projections to the teacher's width, and the teacher, which is not part of the module's state."""

    monitor, mode = "loss", "min"

    def __init__(
        self, model: Any, teacher: Any, tokens: Literal["class", "all"] = "all", patch_weight: float = 1.0
    ) -> None:
        super().__init__(model)
        self.tokens, self.patch_weight = tokens, patch_weight
        self._teacher = (teacher.eval().requires_grad_(False),)  # a tuple hides it from state_dict and the optimizer
        check_pair(model, teacher, tokens)
        width, target = (inspect(m).shape().blocks[0].dim for m in (model, teacher))
        self.class_projection = nn.Linear(width, target)
        self.patch_projection = nn.Linear(width, target) if tokens == "all" else None
        for layer in inspect(model).classifiers():
            layer.requires_grad_(False)  # nothing is predicted here
        ours, theirs = Preprocessing.of(model), Preprocessing.of(teacher)
        self._colors = None if (ours.mean, ours.std) == (theirs.mean, theirs.std) else (ours, theirs)

    @property
    def teacher(self) -> nn.Module:
        return self._teacher[0]

    def forward(self, images: Tensor, targets: Any) -> Losses:
        return self.predict(self.model, images)

    def metrics(self) -> Metrics:
        return MeanLosses()

    def predict(self, model: nn.Module, images: Tensor) -> Losses:
        """Return the losses, which need no targets."""
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
        if self._colors is not None:  # images are normalized for the student
            ours, theirs = self._colors
            images = theirs.normalize(ours.pixels(images))
        tokens, _ = final_tokens(self.teacher, images, record=False)
        return normalized(tokens.cls), normalized(tokens.patches)


@dataclass
class MeanLosses(Metrics):
    """Mean losses over images."""

    images: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def update(self, prediction: Losses, targets: Any, reference: Any = None) -> None:
        self._add(len(targets), {name: float(loss) * len(targets) for name, loss in prediction.items()})

    def merge(self, other: MeanLosses) -> None:
        self._add(other.images, other.sums)

    def _add(self, images: int, sums: Mapping[str, float]) -> None:
        self.images += images
        self.sums = self.sums | {name: self.sums.get(name, 0.0) + value for name, value in sums.items()}

    def compute(self) -> dict[str, float]:
        return {name: total / self.images for name, total in self.sums.items()}

    def state(self) -> dict[str, Any]:
        return {"images": self.images, "sums": self.sums}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MeanLosses:
        return cls(**state)


class FinalTokens:
    """Tokens after the last block and norm."""

    def __init__(self, tokens: Tensor, prefix: int) -> None:
        self.cls, self.patches = tokens[:, 0], tokens[:, prefix:]


def final_tokens(model: Any, images: Tensor, record: bool) -> tuple[FinalTokens, tuple[Tensor, Tensor]]:
    """Return a model's final tokens and, with ``record``, the position of each and whether it is a single patch."""
    family = inspect(model)
    encoded = family.encode(images, record=record)
    tokens = FinalTokens(family.final_norm(encoded.stream.tokens), family.num_prefix)
    if not record:
        return tokens, (torch.empty(0), torch.empty(0))
    trace = Trace.of(encoded, family.grid_for(*images.shape[-2:]), family.num_prefix)
    return tokens, positions(trace)


def positions(trace: Trace) -> tuple[Tensor, Tensor]:
    """Return, for each token after the last block, (B, K): a patch it holds, and whether it holds only that one."""
    assignment = trace.after(-1)
    src, dst, _, present = assignment.edges(trace.batch, trace.device)
    there = present.long()
    slots = torch.zeros(trace.batch, assignment.num_out, dtype=torch.long, device=trace.device)
    count = slots.scatter_add(1, dst, there)
    position = slots.scatter_reduce(1, dst, src * there, "amax")
    return position, count == 1


def normalized(tokens: Tensor) -> Tensor:
    """Normalize tokens to mean 0 and variance 1 over channels."""
    return layer_norm(tokens.float(), tokens.shape[-1:])


def squared_difference(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the squared difference, averaged over channels: (B,) or (B, K)."""
    return (ours.float() - theirs).square().mean(dim=-1)


def mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """Average the chosen values (B, K) per image, then over images, so each image has the same weight in any batch."""
    number = chosen.sum(dim=1).clamp(min=1)
    return ((values * chosen).sum(dim=1) / number).mean()


def check_pair(student: Any, teacher: Any, tokens: str) -> None:
    """Raise a ValueError if student and teacher cannot be compared, before any image is read."""
    ours, theirs = inspect(student), inspect(teacher)
    for who, family in (("student", ours), ("teacher", theirs)):
        if not family.has_cls:
            raise ValueError(f"Distillation compares class tokens, but the {who} has none.")
    try:
        grids = ours.grid, theirs.grid_for(*ours.image_size[1:])
    except ValueError as error:
        raise ValueError(f"The teacher cannot take the student's images. {error}") from error
    if tokens == "all" and grids[0] != grids[1]:
        raise ValueError(
            f"Patch tokens are compared by position. The student has {grids[0]} patches, but the teacher {grids[1]}. "
            "Use patches and images of the same size, or objective.tokens=class."
        )
    if tokens == "all" and theirs.reducer is not None:
        raise ValueError(
            "The teacher is reduced, so it does not have a token at every position. Pass it unreduced "
            "(foveate.restore_), or set objective.tokens=class."
        )
    if tokens == "all" and ours.reduction.exact_last_block:
        raise ValueError(
            "With exact_last_block no patch token is left to distill. Turn it off, or set objective.tokens=class."
        )
