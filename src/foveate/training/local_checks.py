"""What can be checked of a run before its data are opened and its models are built or downloaded."""

from __future__ import annotations

import difflib
from pathlib import Path

from timm.optim import get_optimizer_info, list_optimizers

from foveate.data.limits import REPEATS
from foveate.models.by_name import brings_architecture, comes_trained
from foveate.training.build import reduction_from
from foveate.training.config import ModelSection, ScheduleSection, TrainConfig
from foveate.training.learning_rate import check_schedule

ANY_LENGTH = 1000
"""Steps of an epoch, where only ratios of epochs count."""
LOOKAHEAD = "lookahead_"
"""timm's prefix for any optimizer."""


def check_local(config: TrainConfig) -> None:
    """Raise a ValueError for values that no run can use, and for files that are not there."""
    config.check()
    check_start(config.model)
    objective = config.objective
    if objective.kind == "distill" and not objective.teacher:
        raise ValueError("Distillation needs a teacher, e.g. --set objective.teacher=vit_large_patch14_dinov2.")
    for name, path in (
        ("model.weights", config.model.weights),
        ("objective.teacher_weights", objective.teacher_weights),
    ):
        if path and not Path(path).is_file():
            raise ValueError(f"{name}: there is no weights file {path}.")
    REPEATS.check(config.augmentation.repeats, f"augmentation.repeats is {config.augmentation.repeats}")
    reduction_from(config.reduction)
    check_optimizer_name(config.optimizer.name)
    check_learning_rates(config.schedule)


def check_start(section: ModelSection) -> None:
    """Raise a ValueError for a model that is not named, or settings that a saved or pretrained one would ignore."""
    if not section.name:
        raise ValueError("No model given. Set --model, e.g. --model deit_small_patch16_224.")
    if not brings_architecture(section.name):
        return
    if section.options:
        raise ValueError(
            f"{section.name} has a fixed architecture that model.options={section.options} cannot change. "
            "Leave them out: --set model.options={}."
        )
    if comes_trained(section.name, False, None) and not section.pretrained and not Path(section.name).is_dir():
        raise ValueError(f"{section.name} always comes with its weights. Use --set model.pretrained=true.")


def check_optimizer_name(name: str) -> None:
    """Raise a ValueError for an optimizer that timm does not have."""
    try:
        get_optimizer_info(name.lower().removeprefix(LOOKAHEAD))
    except ValueError as error:
        close = difflib.get_close_matches(name, map(str, list_optimizers()), n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"optimizer.name={name}: {error}.{hint}") from error


def check_learning_rates(section: ScheduleSection) -> None:
    """Check the schedule as far as it does not depend on the number of images."""
    if not (section.warmup_epochs if section.steps else section.warmup_steps):
        check_schedule(section, ANY_LENGTH)
