"""The configuration of a training run: sections of plain values, from a recipe and the command line."""

from __future__ import annotations

import dataclasses
import difflib
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

from foveate.evaluation.plain_data import checked_value, type_in_words
from foveate.tasks import Augmentation
from foveate.training.config_values import value_from_text
from foveate.training.renamed import current_name, current_names

Options = dict[str, Any]


@dataclass(frozen=True)
class ModelSection:
    """What is trained."""

    name: str = ""
    """A timm name, ``hf:NAME-OR-PATH``, ``torchvision:NAME``, or a directory written by ``foveate.save``."""
    pretrained: bool = False
    """Start from the pretrained weights of the model's library."""
    weights: str = ""
    """Start from this file of weights: safetensors, or written by ``torch.save``."""
    options: Options = field(default_factory=dict)
    """Options for timm's ``create_model``: ``drop_path_rate``, ``img_size``, ..."""
    freeze: Literal["nothing", "backbone"] = "nothing"
    """``backbone`` trains only the classifier."""
    freeze_blocks: int = 0
    """Keep the embedding and this many first blocks as they are."""
    freeze_parameters: tuple[str, ...] = ()
    """Keep these parameters as they are: ``cls_token``, ``pos_embed``, or any part of a dotted name."""


@dataclass(frozen=True)
class ReductionSection:
    """How the model is reduced for training; it is left unchanged if ``method`` is empty."""

    method: str = ""
    """A name of ``foveate methods``. Empty leaves the model as loaded; ``none`` trains it unreduced."""
    options: Options = field(default_factory=dict)
    keep_rate: float = 0.0
    """Share of the tokens to keep at ``blocks``; 0 if not used."""
    budget: float = 0.0
    """Share of the MACs to keep; 0 if not used."""
    remove: int = 0
    """Tokens to remove in every block; 0 if not used."""
    keep: dict[str, int] = field(default_factory=dict)
    """Tokens left after each block: ``{ "3" = 100, "6" = 50 }``."""
    schedule: str = ""
    """A file of ``foveate.save_schedule``, e.g. from ``power-search``."""
    blocks: tuple[int, ...] = ()
    """Blocks where ``keep_rate`` or ``budget`` reduce; empty for the method's default."""
    exact_last_block: bool = False
    unit_qk: Literal["", "fixed", "learned"] = ""
    """Attend over queries and keys of unit length, with a fixed or a learned scale; empty for plain attention."""
    output: Literal["", "tokens", "grid", "grid-residual", "grid-attention"] = ""
    """What leaves the encoder; empty for what the model needs."""
    merge_unmerge: tuple[int, ...] = ()
    """First and last block of the range that reduces; empty for all blocks."""
    positions: Literal["", "representative", "mean"] = ""
    """Position of a merged token, in models with rotary positions; empty for the model's default."""
    warmup_start: float = 0.0
    """Epoch at which the keep rate starts to fall from 1."""
    warmup_epochs: float = 0.0
    """Epochs over which the keep rate falls to ``keep_rate`` along a cosine; 0 applies it at once."""

    @property
    def warms_up(self) -> bool:
        return self.warmup_start > 0 or self.warmup_epochs > 0


@dataclass(frozen=True)
class DataSection:
    """The images and how to read them."""

    task: str = "classification"
    """The task: a name of ``foveate.tasks``."""
    source: str = ""
    """A directory, a CSV file, ``hf:``, ``wds:`` or ``torchvision:``; see docs/data.md."""
    train: str = "train"
    val: str = "val"
    """Split to evaluate on; empty to train without evaluation."""
    val_share: float = 0.0
    """Share of each class to hold out for evaluation, of data without splits; 0 uses the split ``val``."""
    labels: bool = True
    """Whether labels are needed; distillation does not need them."""
    batch_size: int = 64
    """Images per step, over all processes and accumulated parts."""
    workers: int = 2
    """Processes that read images, per training process."""
    max_broken: float = 0.01
    """Share of unreadable images above which the run stops."""
    epoch_images: int = 0
    """Images per epoch, needed for streamed shards; 0 uses all images of other data."""
    root: str = ""
    """Folder of ``torchvision:`` data."""
    download: bool = False
    """Whether ``torchvision:`` data may be downloaded to ``root``."""
    label_column: str = ""
    """Label column of ``hf:`` data with more than one."""
    num_classes: int = 0
    """Number of classes, for data that do not state it; otherwise 0."""
    allow_empty_classes: bool = False
    """Whether a class may have no images."""
    classes: str = ""
    """A file with the names of the model's classes, in its order. The data may lack some; the classifier is kept."""
    eval_batch_size: int = 0
    """Images per batch in evaluation; 0 for ``batch_size``. Images of different sizes need 1."""
    options: Options = field(default_factory=dict)
    """Options of the task, such as ``ignore`` and ``inference`` of segmentation."""


