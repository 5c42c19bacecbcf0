"""The configuration of a training run: sections of plain values, read from a recipe and changed on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from foveate.tasks import Augmentation
from foveate.training.renamed import current_name, current_names

Options = dict[str, Any]


@dataclass(frozen=True)
class ModelSection:
    """What is trained."""

    name: str = ""
    """A timm name, ``hf:NAME-OR-PATH``, ``torchvision:NAME``, or a directory written by ``foveate.save``."""
    pretrained: bool = False
    """Start from the library's weights."""
    weights: str = ""
    """Start from this safetensors file (or ``torch.save`` file of weights)."""
    options: Options = field(default_factory=dict)
    """For timm's ``create_model``: ``drop_path_rate``, ``img_size``, ..."""
    freeze: Literal["nothing", "backbone"] = "nothing"
    """``backbone`` trains the classifier alone."""
    freeze_blocks: int = 0
    """Keep the embedding and this many first blocks as they are."""


@dataclass(frozen=True)
class ReductionSection:
    """How the model keeps fewer tokens while it is trained; nothing where ``method`` is empty."""

    method: str = ""
    """A name of ``foveate methods``; empty: as the model comes; ``none``: with all its tokens."""
    options: Options = field(default_factory=dict)
    keep_rate: float = 0.0
    """Keep this share of the tokens at ``blocks``; 0: not used."""
    budget: float = 0.0
    """Share of the multiply-accumulates; 0: not used."""
    remove: int = 0
    """Tokens to remove in every block; 0: not used."""
    keep: dict[str, int] = field(default_factory=dict)
    """Tokens left after blocks: ``{ "3" = 100, "6" = 50 }``."""
    schedule: str = ""
    """A file of ``foveate.save_schedule``, such as ``power-search`` writes."""
    blocks: tuple[int, ...] = ()
    """Where ``keep_rate`` or ``budget`` reduce; empty: the method's own choice."""
    exact_last_block: bool = False
    unit_qk: Literal["", "fixed", "learned"] = ""
    """Attention over queries and keys of unit length, with a fixed or a learned scale; empty: as it is."""
    warmup_start: float = 0.0
    """Epoch at which the keep rate begins to fall from 1."""
    warmup_epochs: float = 0.0
    """Epochs it takes, along a cosine, to reach ``keep_rate``; 0: at once."""

    @property
    def warms_up(self) -> bool:
        return self.warmup_start > 0 or self.warmup_epochs > 0


@dataclass(frozen=True)
class DataSection:
    """Where images come from, and how many at once."""

    task: str = "classification"
    """What a target is: a name of ``foveate.tasks``."""
    source: str = ""
    """A directory, a CSV file, ``hf:``, ``wds:`` or ``torchvision:``; see docs/data.md."""
    train: str = "train"
    val: str = "val"
    """Names of the splits; an empty ``val`` trains without evaluation."""
    labels: bool = True
    """Whether labels are needed; distillation does without."""
    batch_size: int = 64
    """Images per step, over all processes and accumulated parts."""
    workers: int = 2
    """Processes that read images, for each training process."""
    max_broken: float = 0.01
    """Share of unreadable images at which a run stops."""
    epoch_images: int = 0
    """Images in an epoch; needed for streamed shards, 0 elsewhere: all of them."""
    root: str = ""
    """Where ``torchvision:`` data are."""
    download: bool = False
    """Whether ``torchvision:`` data may be fetched to ``root``."""
    label_column: str = ""
    """The label of ``hf:`` data that have several."""
    num_classes: int = 0
    """Classes of data that do not say; 0 elsewhere."""
    allow_empty_classes: bool = False
    """Whether a class may be without images."""
    classes: str = ""
    """A file of the model's classes by name, in its order, of which the data hold some: its classifier stays."""


