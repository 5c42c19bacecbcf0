"""Learning rates over a run: cosine, polynomial or in steps, after a linear warmup; timm's schedulers, per step."""

from __future__ import annotations

import math
from typing import Any

from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import optim

from foveate.training.config import ScheduleSection, TrainConfig


def cycle_steps(section: ScheduleSection, epoch_steps: int) -> int:
    """Steps of one cycle of the schedule."""
    return section.steps or section.epochs * epoch_steps


def run_epochs(section: ScheduleSection, epoch_steps: int) -> int:
    """Epochs of the whole run, the last of which may be cut short by ``schedule.steps``."""
    return math.ceil(section.cycles * cycle_steps(section, epoch_steps) / epoch_steps)


def last_step(config: TrainConfig, epoch_steps: int) -> int:
    """Steps of the whole run; ``run.steps`` may end it earlier."""
    planned = config.schedule.cycles * cycle_steps(config.schedule, epoch_steps)
    return min(planned, config.run.steps or planned)


def check_schedule(section: ScheduleSection, epoch_steps: int) -> None:
    """Raise a ValueError for a schedule that contradicts itself."""
    if section.epochs < 1 or section.cycles < 1:
        raise ValueError(f"schedule.epochs and cycles must be at least 1, got {section.epochs} and {section.cycles}.")
    total = cycle_steps(section, epoch_steps)
    if section.warmup_steps and section.warmup_epochs:
        raise ValueError(
            f"schedule.warmup_steps={section.warmup_steps} and warmup_epochs={section.warmup_epochs:g} are both set. "
            "Set one of them to 0."
        )
    if not section.warmup_epochs >= 0 or warmup_length(section, epoch_steps) >= total:
        length = f"{section.steps} steps" if section.steps else f"{section.epochs} epochs"
        name = "warmup_steps" if section.warmup_steps else "warmup_epochs"
        raise ValueError(
            f"schedule.{name}={getattr(section, name)} must be at least 0 and below the {length}. "
            f"Turn the warmup off with --set schedule.{name}=0."
        )
    if (section.kind == "step") != bool(section.milestones):
        raise ValueError(
            f"schedule.milestones={list(section.milestones)} and schedule.kind={section.kind} do not fit: only step "
            "has milestones, and needs them."
        )
    if section.milestones and decay_steps(section, epoch_steps)[-1] >= total:
        unit, end = ("steps", total) if section.steps else ("epochs", section.epochs)
        raise ValueError(
            f"schedule.milestones={list(section.milestones)} reach beyond the end of the run of {end} {unit}."
            f" Name {unit} of it: --set schedule.milestones={end * 2 // 3},{end * 11 // 12}."
        )


def warmup_length(section: ScheduleSection, epoch_steps: int) -> int:
    """Steps of the warmup."""
    return section.warmup_steps or round(section.warmup_epochs * epoch_steps)


def decay_steps(section: ScheduleSection, epoch_steps: int) -> list[int]:
    """The milestones in steps."""
    return [round(milestone * (1 if section.steps else epoch_steps)) for milestone in section.milestones]


def build_lr_scheduler(section: ScheduleSection, optimizer: optim.Optimizer, epoch_steps: int) -> Scheduler:
    """Build the learning-rate schedule of one cycle, updated per step."""
    check_schedule(section, epoch_steps)
    common: dict[str, Any] = {
        "warmup_t": warmup_length(section, epoch_steps),
        "warmup_lr_init": section.warmup_lr,
        "t_in_epochs": False,
    }
    if section.kind == "step":
        behind = [step + 1 for step in decay_steps(section, epoch_steps)]  # timm's count is ahead by one
        return MultiStepLRScheduler(optimizer, decay_t=behind, decay_rate=section.gamma, **common)
    common |= {"t_initial": cycle_steps(section, epoch_steps), "lr_min": section.min_lr}
    if section.kind == "poly":
        return PolyLRScheduler(optimizer, power=section.power, **common)
    return CosineLRScheduler(optimizer, **common)
