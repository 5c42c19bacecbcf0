"""Build the parts of a run from its configuration: data, task, model, objective, optimizer, learning-rate schedule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, parse_flag_from_env
from accelerate.utils import is_torch_xla_available as has_tpu
from timm.optim import create_optimizer_v2, param_groups_layer_decay, param_groups_weight_decay
from torch import nn, optim

import foveate as fv
from foveate.adapters import inspect, reducer_of
from foveate.data import DataError, ImageData, StreamedData
from foveate.data.division import divide
from foveate.data.labels import read_class_names
from foveate.data.splits import NoSuchSplit, Undivided
from foveate.methods.options import build as build_method
from foveate.models.by_name import class_options, comes_trained, load_with_report
from foveate.reductions import Reduction
from foveate.schedules import PlanError, Schedule
from foveate.schedules_text import make_schedule
from foveate.tasks import Task, find_task, read_options
from foveate.training.config import (
    DataSection,
    ObjectiveSection,
    OptimizerSection,
    ReductionSection,
    TrainConfig,
)
from foveate.training.distill import Distill
from foveate.training.dynamic import Dynamic
from foveate.training.freezing import freeze_
from foveate.training.objectives import Classify, Objective, PowerSearch, initial_teacher

Data = ImageData | StreamedData


def build_accelerator(precision: str) -> Accelerator:
    """Set up accelerate's device and processes. The loop splits batches, so accelerate's own accumulation stays off."""
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not (torch.accelerator.is_available() or has_tpu())
    if precision == "fp16" and on_cpu:
        raise ValueError("optimizer.precision=fp16 does not work on a CPU. Use bf16 or no.")
    try:
        return Accelerator(
            cpu=on_cpu,  # torchrun does not set it, and the processes would not find each other
            mixed_precision=precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            # some parameters get no gradient: a mask token, or a head that distillation does not use
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
    except ValueError as error:
        raise ValueError(f"optimizer.precision={precision} is not available here: {error}") from error


def open_both(section: DataSection, seed: int = 0) -> tuple[Data, Data | None]:
    """Open the training and the validation data; validation data are None if ``data.val`` is empty.

    With ``data.val_share`` the validation images are drawn from undivided data with ``seed``.

    Raises:
        DataError: If either cannot be used.
    """
    if not section.source:
        raise DataError("No training data given. Set --data; docs/data.md lists what it can be.")
    given = {
        "length": section.epoch_images,
        "label_column": section.label_column,
        "root": section.root,
        "num_classes": section.num_classes,
        "allow_empty_classes": section.allow_empty_classes or bool(section.classes),
        "classes": read_class_names(Path(section.classes)) if section.classes else None,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    options |= {"download": True} if section.download else {}
    options |= task_options(section)
    train = find_task(section.task).open(section.source, section.train, **options)
    if section.labels and not train.labeled:
        raise DataError(
            f"{section.source} has no labels, but this recipe needs them. Only distillation works without labels."
        )
    if section.val_share:
        return _divided(section, train, options, seed)
    if not section.val:
        return train, None
    try:
        val = _validation_data(section, train, options)
    except Undivided:
        raise
    except NoSuchSplit as error:
        raise DataError(f"{error} To hold a fifth of {train.split!r} out: --set data.val_share=0.2.") from error
    if section.labels and not val.labeled:
        raise DataError(
            f"{section.source} has no labels in {section.val!r}. Train without evaluation: --set data.val=."
        )
    return train, val


def _divided(section: DataSection, train: Data, options: dict[str, Any], seed: int) -> tuple[Data, Data]:
    """Hold a share of undivided data out; data with splits have theirs already.

    Raises:
        DataError: If the data have a validation split, or cannot be read in any order.
    """
    where = section.source
    if not isinstance(train, ImageData):
        raise DataError(f"{where} is read as a stream, which cannot be divided. Name a split with data.val.")
    try:
        split = find_task(section.task).open(where, "val", **options).split
    except NoSuchSplit:
        return divide(train, section.val_share, seed, where)
    raise DataError(f"{where} has the split {split!r} to evaluate on. Leave out data.val_share.")


def task_options(section: DataSection) -> dict[str, Any]:
    """The task's own options as an argument of ``Task.open``; empty if there are none."""
    own = read_options(find_task(section.task), section.options)
    return {"own": own} if own else {}