@dataclass(frozen=True)
class OptimizerSection:
    name: str = "adamw"
    """A name of timm's optimizers."""
    lr: float = 5e-4
    lr_batch: int = 0
    """The batch ``lr`` is meant for: it is scaled by batch_size / lr_batch; 0: as it is."""
    weight_decay: float = 0.05
    betas: tuple[float, ...] = ()
    """Empty: the optimizer's own."""
    clip_norm: float = 0.0
    """Largest norm of the gradient; 0: any."""
    layer_decay: float = 0.0
    """Learning rates fall by this factor from block to block towards the input; 0: all alike."""
    accumulate: int = 1
    """Parts a batch is computed in."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    ema: float = 0.0
    """Decay of the moving average of the weights that is evaluated and kept beside them; 0: none."""


@dataclass(frozen=True)
class ScheduleSection:
    """Cosine with warm-up, changed at every step."""

    epochs: int = 300
    warmup_epochs: float = 5.0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    cycles: int = 1
    """How often the whole schedule runs, warm-up included."""


@dataclass(frozen=True)
class ObjectiveSection:
    """What is learned."""

    kind: Literal["classify", "distill", "power-search", "dynamicvit"] = "classify"
    smoothing: float = 0.0
    """Label smoothing."""
    self_kl: float = 0.0
    """classify: weight of the divergence from the prediction of the model at the start, with all its tokens."""
    teacher: str = ""
    """distill: the frozen teacher, named like ``model.name``; always with its weights."""
    teacher_weights: str = ""
    """distill: a file of weights for it instead of its library's."""
    teacher_options: Options = field(default_factory=dict)
    """distill: for timm's ``create_model``: ``img_size``, where the teacher was made for other images."""
    tokens: Literal["class", "all"] = "all"
    """distill: the class token alone, or the retained patch tokens with it."""
    patch_weight: float = 1.0
    """distill: weight of the patch tokens' part."""
    mass: float = 0.0
    """power-search: share of the tokens, over all blocks, that the search is to leave; 0: what ``strength`` gives."""
    strength: float = 1e-3
    """power-search: weight of the mass penalty. One that is too small for the steps leaves more than ``mass``."""
    retention_lr: float = 1e-2
    """power-search: learning rate of the retention parameters."""
    kl_weight: float = 0.5
    """dynamicvit: weight of the divergence from the teacher's prediction; the teacher is the model at the start."""
    token_weight: float = 0.5
    """dynamicvit: weight of the difference to the teacher's tokens."""
    ratio_weight: float = 2.0
    """dynamicvit: weight of the loss on the share of kept tokens."""
    backbone_lr: float = 0.01
    """dynamicvit: learning rate of the backbone, as a share of the predictors'."""
    frozen_epochs: float = 5.0
    """dynamicvit: epochs in which the predictors alone learn."""


READ_BY = {
    "classify": ("smoothing", "self_kl"),
    "distill": ("teacher", "teacher_weights", "teacher_options", "tokens", "patch_weight"),
    "power-search": ("smoothing", "mass", "strength", "retention_lr"),
    "dynamicvit": ("smoothing", "kl_weight", "token_weight", "ratio_weight", "backbone_lr", "frozen_epochs"),
}
"""What of the section each kind of objective looks at."""


@dataclass(frozen=True)
class RunSection:
    seed: int = 0
    checkpoint_minutes: float = 10.0
    """A checkpoint is written after every epoch, and this often within one."""
    checkpoint_steps: int = 0
    """And after this many steps; 0: never for that reason."""
    eval_epochs: int = 1
    """Evaluate after this many epochs, and after the last."""
    steps: int = 0
    """Stop after this many steps in all; 0: when the epochs are over."""


