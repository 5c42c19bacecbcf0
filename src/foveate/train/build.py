"""From a configuration to the things a run is made of: model, data, augmentation, objective, optimiser, schedule."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, parse_flag_from_env
from accelerate.utils import is_torch_xla_available as has_tpu
from timm.optim import create_optimizer_v2, list_optimizers, param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from torch import nn, optim

import foveate as fv
from foveate.adapters import reduction_of
from foveate.data import DataError, ImageData, StreamedData, open_data
from foveate.data.labels import read_class_names
from foveate.methods.options import build as build_method
from foveate.models.by_name import brings_architecture, is_classifier, load_and_tell, load_model
from foveate.schedule import PlanError, Schedule
from foveate.train.classifier import freeze_, predicted_classes, set_classes_
from foveate.train.config import (
    DataSection,
    ModelSection,
    ObjectiveSection,
    OptimiserSection,
    ReductionSection,
    ScheduleSection,
    TrainConfig,
)
from foveate.train.distill import Distil
from foveate.train.dynamic import Dynamic
from foveate.train.objectives import Classify, Objective, PowerSearch, initial_teacher

Data = ImageData | StreamedData


def build_accelerator(precision: str) -> Accelerator:
    """accelerate's device and processes. Batches are divided by the loop, so its own accumulation stays off."""
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not (torch.accelerator.is_available() or has_tpu())
    if precision == "fp16" and on_cpu:
        raise ValueError("optimiser.precision=fp16 is not for a CPU, which would train without it. Say bf16 or no.")
    try:
        return Accelerator(
            cpu=on_cpu,  # which torchrun does not say, and processes would not find each other
            mixed_precision=precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            # a mask token, a head that distillation does not read: models have parameters without a gradient
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
    except ValueError as error:
        raise ValueError(f"optimiser.precision={precision} cannot be had here: {error}") from error


def open_both(section: DataSection) -> tuple[Data, Data | None]:
    """The data to train on and to evaluate on; what is wrong with either is said before anything is trained."""
    if not section.source:
        raise DataError("There is nothing to train on. Give --data, see docs/data.md for what it can be.")
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
    train = open_data(section.source, section.train, **options)
    if section.labels and not train.labelled:
        raise DataError(f"{section.source} has no labels, and this recipe learns from them. Distillation does not.")
    if not section.val:
        return train, None
    val = _validation_data(section, train, options)
    if section.labels and not val.labelled:
        raise DataError(f"{section.source} has no labels in {section.val!r}. Leave it out: --set data.val=.")
    return train, val


def _validation_data(section: DataSection, train: Data, options: dict[str, Any]) -> Data:
    """With the classes of the training data, so that labels mean the same."""
    same: dict[str, Any] = {"classes": train.classes} if train.classes else {"num_classes": train.num_classes}
    options = {name: value for name, value in options.items() if name not in ("length", "num_classes", "classes")}
    return open_data(section.source, section.val, **options, **(same if section.labels else {}))


def build_model(config: TrainConfig, num_classes: int | None) -> tuple[nn.Module, bool]:
    """The model that is trained, with a classifier for ``num_classes``, reduced and frozen as the recipe says.

    And whether its classifier is new where the rest of it is trained.
    """
    section = config.model
    if not section.name:
        raise ValueError("There is nothing to train. Give --model, such as deit_small_patch16_224.")
    check_start(section)
    options = dict(section.options)
    if num_classes is not None and not section.name.startswith(
        "torchvision:"
    ):  # whose weights have a head of their own
        options["num_classes"] = num_classes
    pretrained = section.pretrained and not section.weights  # a file of weights outranks the library's
    model, unfilled = load_and_tell(
        section.name, pretrained=pretrained, weights=section.weights or None, options=options
    )
    new = any(map(is_classifier, unfilled)) or _learned_classes(model, section) not in (None, num_classes)
    if num_classes is not None:
        set_classes_(model, num_classes)
    reduce_as_told_(model, config.reduction)
    freeze_(model, section.freeze, section.freeze_blocks)
    return model, new


def _learned_classes(model: Any, section: ModelSection) -> int | None:
    """Classes that the library's or a saved model's weights tell apart; None where that is not known."""
    if section.weights or section.name.startswith("hf:"):  # what they left unfilled says it
        return None
    if Path(section.name).is_dir() or (section.pretrained and section.name.startswith("torchvision:")):
        return predicted_classes(model)
    return model.pretrained_cfg["num_classes"] if section.pretrained else None


def check_own_teacher(section: ObjectiveSection, new_classifier: bool) -> None:
    """Refuse to follow the model at the start where that one knows nothing of the classes."""
    weights = {"classify": section.self_kl, "dynamicvit": section.kl_weight}
    if new_classifier and weights.get(section.kind):
        name = "self_kl" if section.kind == "classify" else "kl_weight"
        raise ValueError(
            f"The model gets a new classifier for these classes, and objective.{name} would make its untrained "
            "predictions a target. Train the classifier first (foveate train linear-probe), keep the model's own "
            f"(data.classes=FILE), or leave the target out: --set objective.{name}=0."
        )


def check_start(section: ModelSection) -> None:
    """Refuse what the source of a model could only ignore."""
    transformers = section.name.startswith("hf:")
    if brings_architecture(section.name) and section.options:
        raise ValueError(
            f"{section.name} brings its own architecture, and model.options={section.options} cannot change it. "
            "Leave them out: --set model.options={}."
        )
    if transformers and not section.pretrained:
        raise ValueError(f"{section.name} comes with its weights. Say so: --set model.pretrained=true.")


def reduce_as_told_(model: nn.Module, section: ReductionSection) -> None:
    """Reduce ``model``; one that comes reduced stays so unless the recipe names a method, or ``none``."""
    if section.method and reduction_of(model) is not None:
        fv.restore_(model)
    if section.method == "none":
        return
    if not section.method:
        if schedule_of(section) is not None or section.warms_up:
            raise ValueError("reduction has a schedule and no method. Name one, or none: --set reduction.method=none.")
        return
    method = build_method(section.method, section.options)
    if section.warms_up and not section.keep_rate:
        raise ValueError("reduction.warmup_start and warmup_epochs let reduction.keep_rate fall, which is not set.")
    schedule = schedule_of(section)
    try:
        fv.reduce_(model, method, schedule, exact_last_block=section.exact_last_block)
    except PlanError as error:
        if schedule is not None:
            raise
        raise ValueError(f"{error} In a run: reduction.keep_rate, budget, remove, keep or schedule.") from error


def schedule_of(section: ReductionSection) -> Schedule | None:
    """The one schedule a section asks for; None where the method fixes its own counts."""
    blocks = section.blocks or None
    asked: dict[str, Callable[[], Schedule]] = {
        "keep_rate": lambda: fv.KeepRate(section.keep_rate, blocks),
        "budget": lambda: fv.Budget(section.budget, blocks),
        "remove": lambda: fv.RemovePerBlock(section.remove),
        "keep": lambda: fv.Keep({int(block): count for block, count in section.keep.items()}),
        "schedule": lambda: fv.load_schedule(section.schedule),
    }
    given = [name for name in asked if getattr(section, name)]
    if len(given) > 1:
        raise ValueError(f"reduction has {' and '.join(given)}; it takes one of {', '.join(asked)}.")
    return asked[given[0]]() if given else None


def warm_keep_rate(section: ReductionSection, epoch: float) -> float:
    """EViT's warm-up: the keep rate falls from 1 along half a cosine, and then stays."""
    if epoch >= section.warmup_start + section.warmup_epochs:
        return section.keep_rate
    if epoch < section.warmup_start:
        return 1.0
    done = (epoch - section.warmup_start) / section.warmup_epochs
    return section.keep_rate + (1 - section.keep_rate) * (1 + math.cos(math.pi * done)) / 2


def check_warm_up(config: TrainConfig, epoch_steps: int) -> None:
    """A run that ends before its keep rate is reached would leave a model with too many tokens."""
    section, epochs = config.reduction, float(config.schedule.epochs * config.schedule.cycles)
    if config.run.steps:
        epochs = min(epochs, config.run.steps / epoch_steps)
    reached = section.warmup_start + section.warmup_epochs
    if reached > epochs:
        raise ValueError(
            f"The keep rate is {section.keep_rate:g} from epoch {reached:g} on, and the run ends after {epochs:g}. "
            "Shorten the warm-up: --set reduction.warmup_start=0 reduction.warmup_epochs=1."
        )


def build_objective(config: TrainConfig, model: nn.Module) -> Objective:
    section = config.objective
    if section.kind == "distill":
        if not section.teacher:
            raise ValueError("Distillation needs a teacher: --set objective.teacher=vit_large_patch14_dinov2.")
        pretrained = not section.teacher_weights
        teacher = load_model(
            section.teacher, pretrained=pretrained, weights=section.teacher_weights, options=section.teacher_options
        )
        return Distil(model, teacher, section.tokens, section.patch_weight)
    if section.kind == "power-search":
        if not isinstance(getattr(reduction_of(model), "method", None), fv.PoWERSearch):
            raise ValueError("power-search learns what reduction.method=power-search adds to the model.")
        return PowerSearch(model, section.strength, section.mass, section.retention_lr, section.smoothing)
    if section.kind == "dynamicvit":
        weights = {"kl": section.kl_weight, "tokens": section.token_weight, "ratio": section.ratio_weight}
        model_at_start = initial_teacher(model) if section.kl_weight or section.token_weight else None
        slow = {"backbone_lr": section.backbone_lr, "frozen_epochs": section.frozen_epochs}
        return Dynamic(model, section.smoothing, **weights, **slow, teacher=model_at_start)
    model_at_start = initial_teacher(model) if section.self_kl else None
    return Classify(model, section.smoothing, section.self_kl, model_at_start)


def build_optimiser(section: OptimiserSection, objective: Objective, batch_size: int) -> optim.Optimizer:
    """timm's optimiser over the model's parameters, what the method has learned, and the objective's own."""
    lr = section.lr * (batch_size / section.lr_batch if section.lr_batch else 1)
    groups = [part for group in objective.own_groups() for part in _with_decay(group, section.weight_decay)]
    own = {id(p) for group in groups for p in group["params"]}
    spared = spared_by_decay(objective.model)
    options: dict[str, Any] = {"weight_decay": section.weight_decay, "no_weight_decay_list": spared}
    if section.layer_decay:
        if not hasattr(objective.model, "group_matcher"):
            raise ValueError(f"optimiser.layer_decay needs a timm model; this is a {type(objective.model).__name__}.")
        rest = param_groups_layer_decay(objective.model, layer_decay=section.layer_decay, **options)
    else:
        rest = param_groups_weight_decay(objective.model, **options)
    seen = {id(p) for group in rest for p in group["params"]}
    beside = [p for p in objective.parameters() if p.requires_grad and id(p) not in seen | own]
    rest += [{"params": beside, "weight_decay": section.weight_decay}] if beside else []
    for group in rest:
        scale = group.get("lr_scale", 1.0) * objective.backbone_lr
        groups.append({**group, "lr_scale": scale, "params": [p for p in group["params"] if id(p) not in own]})
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ValueError("Every parameter is frozen; there is nothing to train.")
    betas: dict[str, Any] = {"betas": section.betas} if section.betas else {}
    try:
        return create_optimizer_v2(groups, opt=section.name, lr=lr, **betas)
    except ValueError as error:
        if section.name in list_optimizers():
            raise
        close = difflib.get_close_matches(section.name, map(str, list_optimizers()), n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"optimiser.name={section.name}: {error}.{hint}") from error


def _with_decay(group: dict[str, Any], decay: float) -> list[dict[str, Any]]:
    """A group that says nothing of weight decay: its matrices decay, and its biases and norms do not."""
    if "weight_decay" in group:
        return [group]
    matrices, rest = ([p for p in group["params"] if (p.dim() > 1) == wanted] for wanted in (True, False))
    return [{**group, "params": matrices, "weight_decay": decay}, {**group, "params": rest, "weight_decay": 0.0}]


def spared_by_decay(model: nn.Module) -> set[str]:
    """Positions and prefix tokens, which no library decays; timm's models name theirs."""
    if hasattr(model, "no_weight_decay"):
        return set(model.no_weight_decay())  # type: ignore[operator]
    marks = ("position_embedding", "pos_embedding", "cls_token", "class_token", "class_embedding", "register_tokens")
    return {name for name, _ in model.named_parameters() if any(mark in name for mark in marks)}


def build_schedule(section: ScheduleSection, optimiser: optim.Optimizer, epoch_steps: int) -> CosineLRScheduler:
    """The learning rate of one cycle, by step."""
    if section.epochs < 1 or section.cycles < 1:
        raise ValueError(f"schedule.epochs and cycles are 1 or more; got {section.epochs} and {section.cycles}.")
    if not 0 <= section.warmup_epochs < section.epochs:
        raise ValueError(
            f"schedule.warmup_epochs={section.warmup_epochs} leaves nothing of {section.epochs} epochs. "
            "Set it lower: --set schedule.warmup_epochs=0."
        )
    return CosineLRScheduler(
        optimiser,
        t_initial=section.epochs * epoch_steps,
        lr_min=section.min_lr,
        warmup_t=round(section.warmup_epochs * epoch_steps),
        warmup_lr_init=section.warmup_lr,
        t_in_epochs=False,
    )