def _validation_data(section: DataSection, train: Data, options: dict[str, Any]) -> Data:
    """Open the validation data with the classes of the training data, so that labels mean the same."""
    same: dict[str, Any] = {"classes": train.classes} if train.classes else {"num_classes": train.num_classes}
    options = {name: value for name, value in options.items() if name not in ("length", "num_classes", "classes")}
    return find_task(section.task).open(section.source, section.val, **options, **(same if section.labels else {}))


def build_task(config: TrainConfig, data: Data) -> Task:
    """Return the task for the training data; distillation leaves the model's head unchanged."""
    task = find_task(config.data.task)
    if config.objective.kind == "distill":
        return task()
    own = read_options(task, config.data.options)
    return task.for_data(data, smoothing=config.objective.smoothing, **own)


def build_model(config: TrainConfig, task: Task) -> tuple[nn.Module, bool]:
    """Build the model to train, with a head for ``task``, reduced and frozen according to the recipe.

    Returns:
        The model, and whether its classifier is new while the rest is pretrained.
    """
    section, num_classes = config.model, task.num_classes
    pretrained = section.pretrained and not section.weights  # a file of weights takes precedence over the library's
    options = section.options | class_options(section.name, num_classes, pretrained)
    model, untrained = load_with_report(
        section.name, pretrained=pretrained, weights=section.weights or None, options=options
    )
    family = inspect(model)
    trained = comes_trained(section.name, pretrained, section.weights)
    new = trained and (any(map(family.is_classifier, untrained)) or family.num_classes != num_classes)
    task.fit_head_(model)
    apply_reduction_(model, config.reduction)
    freeze_(model, section.freeze, section.freeze_blocks, section.freeze_parameters)
    return model, new


def check_own_teacher(section: ObjectiveSection, new_classifier: bool) -> None:
    """Raise a ValueError if the initial model would be a teacher with an untrained classifier."""
    weights = {"classify": section.self_kl, "dynamicvit": section.kl_weight}
    if new_classifier and weights.get(section.kind):
        name = "self_kl" if section.kind == "classify" else "kl_weight"
        raise ValueError(
            f"The model gets a new classifier for these classes, and objective.{name} would use its untrained "
            "predictions as targets. Train the classifier first (foveate train linear-probe), keep the model's own "
            f"(data.classes=FILE), or turn the targets off: --set objective.{name}=0."
        )


def apply_reduction_(model: nn.Module, section: ReductionSection) -> None:
    """Reduce ``model`` in place. A model loaded reduced stays so unless the recipe names a method, or ``none``."""
    reduction = reduction_from(section)
    if reduction is None:
        return
    if reducer_of(model) is not None:
        fv.restore_(model)
    try:
        reduction.apply_(model)
    except PlanError as error:
        if reduction.schedule is not None:
            raise
        raise ValueError(f"{error} Set one of reduction.keep_rate, budget, remove, keep and schedule.") from error


def reduction_from(section: ReductionSection) -> Reduction | None:
    """Return the reduction of a recipe; None if the model stays as loaded."""
    schedule = schedule_of(section)
    unit_qk: Any = section.unit_qk or None
    if section.method == "none":
        return Reduction(unit_qk=unit_qk)
    if not section.method:
        if schedule is not None or section.warms_up or unit_qk:
            raise ValueError("reduction has values but no method. Set reduction.method to a method, or to none.")
        return None
    if section.warms_up and not section.keep_rate:
        raise ValueError("reduction.warmup_start and warmup_epochs need reduction.keep_rate, which is not set.")
    method: Any = build_method(section.method, section.options)
    span: Any = section.merge_unmerge or None
    positions: Any = section.positions or None
    return Reduction(method, schedule, section.exact_last_block, unit_qk, section.output or None, span, positions)


def schedule_of(section: ReductionSection) -> Schedule | None:
    """Return the schedule of a section; None if the method has fixed counts."""
    return make_schedule(
        keep_rate=section.keep_rate or None,
        budget=section.budget or None,
        remove=section.remove or None,
        keep=fv.Keep({int(block): count for block, count in section.keep.items()}) if section.keep else None,
        schedule=fv.load_schedule(section.schedule) if section.schedule else None,
        blocks=(section.blocks or None) if section.keep_rate or section.budget else None,
    )


def warm_keep_rate(section: ReductionSection, epoch: float) -> float:
    """Return the keep rate of EViT's warmup: it falls from 1 along half a cosine, then stays constant."""
    if epoch >= section.warmup_start + section.warmup_epochs:
        return section.keep_rate
    if epoch < section.warmup_start:
        return 1.0
    done = (epoch - section.warmup_start) / section.warmup_epochs
    return section.keep_rate + (1 - section.keep_rate) * (1 + math.cos(math.pi * done)) / 2