@dataclass(frozen=True)
class TrainConfig:
    """A whole run. Every value can be changed as ``section.name=value``."""

    source: str = ""
    """The paper, and where in it."""
    description: str = ""
    model: ModelSection = field(default_factory=ModelSection)
    reduction: ReductionSection = field(default_factory=ReductionSection)
    data: DataSection = field(default_factory=DataSection)
    augmentation: Augmentation = field(default_factory=Augmentation)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    run: RunSection = field(default_factory=RunSection)

    def check(self) -> None:
        """Refuse values that no run can have, before anything is built."""
        optimizer, schedule, augmentation = self.optimizer, self.schedule, self.augmentation
        low, high = (*augmentation.scale, 0.0, 0.0)[:2]
        chances = (augmentation.flip, augmentation.erase, augmentation.mix_chance, augmentation.cutmix_share)
        rules = {
            "run.eval_epochs is 1 or more": self.run.eval_epochs >= 1,
            "run.steps and checkpoint_steps are 0 or more": min(self.run.steps, self.run.checkpoint_steps) >= 0,
            "data.batch_size is 1 or more": self.data.batch_size >= 1,
            "optimizer.accumulate is 1 or more": optimizer.accumulate >= 1,
            "optimizer.ema is from 0 to below 1": 0 <= optimizer.ema < 1,
            "optimizer.betas are two numbers, or none": len(optimizer.betas) in (0, 2),
            "optimizer.lr is above 0": optimizer.lr > 0,
            "optimizer.clip_norm, weight_decay and lr_batch are 0 or more": min(
                optimizer.clip_norm, optimizer.weight_decay, optimizer.lr_batch
            )
            >= 0,
            "optimizer.layer_decay is from 0 to 1": 0 <= optimizer.layer_decay <= 1,
            "augmentation.mixup and cutmix are 0 or more": min(augmentation.mixup, augmentation.cutmix) >= 0,
            "schedule.epochs and cycles are 1 or more": min(schedule.epochs, schedule.cycles) >= 1,
            "objective.smoothing is from 0 to below 1": 0 <= self.objective.smoothing < 1,
            "augmentation.scale is two numbers, 0 < least <= most <= 1": len(augmentation.scale) == 2
            and 0 < low <= high <= 1,
            "augmentation's chances are from 0 to 1": min(chances) >= 0 and max(chances) <= 1,
            "reduction.warmup_start and warmup_epochs are 0 or more": min(
                self.reduction.warmup_start, self.reduction.warmup_epochs
            )
            >= 0,
        }
        broken = [words for words, holds in rules.items() if not holds]
        if broken:
            raise ValueError(f"{broken[0]}. `foveate recipes NAME` shows values that work.")
        self._check_objective()

    def _check_objective(self) -> None:
        """Refuse what this kind of objective would not look at."""
        section, usual = self.objective, ObjectiveSection()
        read = {"kind", *READ_BY[section.kind]}
        unread = [f.name for f in dataclasses.fields(section) if f.name not in read]
        ignored = [name for name in unread if getattr(section, name) != getattr(usual, name)]
        if ignored:
            raise ValueError(f"objective.{ignored[0]} is not for objective.kind={section.kind}, which would ignore it.")
        if section.kind == "distill" and (self.augmentation.mixup or self.augmentation.cutmix):
            raise ValueError("augmentation.mixup and cutmix mix labels; a distillation has none. Set them to 0.")
        if section.kind == "dynamicvit" and self.reduction.warms_up:
            raise ValueError(
                "reduction.warmup_start and warmup_epochs let the keep rate fall from 1, where DynamicViT has no "
                "predictors yet; its ratio loss brings the share down by itself. Set them to 0."
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; ``read_config`` is its inverse."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def read_config(data: Mapping[str, Any], where: str = "the configuration") -> TrainConfig:
    """A configuration from nested plain data; an unknown name or a wrong kind of value is an error."""
    values: dict[str, Any] = {}
    for name, value in current_names(data).items():
        kind = _field_type(TrainConfig, name, where)
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}: {name} is a section of values; got {value!r}.")
            values[name] = _read_section(typing.cast(type, kind), value, f"{where}: {name}")
        else:
            values[name] = _checked(value, kind, f"{where}: {name}")
    return TrainConfig(**values)