@dataclass(frozen=True)
class OptimizerSection:
    """The optimizer, and how a batch is computed."""

    name: str = "adamw"
    """A timm optimizer."""
    lr: float = 5e-4
    lr_batch: int = 0
    """Batch size that ``lr`` is for: ``lr`` is scaled by batch_size / lr_batch. 0 does not scale it."""
    weight_decay: float = 0.05
    betas: tuple[float, ...] = ()
    """Empty for the optimizer's defaults."""
    clip_norm: float = 0.0
    """Largest gradient norm; 0 does not clip."""
    layer_decay: float = 0.0
    """Factor by which learning rates fall per block toward the input; 0 uses the same rate everywhere."""
    accumulate: int = 1
    """Gradient accumulation: number of parts that a batch is split into."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    ema: float = 0.0
    """Decay of a moving average of the weights, which is then evaluated and saved; 0 for none."""


@dataclass(frozen=True)
class ScheduleSection:
    """Learning-rate schedule with linear warmup, updated every step."""

    kind: Literal["cosine", "poly", "step"] = "cosine"
    """Cosine; polynomial, lr x (1 - done) ** power; or a factor ``gamma`` at each of ``milestones``."""
    epochs: int = 300
    steps: int = 0
    """Length of the run in steps instead of epochs, as segmentation counts (80k iterations); 0 uses ``epochs``."""
    warmup_epochs: float = 5.0
    warmup_steps: int = 0
    """Length of the warmup in steps, instead of ``warmup_epochs``, which then has to be 0."""
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    cycles: int = 1
    """How often the whole schedule runs, warmup included."""
    power: float = 1.0
    """poly: the exponent."""
    milestones: tuple[float, ...] = ()
    """step: epochs after which the rate falls, or steps if ``steps`` is set."""
    gamma: float = 0.1
    """step: the factor."""


@dataclass(frozen=True)
class ObjectiveSection:
    """The loss to train with."""

    kind: Literal["classify", "distill", "power-search", "dynamicvit"] = "classify"
    smoothing: float = 0.0
    """Label smoothing."""
    self_kl: float = 0.0
    """classify: weight of the KL divergence from the prediction of the initial, unreduced model."""
    teacher: str = ""
    """distill: the frozen teacher, named like ``model.name``; always pretrained."""
    teacher_weights: str = ""
    """distill: a file of weights for the teacher, instead of its library's."""
    teacher_options: Options = field(default_factory=dict)
    """distill: options for timm's ``create_model``, e.g. ``img_size`` if the teacher has another image size."""
    tokens: Literal["class", "all"] = "all"
    """distill: the class token only, or also the retained patch tokens."""
    patch_weight: float = 1.0
    """distill: weight of the patch tokens."""
    mass: float = 0.0
    """power-search: target share of the tokens over all blocks; 0 leaves it to ``strength``."""
    strength: float = 1e-3
    """power-search: weight of the mass penalty. If it is too small for the steps, more than ``mass`` is left."""
    retention_lr: float = 1e-2
    """power-search: learning rate of the retention parameters."""
    round_down: bool = False
    """power-search: round the counts down, to 1 at least, as the published code does; otherwise up."""
    kl_weight: float = 0.5
    """dynamicvit: weight of the KL divergence from the teacher's prediction; the teacher is the initial model."""
    token_weight: float = 0.5
    """dynamicvit: weight of the difference to the teacher's tokens; on LV-ViT, to its predictions for tokens."""
    ratio_weight: float = 2.0
    """dynamicvit: weight of the loss on the share of kept tokens."""
    backbone_lr: float = 0.01
    """dynamicvit: learning rate of the backbone, as a share of the predictors'."""
    frozen_epochs: float = 5.0
    """dynamicvit: epochs in which only the predictors are trained."""