def check_warm_up(config: TrainConfig, epoch_steps: int) -> None:
    """Raise a ValueError if the run ends before the keep rate is reached: the model would keep too many tokens."""
    section, schedule = config.reduction, config.schedule
    epochs = float(schedule.epochs * schedule.cycles)
    if schedule.steps:
        epochs = schedule.steps * schedule.cycles / epoch_steps
    if config.run.steps:
        epochs = min(epochs, config.run.steps / epoch_steps)
    reached = section.warmup_start + section.warmup_epochs
    if reached > epochs:
        raise ValueError(
            f"The keep rate reaches {section.keep_rate:g} at epoch {reached:g}, but the run ends after {epochs:g}. "
            "Shorten the warmup: --set reduction.warmup_start=0 reduction.warmup_epochs=1."
        )


def build_objective(config: TrainConfig, model: nn.Module, task: Task) -> Objective:
    """Build the objective, with its teacher if it has one."""
    section = config.objective
    if section.kind == "distill":
        pretrained = not section.teacher_weights
        teacher, untrained = load_with_report(
            section.teacher,
            pretrained=pretrained,
            weights=section.teacher_weights or None,
            options=section.teacher_options,
        )
        backbone = [name for name in untrained if not inspect(teacher).is_classifier(name)]
        if backbone:  # a classifier is not read
            raise ValueError(
                f"The teacher {section.teacher} has {len(backbone)} parameters that nobody trained, such as "
                f"{backbone[0]}. Give trained weights with objective.teacher_weights."
            )
        return Distill(model, teacher, section.tokens, section.patch_weight)
    if section.kind == "power-search":
        if not isinstance(inspect(model).reduction.method, fv.PoWERSearch):
            raise ValueError(
                "objective.kind=power-search trains retention parameters. Set reduction.method=PoWERSearch."
            )
        return PowerSearch(model, section.strength, section.mass, section.retention_lr, task, section.round_down)
    if section.kind == "dynamicvit":
        weights = {"kl": section.kl_weight, "tokens": section.token_weight, "ratio": section.ratio_weight}
        initial = initial_teacher(model) if section.kl_weight or section.token_weight else None
        slow = {"backbone_lr": section.backbone_lr, "frozen_epochs": section.frozen_epochs}
        return Dynamic(model, task, **weights, **slow, teacher=initial)
    initial = initial_teacher(model) if section.self_kl else None
    return Classify(model, task, section.self_kl, initial)


def build_optimizer(section: OptimizerSection, objective: Objective, batch_size: int) -> optim.Optimizer:
    """Build timm's optimizer for the parameters of the model, the method and the objective."""
    lr = section.lr * (batch_size / section.lr_batch if section.lr_batch else 1)
    groups = [part for group in objective.param_groups() for part in _with_decay(group, section.weight_decay)]
    own = {id(p) for group in groups for p in group["params"]}
    no_decay = inspect(objective.model).no_weight_decay()
    options: dict[str, Any] = {"weight_decay": section.weight_decay, "no_weight_decay_list": no_decay}
    if section.layer_decay:
        if not hasattr(objective.model, "group_matcher"):
            raise ValueError(f"optimizer.layer_decay needs a timm model, got a {type(objective.model).__name__}.")
        rest = param_groups_layer_decay(objective.model, layer_decay=section.layer_decay, **options)
    else:
        rest = param_groups_weight_decay(objective.model, **options)
    seen = {id(p) for group in rest for p in group["params"]}
    extra = [p for p in objective.parameters() if p.requires_grad and id(p) not in seen | own]
    rest += [{"params": extra, "weight_decay": section.weight_decay}] if extra else []
    for group in rest:
        scale = group.get("lr_scale", 1.0) * objective.backbone_lr
        groups.append({**group, "lr_scale": scale, "params": [p for p in group["params"] if id(p) not in own]})
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ValueError("Every parameter is frozen; there is nothing to train.")
    betas: dict[str, Any] = {"betas": section.betas} if section.betas else {}
    return create_optimizer_v2(groups, opt=section.name, lr=lr, **betas)


def _with_decay(group: dict[str, Any], decay: float) -> list[dict[str, Any]]:
    """Split a group without its own weight decay: matrices decay, biases and norms do not."""
    if "weight_decay" in group:
        return [group]
    matrices, rest = ([p for p in group["params"] if (p.dim() > 1) == wanted] for wanted in (True, False))
    return [{**group, "params": matrices, "weight_decay": decay}, {**group, "params": rest, "weight_decay": 0.0}]
