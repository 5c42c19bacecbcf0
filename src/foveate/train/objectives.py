"""What is learned: a model with its loss, as one module that the loop can run anywhere."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

import foveate as fv
from foveate.adapters import reduction_of
from foveate.methods.power import found_counts, mass_penalty, project_retention_, soft_extracts

Losses = dict[str, Tensor]
SHARE_TOLERANCE = 0.01


class Moment(NamedTuple):
    """Where in a run a step is."""

    step: int
    epoch: float
    """Epochs done, a fraction inside one."""


class Objective(nn.Module, ABC):
    """A model and what it is to learn. ``forward`` gives the parts of the loss by name; they are summed."""

    better: ClassVar[str]
    """The figure of an evaluation that tells a better model."""
    sign: ClassVar[int] = 1
    """1 where more of it is better, -1 where less is."""
    backbone_lr: float = 1.0
    """Learning rate of the model's own parameters, as a multiple of that of ``own_groups``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, images: Tensor, labels: Tensor) -> Losses: ...

    @abstractmethod
    def measure(self, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Sums over the images of a batch, for an evaluation of ``model`` (this one, or its moving average)."""

    def before_step(self, moment: Moment) -> None:
        """Change what changes over time."""

    def before_update(self, moment: Moment) -> None:
        """Look at the gradients before the optimiser does."""

    def after_step(self) -> None:
        """Mend what an optimiser's step has broken."""

    def own_groups(self) -> list[dict[str, Any]]:
        """Parameters with settings of their own, for the optimiser."""
        return []

    def finish(self, directory: Path) -> dict[str, Any]:
        """Write what the run was for, beside the model; returns what to tell the user."""
        return {}


class Classify(Objective):
    """Cross-entropy with labels, which may be soft (``Mixup`` makes them so), and ``kl`` times the divergence from the
    prediction of a frozen ``teacher``: the model as it was before tokens were taken from it, ``initial_teacher``.
    """

    better = "top1"

    def __init__(
        self, model: nn.Module, smoothing: float = 0.0, kl: float = 0.0, teacher: nn.Module | None = None
    ) -> None:
        super().__init__(model)
        self.smoothing, self.kl = smoothing, kl
        if kl and teacher is None:
            raise ValueError("Distillation (kl) needs a teacher: initial_teacher(model), or a weight of 0.")
        self._teacher = (None if teacher is None else teacher.eval().requires_grad_(False),)  # hidden from the state

    def forward(self, images: Tensor, labels: Tensor) -> Losses:
        logits = logits_of(self.model(images))
        losses = {"loss": self.cross_entropy(logits, labels)}
        if self.kl:
            with torch.no_grad():
                target = logits_of(self.teacher(images.device)(images))
            losses["kl"] = self.kl * prediction_loss(logits, target)
        return losses

    def teacher(self, device: torch.device) -> nn.Module:
        (teacher,) = self._teacher
        assert teacher is not None
        return teacher.to(device)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        smoothing = self.smoothing if labels.dim() == 1 else 0.0  # soft labels are smoothed already
        return cross_entropy(logits.float(), labels, label_smoothing=smoothing)

    def measure(self, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = logits_of(model(images)).float()
        return {"loss": cross_entropy(logits, labels, reduction="sum"), **correct(logits, labels)}


class PowerSearch(Classify):
    """Cross-entropy and PoWER-BERT's penalty on retained mass: L + lambda sum_l l * mass(l).

    The paper tries several lambdas and takes the counts they lead to. Here a share of the tokens can be asked for
    (``mass``): the penalty pulls the mass down to it, and below it all retention parameters are raised again;
    loss and penalty then decide where the mass is.
    """

    def __init__(self, model: nn.Module, strength: float, mass: float, lr: float, smoothing: float = 0.0) -> None:
        super().__init__(model, smoothing)
        if not 0 <= mass < 1:
            raise ValueError(f"objective.mass is a share of the tokens, from 0 to below 1; got {mass}.")
        self.strength, self.asked, self.lr = strength, mass, lr

    def forward(self, images: Tensor, labels: Tensor) -> Losses:
        losses = super().forward(images, labels)
        return losses | {"mass": self.strength * mass_penalty(self.model)}

    def own_groups(self) -> list[dict[str, Any]]:
        reduction = reduction_of(self.model)
        assert reduction is not None
        return [{"params": list(reduction.learned.parameters()), "lr": self.lr, "weight_decay": 0.0}]

    def after_step(self) -> None:
        project_retention_(self.model)
        hold_mass_(self.model, self.asked)

    def finish(self, directory: Path) -> dict[str, Any]:
        counts = found_counts(self.model)
        path = fv.save_schedule(fv.Keep(counts), directory / "schedule.json")
        share = retained_share(self.model)
        found = {"counts": list(counts), "share": share, "schedule": str(path)}
        if self.asked and share > self.asked + SHARE_TOLERANCE:
            found["note"] = (
                f"The search left {share:.2f} of the tokens, not {self.asked:g}: it needs more steps, a larger "
                "objective.strength or a larger objective.retention_lr."
            )
        return found


@torch.no_grad()
def retained_share(model: nn.Module, raised: float = 0.0) -> float:
    """Tokens the search leaves over all blocks, as a share of all, with every parameter ``raised`` by so much.

    A token that is gone does not come back, so that no block retains more than one before it.
    """
    retained = torch.stack([module.retention for module in soft_extracts(model)]) + raised
    return retained.clamp(0, 1).mean(dim=1).cummin(dim=0).values.mean().item()


@torch.no_grad()
def hold_mass_(model: nn.Module, share: float) -> None:
    """Where less than ``share`` is retained, raise all retention parameters alike until it is just that."""
    if retained_share(model) >= share:
        return
    low, high = 0.0, 1.0
    for _ in range(30):  # the share rises with the amount: halve the interval
        middle = (low + high) / 2
        low, high = (middle, high) if retained_share(model, middle) < share else (low, middle)
    for module in soft_extracts(model):
        module.retention.add_(high).clamp_(0, 1)


def prediction_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(teacher || student) of the two predictions, mean over images."""
    ours, theirs = log_softmax(logits.float(), dim=-1), log_softmax(teacher_logits.float(), dim=-1)
    return kl_div(ours, theirs, reduction="batchmean", log_target=True)


def initial_teacher(model: nn.Module) -> nn.Module:
    """The model as it is now, unreduced, frozen, and sharing nothing with it."""
    teacher = copy.deepcopy(model)
    if reduction_of(teacher) is not None:
        fv.restore_(teacher)
    # an untouched model is reduced by nothing, so that what it sees inside can be recorded
    return fv.reduce_(teacher, fv.TopK(), fv.Keep({})).eval().requires_grad_(False)


def logits_of(output: Any) -> Tensor:
    """The prediction, whichever way a library returns it."""
    if isinstance(output, tuple):  # DeiT's two heads while it is trained to be distilled
        return torch.stack(output).mean(dim=0)
    return output if isinstance(output, Tensor) else output.logits


def correct(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """How many of the images have their label first, and among the first five."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hit = best == labels[:, None]
    return {"top1": hit[:, 0].sum().float(), "top5": hit.sum().float()}