USED_BY = {
    "classify": ("smoothing", "self_kl"),
    "distill": ("teacher", "teacher_weights", "teacher_options", "tokens", "patch_weight"),
    "power-search": ("smoothing", "mass", "strength", "retention_lr", "round_down"),
    "dynamicvit": ("smoothing", "kl_weight", "token_weight", "ratio_weight", "backbone_lr", "frozen_epochs"),
}
"""The values that each kind of objective uses."""


RULES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (("run.eval_epochs", "data.batch_size", "optimizer.accumulate"), "at least 1", lambda v: v >= 1),
    (("schedule.epochs", "schedule.cycles"), "at least 1", lambda v: v >= 1),
    (("schedule.steps", "schedule.warmup_steps", "data.eval_batch_size"), "at least 0", lambda v: v >= 0),
    (("schedule.power", "schedule.gamma"), "above 0", lambda v: v > 0),
    (("schedule.milestones",), "rising and above 0", lambda v: all(a < b for a, b in zip((0, *v), v, strict=False))),
    (("run.steps", "run.checkpoint_steps", "optimizer.clip_norm"), "at least 0", lambda v: v >= 0),
    (("optimizer.weight_decay", "optimizer.lr_batch"), "at least 0", lambda v: v >= 0),
    (("augmentation.mixup", "augmentation.cutmix"), "at least 0", lambda v: v >= 0),
    (("reduction.warmup_start", "reduction.warmup_epochs"), "at least 0", lambda v: v >= 0),
    (("augmentation.flip", "augmentation.erase", "augmentation.mix_chance"), "from 0 to 1", lambda v: 0 <= v <= 1),
    (("augmentation.cutmix_share", "optimizer.layer_decay"), "from 0 to 1", lambda v: 0 <= v <= 1),
    (("optimizer.ema", "objective.smoothing", "data.val_share"), "at least 0 and below 1", lambda v: 0 <= v < 1),
    (("optimizer.lr",), "above 0", lambda v: v > 0),
    (("optimizer.betas",), "two numbers or empty", lambda v: len(v) in (0, 2)),
    (("augmentation.scale",), "two numbers, 0 < low <= high <= 1", lambda v: len(v) == 2 and 0 < v[0] <= v[1] <= 1),
)


