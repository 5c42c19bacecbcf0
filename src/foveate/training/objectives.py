"""Training objectives: a model with its loss, as one module."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

import foveate as fv
from foveate.adapters import reducer_of
from foveate.methods.power import found_counts, mass_penalty, project_retention_, soft_extracts
from foveate.tasks import Classification, Metrics, Task
from foveate.tasks.base import Mode

Losses = dict[str, Tensor]
SHARE_TOLERANCE = 0.01


class Moment(NamedTuple):
    """The position of a step in a run."""

    step: int
    epoch: float
    """Finished epochs, with a fraction for the current one."""


class Objective(nn.Module, ABC):
    """A model and its loss. ``forward`` returns the parts of the loss by name; they are summed."""

    monitor: str
    """The metric that selects the best model."""
    mode: Mode = "max"
    """Whether a higher or a lower value is better."""
    backbone_lr: float = 1.0
    """Learning rate of the model's own parameters, as a multiple of that of ``param_groups``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, images: Tensor, targets: Any) -> Losses: ...

    @abstractmethod
    def predict(self, model: nn.Module, images: Tensor) -> Any:
        """Return the predictions of ``model`` (this one, or its moving average) for an evaluation."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Return empty metrics for those predictions."""

    def check_prediction(self, prediction: Any, reference: Any, name: str) -> None:
        """Do nothing: a training run has no reference model to compare with."""

    def is_better(self, value: float, best: float | None) -> bool:
        """Return whether ``value`` of the monitored metric is better than the best so far."""
        return best is None or (value > best if self.mode == "max" else value < best)

    def before_step(self, moment: Moment) -> None:
        """Update what changes over time. Called before each step."""

    def before_update(self, moment: Moment) -> None:
        """Change gradients before the optimizer uses them."""

    def after_step(self) -> None:
        """Restore constraints that the optimizer's step may have violated."""

    def param_groups(self) -> list[dict[str, Any]]:
        """Return parameter groups with their own optimizer settings."""
        return []

    def finish(self, directory: Path) -> dict[str, Any]:
        """Write results other than the model; returns what to report to the user."""
        return {}


class Classify(Objective):
    """The task's loss, plus ``kl`` times the KL divergence from the prediction of a frozen ``teacher``.

    The teacher is usually the model before its reduction, from ``initial_teacher``.
    """

    def __init__(
        self, model: nn.Module, task: Task | None = None, kl: float = 0.0, teacher: nn.Module | None = None
    ) -> None:
        super().__init__(model)
        self.task, self.kl = task or Classification(), kl
        self.monitor, self.mode = self.task.monitor, self.task.mode
        if kl and teacher is None:
            raise ValueError(
                "Distillation (kl) needs a teacher. Pass teacher=initial_teacher(model), or set the weight to 0."
            )
        frozen = None if teacher is None else teacher.eval().requires_grad_(False)
        self._teacher = (frozen,)  # a tuple hides it from state_dict

    def forward(self, images: Tensor, targets: Any) -> Losses:
        if not self.kl:
            return self.task.losses(self.model, images, targets)
        prediction = self.predict(self.model, images)
        with torch.no_grad():
            theirs = self.predict(self.teacher(images.device), images)
        divergence = self.kl * self.task.imitation_loss(prediction, theirs)
        return {"loss": self.task.loss(prediction, targets), "kl": divergence}

    def predict(self, model: nn.Module, images: Tensor) -> Any:
        return self.task.predict(model, images)

    def metrics(self) -> Metrics:
        return self.task.metrics()

    def teacher(self, device: torch.device) -> nn.Module:
        """Return the teacher, on ``device``."""
        (teacher,) = self._teacher
        assert teacher is not None
        return teacher.to(device)


class PowerSearch(Classify):
    """Cross-entropy and PoWER-BERT's penalty on retained mass: L + lambda sum_l l * mass(l).

    The paper tries several lambdas and takes the resulting counts. Here ``mass`` sets a target share of the tokens: the
    penalty pulls the mass down to it, and if it falls below, all retention parameters are raised again. Loss and
    penalty then decide how the mass is distributed over the blocks.
    """

    def __init__(
        self,
        model: nn.Module,
        strength: float,
        mass: float,
        lr: float,
        task: Task | None = None,
        round_down: bool = False,
    ) -> None:
        super().__init__(model, task)
        self.round_down = round_down
        if not 0 <= mass < 1:
            raise ValueError(f"objective.mass is a share of the tokens and must be at least 0 and below 1, got {mass}.")
        self.strength, self.mass, self.lr = strength, mass, lr

    def forward(self, images: Tensor, targets: Any) -> Losses:
        losses = super().forward(images, targets)
        return losses | {"mass": self.strength * mass_penalty(self.model)}

    def param_groups(self) -> list[dict[str, Any]]:
        reducer = reducer_of(self.model)
        assert reducer is not None
        return [{"params": list(reducer.learned.parameters()), "lr": self.lr, "weight_decay": 0.0}]

    def after_step(self) -> None:
        project_retention_(self.model)
        hold_mass_(self.model, self.mass)

    def finish(self, directory: Path) -> dict[str, Any]:
        counts = found_counts(self.model, self.round_down)
        path = fv.save_schedule(fv.Keep(counts), directory / "schedule.json")
        share = retained_share(self.model)
        found = {"counts": list(counts), "share": share, "schedule": str(path)}
        if self.mass and share > self.mass + SHARE_TOLERANCE:
            found["note"] = (
                f"The search left {share:.2f} of the tokens instead of {self.mass:g}. It needs more steps, a larger "
                "objective.strength or a larger objective.retention_lr."
            )
        return found


@torch.no_grad()
def retained_share(model: nn.Module, raised: float = 0.0) -> float:
    """Return the share of tokens that the search leaves over all blocks, with every parameter ``raised`` by this much.

    Removed tokens do not come back, so no block retains more than an earlier one.
    """
    retained = torch.stack([module.retention for module in soft_extracts(model)]) + raised
    return retained.clamp(0, 1).mean(dim=1).cummin(dim=0).values.mean().item()


@torch.no_grad()
def hold_mass_(model: nn.Module, share: float) -> None:
    """If less than ``share`` is retained, raise all retention parameters equally until it is reached."""
    if retained_share(model) >= share:
        return
    low, high = 0.0, 1.0
    for _ in range(30):  # bisection: the share rises with the amount
        middle = (low + high) / 2
        low, high = (middle, high) if retained_share(model, middle) < share else (low, middle)
    for module in soft_extracts(model):
        module.retention.add_(high).clamp_(0, 1)


def prediction_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return KL(teacher || student) of the two predictions, averaged over images."""
    ours, theirs = log_softmax(logits.float(), dim=-1), log_softmax(teacher_logits.float(), dim=-1)
    return kl_div(ours, theirs, reduction="batchmean", log_target=True)


def initial_teacher(model: nn.Module) -> nn.Module:
    """Return an independent copy of the model, unreduced and frozen."""
    teacher = copy.deepcopy(model)
    if fv.is_reduced(teacher):
        fv.restore_(teacher)
    return teacher.eval().requires_grad_(False)