def override(config: TrainConfig, changes: Sequence[str]) -> TrainConfig:
    """``config`` with values changed as written on a command line: ``optimizer.lr=1e-3``."""
    for change in changes:
        path, equals, text = change.partition("=")
        path = current_name(path.strip())
        section, dot, name = path.partition(".")
        if not equals or not dot:
            raise ValueError(f"A value is changed as section.name=value, such as optimizer.lr=1e-3; got {change!r}.")
        inner = getattr(config, _known(section, _sections(), "section"))
        name, _, key = name.partition(".")
        kind = _field_type(type(inner), name, section)
        if key and (typing.get_origin(kind) is not dict or "." in key):
            raise ValueError(f"{path} goes too deep: {section}.{name} takes {_in_words(kind)}.")
        value = _from_text(text.strip(), dict if key else kind, path)
        if key:  # an entry of a section's own options, model.options.drop_path_rate=0.1
            value = getattr(inner, name) | {key: value}
        config = dataclasses.replace(
            config, **{section: dataclasses.replace(inner, **{name: _checked(value, kind, path)})}
        )
    return config


def set_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """``config`` with values changed by name: ``{"optimizer.lr": 1e-3}``."""
    for path, value in values.items():
        path = current_name(path)
        section, dot, name = path.partition(".")
        if not dot:
            raise ValueError(f"A value is named section.name, such as optimizer.lr; got {path!r}.")
        inner = getattr(config, _known(section, _sections(), "section"))
        kind = _field_type(type(inner), name, section)
        config = dataclasses.replace(
            config, **{section: dataclasses.replace(inner, **{name: _checked(value, kind, path)})}
        )
    return config


def _read_section(section: type, data: Mapping[str, Any], where: str) -> Any:
    return section(
        **{name: _checked(value, _field_type(section, name, where), f"{where}.{name}") for name, value in data.items()}
    )


def _sections() -> list[str]:
    return [f.name for f in dataclasses.fields(TrainConfig) if f.name not in ("source", "description")]


def _field_type(owner: type, name: str, where: str) -> Any:
    fields = [f.name for f in dataclasses.fields(owner)]
    return typing.get_type_hints(owner)[_known(name, fields, f"value in {where}")]


def _known(name: str, names: Sequence[str], what: str) -> str:
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=2)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(names)}."
    raise ValueError(f"There is no {what} called {name!r}. {hint}")


def _checked(value: Any, kind: Any, where: str) -> Any:
    """``value`` as ``kind``, or an error with what it takes."""
    if typing.get_origin(kind) is Literal:
        if value in typing.get_args(kind):
            return value
        raise ValueError(f"{where} is one of {', '.join(typing.get_args(kind))}; got {value!r}.")
    if typing.get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(_checked(item, typing.get_args(kind)[0], where) for item in value)
    if typing.get_origin(kind) is dict and isinstance(value, Mapping):
        inner = typing.get_args(kind)[1]
        return {key: item if inner is Any else _checked(item, inner, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind in (str, int, bool) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise ValueError(f"{where} takes {_in_words(kind)}; got {value!r}.")


def _in_words(kind: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    origin = typing.get_origin(kind)
    return words.get(kind) or {tuple: "a list", dict: "a table of values"}.get(origin, str(kind))


def _from_text(text: str, kind: Any, where: str) -> Any:
    """A value as a command line writes it: JSON where it is JSON, text otherwise; lists may be written 3,6,9."""
    if kind is str or typing.get_origin(kind) is Literal:
        return text
    if typing.get_origin(kind) is tuple and not text.startswith("["):
        text = f"[{text}]"
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        if kind is dict:
            return text  # an option's text needs no quotes
        if numbers := _numbers(text, kind):
            return numbers if text.startswith("[") else numbers[0]
        raise ValueError(f"{where} takes {_in_words(kind)}; got {text!r}.") from None


def _numbers(text: str, kind: Any) -> list[float]:
    """A number, or a list of them, in ways that JSON does not know, .5 or 1.; none where it is something else."""
    parts = text.strip("[]").split(",") if kind == tuple[float, ...] else [text] if kind is float else []
    try:
        return [float(part) for part in parts]
    except ValueError:
        return []