@dataclass(frozen=True)
class RunSection:
    """Seed, checkpoints and evaluation."""

    seed: int = 0
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints within an epoch; one is also written after every epoch."""
    checkpoint_steps: int = 0
    """Steps between checkpoints; 0 for no such checkpoints."""
    eval_epochs: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    steps: int = 0
    """Stop after this many steps in total; 0 runs all epochs."""
    shard: Literal["", "fsdp"] = ""
    """``fsdp`` divides parameters, gradients and optimizer state among processes; empty keeps a copy in each."""


@dataclass(frozen=True)
class TrainConfig:
    """The configuration of a run. Every value can be changed as ``section.name=value``."""

    source: str = ""
    """The paper, and the section or table in it."""
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
        """Raise a ValueError for values that no run can use, before anything is built."""
        for names, rule, holds in RULES:
            for path in names:
                if not holds(value := attrgetter(path)(self)):
                    raise ValueError(
                        f"{path} must be {rule}, got {value}. `foveate recipes NAME` shows working values."
                    )
        self._check_objective()

    def _check_objective(self) -> None:
        """Raise a ValueError for values that this kind of objective would ignore."""
        section, default = self.objective, ObjectiveSection()
        used = {"kind", *USED_BY[section.kind]}
        unused = [f.name for f in dataclasses.fields(section) if f.name not in used]
        ignored = [name for name in unused if getattr(section, name) != getattr(default, name)]
        if ignored:
            raise ValueError(
                f"objective.kind={section.kind} does not use objective.{ignored[0]}. Leave it out, or change the kind."
            )
        if section.kind == "distill" and (self.augmentation.mixup or self.augmentation.cutmix):
            raise ValueError(
                "augmentation.mixup and cutmix mix labels, which distillation does not use. Set them to 0."
            )
        if section.kind == "dynamicvit" and self.reduction.warms_up:
            raise ValueError(
                "reduction.warmup_start and warmup_epochs start at keep rate 1, where DynamicViT has no predictors. "
                "Set them to 0; its ratio loss lowers the share of kept tokens."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; ``read_config`` is its inverse."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def read_config(data: Mapping[str, Any], where: str = "the configuration") -> TrainConfig:
    """Read a configuration from nested plain data.

    Args:
        data: Sections by name, each with its values.
        where: Where the data come from, for error messages.

    Raises:
        ValueError: If a name is unknown or a value has the wrong type.
    """
    values: dict[str, Any] = {}
    for name, value in current_names(data).items():
        kind = _field_type(TrainConfig, name, where)
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}: {name} must be a section of values, got {value!r}.")
            values[name] = _read_section(typing.cast(type, kind), value, f"{where}: {name}")
        else:
            values[name] = checked_value(value, kind, f"{where}: {name}")
    return TrainConfig(**values)


def override(config: TrainConfig, changes: Sequence[str]) -> TrainConfig:
    """Return ``config`` with values changed by command-line texts, e.g. ``optimizer.lr=1e-3``."""
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or "." not in path:
            raise ValueError(f"Write a change as section.name=value, e.g. optimizer.lr=1e-3; got {change!r}.")
        path = current_name(path.strip())
        section, name, key = (*path.split(".", 2), "")[:3]
        kind = _value_type(section, name)
        if key and typing.get_origin(kind) is not dict:
            raise ValueError(f"{path} has too many parts: {section}.{name} takes {type_in_words(kind)}.")
        value = value_from_text(text.strip(), dict if key else kind, path)
        if key:  # an entry of a section's own options, model.options.drop_path_rate=0.1
            value = _with_entry(getattr(getattr(config, section), name), key, value, path)
        config = _replaced(config, section, name, checked_value(value, kind, path))
    return config


def _with_entry(table: Mapping[str, Any], key: str, value: Any, path: str) -> dict[str, Any]:
    """``table`` with one entry changed; ``head.channels`` is an entry of the table ``head`` in it."""
    name, dot, rest = key.partition(".")
    if not dot:
        return {**table, name: value}
    inner = table.get(name, {})
    if not isinstance(inner, Mapping):
        raise ValueError(f"{path} has too many parts: {name} is {inner!r} and not a table of values.")
    return {**table, name: _with_entry(inner, rest, value, path)}


def set_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return ``config`` with values changed by name, e.g. ``{"optimizer.lr": 1e-3}``."""
    for path, value in values.items():
        path = current_name(path)
        section, dot, name = path.partition(".")
        if not dot:
            raise ValueError(f"Name a value as section.name, e.g. optimizer.lr; got {path!r}.")
        config = _replaced(config, section, name, checked_value(value, _value_type(section, name), path))
    return config


def _replaced(config: TrainConfig, section: str, name: str, value: Any) -> TrainConfig:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{name: value})})


def _value_type(section: str, name: str) -> Any:
    sections = [f.name for f in dataclasses.fields(TrainConfig) if f.name not in ("source", "description")]
    owner = typing.get_type_hints(TrainConfig)[_known(section, sections, "section")]
    return _field_type(owner, name, section)


def _read_section(section: type, data: Mapping[str, Any], where: str) -> Any:
    types = {name: _field_type(section, name, where) for name in data}
    return section(**{name: checked_value(value, types[name], f"{where}.{name}") for name, value in data.items()})


def _field_type(owner: type, name: str, where: str) -> Any:
    fields = [f.name for f in dataclasses.fields(owner)]
    return typing.get_type_hints(owner)[_known(name, fields, f"value in {where}")]


def _known(name: str, names: Sequence[str], what: str) -> str:
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=2)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(names)}."
    raise ValueError(f"There is no {what} called {name!r}. {hint}")
