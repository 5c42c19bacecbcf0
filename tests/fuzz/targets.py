"""Every call of ``fv`` that is spoiled: its arguments, good expressions for them, and what else it may take."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch

import foveate as fv
from foveate.methods import all_methods

from .values import HOSTILE, Accepts


@dataclass(frozen=True)
class Parameter:
    """An argument: a good expression, and what else a call may take without an error."""

    good: str
    accepts: Accepts = lambda value: False
    also: frozenset[str] = frozenset()
    """Expressions that are good as well."""
    required: bool = True
    given: bool = False
    """Whether the call always has it, because its default takes long."""

    def allows(self, expression: str, value: Any) -> bool:
        if expression == self.good or expression in self.also:
            return True
        try:
            return bool(self.accepts(value))
        except Exception:  # an array that is neither true nor false
            return False


@dataclass(frozen=True)
class Target:
    """A call, and how its result is used: ``wrap`` may use up what the call returns."""

    call: str
    parameters: Mapping[str, Parameter]
    wrap: str = "{}"
    weight: float = 1.0
    needs_files: bool = False
    hostile: tuple[str, ...] = field(default=HOSTILE)


# -- what is good

MODELS = frozenset({"model", "shared_weights()", "nan_model()", "half_model()", "torchvision_model()", "mean_model()"})
ANY_MODEL = MODELS | {"reduced_model()", "meta_model()"}
PICTURES = frozenset(
    {"torch.zeros(2, 3, 16, 16)", "images"} | {f"torch.full((2, 3, 16, 16), float('{x}'))" for x in ("nan", "inf")}
)


def _whole(least: float = -math.inf, most: float = math.inf) -> Accepts:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(least: float, most: float) -> Accepts:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least < value <= most


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _anything(value: Any) -> bool:
    return True


def _path(value: Any) -> bool:
    return isinstance(value, str | Path)


def _is_schedule(value: Any) -> bool:
    return isinstance(value, fv.Schedule) or _number(0, 1)(value) or value in ("0.5", "1", None)


def _is_method(value: Any) -> bool:
    return isinstance(value, fv.Method) or (isinstance(value, str) and value == "tome")


def _blocks(value: Any) -> bool:
    if _whole(0)(value) or value is None:
        return True
    items = list(value) if isinstance(value, list | tuple | range) else None
    return items is not None and all(map(_whole(0), items))


def _model(good: str = "model", also: frozenset[str] = ANY_MODEL) -> Parameter:
    return Parameter(good, also=also)


def _optional(good: str, accepts: Accepts = lambda value: False, **rest: Any) -> Parameter:
    return Parameter(good, accepts, required=False, **rest)


_EXACT = _optional("False", _truth)
_UNIT = _optional("None", lambda value: value is None)
_METHOD = Parameter("fv.ToMe()", _is_method)
_SCHEDULE = _optional("fv.KeepRate(0.6)", _is_schedule)
_WHOLE_METHOD = Parameter("fv.ToMe()", lambda value: _is_method(value) or isinstance(value, fv.Reduction))


def _size(value: Any) -> bool:
    if not isinstance(value, tuple | list):
        return value is None
    return len(value) == 3 and value[0] == 3 and all(map(_whole(1), value))


def _options_of(method: type[fv.Method]) -> dict[str, Parameter]:
    hints = typing.get_type_hints(method)
    return {f.name: _optional(_literal(f.default), _fits(f.name, hints[f.name])) for f in dataclasses.fields(method)}


def _literal(value: Any) -> str:
    return repr(value.value if isinstance(value, Enum) else value)


def _fits(name: str, hint: Any) -> Accepts:
    if typing.get_origin(hint) is typing.Literal:
        return lambda value: isinstance(value, int | str) and value in typing.get_args(hint)
    if hint == tuple[int, ...]:
        return _blocks
    seeds = (-(2**63), 2**64 - 1)
    kinds: dict[Any, Accepts] = {bool: _truth, int: _whole(*(seeds if name == "seed" else (0, 100)))}
    kinds[float] = lambda value: _number(-1e301, 1e301)(value)
    return kinds.get(hint, lambda value: False)


def _targets() -> Iterator[Target]:
    yield Target("fv.inspect", {"model": _model()}, "repr({})")
    yield Target("fv.is_reduced", {"model": Parameter("model", _anything)}, weight=0.3)
    yield Target("fv.cost", {"model": _model(), "image_size": _optional("None", _size)}, "str({})")
    pictures = Parameter("images", also=PICTURES)
    yield Target("fv.trace", {"model": _model(), "images": pictures}, "{}.owner(-1)", 2)
    block = _optional("-1", lambda value: _whole(-3, 2)(value) or (_blocks(value) and value is not None))
    yield Target("fv.features", {"model": _model(), "images": pictures, "block": block}, weight=2)
    reducing = {"method": _METHOD, "schedule": _SCHEDULE, "exact_last_block": _EXACT, "unit_qk": _UNIT}
    yield Target("fv.reduce_", {"model": _model(), **reducing}, "run_on({})", 3)
    yield Target("fv.reduced", {"model": _model(), **reducing, "method": _WHOLE_METHOD}, "entered({})", 2)
    changed = Parameter("fv.Keep({1: 8})", _is_schedule)
    yield Target("fv.reschedule_", {"model": _model("reduced_model()"), "schedule": changed}, "run_on({})")
    yield Target("fv.restore_", {"model": _model("reduced_model()", frozenset())}, "run_on({})")
    yield Target(
        "fv.list_methods",
        {
            "filter": _optional("None", lambda value: value is None or isinstance(value, str)),
            "kind": _optional("'merge'", lambda value: value is None),
        },
    )
    yield Target(
        "fv.check_method",
        {"method": Parameter("fv.TopK()", lambda value: isinstance(value, fv.Method), also=frozenset({"fv.ToMe"}))},
        weight=0.15,
    )
    yield from _values()
    yield from _files()
    yield from _jobs()
    yield from _models()


def _values() -> Iterator[Target]:
    """Constructors, and the methods of what they make."""
    whole = {
        "method": _optional("'tome'", lambda value: value is None or _is_method(value)),
        "schedule": _optional("0.5", _is_schedule),
        "exact_last_block": _optional("False", _truth),
        "unit_qk": _optional("None", lambda value: value is None),
    }
    yield Target("fv.Reduction", whole, "run_on({}.apply_(model))", 2)
    yield Target(
        "fv.Reduction.from_dict",
        {"data": Parameter("fv.Reduction('tome', 0.5).to_dict()", lambda value: value is None or value == {})},
        "[{}]",
    )
    yield Target("fv.Reduction.parse", {"text": Parameter("'tome --budget 0.5'", also=frozenset({"''", "'tome'"}))})
    yield Target("fv.Reduction('tome', 0.5).with_schedule", {"schedule": Parameter("fv.Keep({})", _is_schedule)})
    yield Target("fv.Reduction('tome', 0.5).plan", {"shape": Parameter("fv.inspect(model).shape()")}, weight=0.5)

    def is_plan(value: Any) -> bool:
        numbers = (
            [*value, *value.values()]
            if isinstance(value, dict)
            else value
            if isinstance(value, list | tuple | range)
            else None
        )
        return numbers is not None and all(map(_whole(0), numbers))

    for call, share in (("fv.KeepRate", "rate"), ("fv.Budget", "fraction")):
        known = {share: Parameter("0.79", _number(0, 1)), "blocks": _optional("(1,)", _blocks)}
        yield Target(call, known, "run_on(fv.reduce_(model, 'tome', {}))", 1.5)
    yield Target("fv.Keep", {"plan": Parameter("{1: 8}", is_plan)}, "run_on(fv.reduce_(model, 'tome', {}))", 1.5)
    yield Target("fv.RemovePerBlock", {"r": Parameter("2", _whole(0))}, "run_on(fv.reduce_(model, 'tome', {}))")
    for name, method in all_methods().items():
        if options := _options_of(method):
            yield Target(f"fv.{name}", options, "reduced_and_run({}, model, images)", 0.8)
    for question in ("after", "owner", "keys"):
        yield Target(
            f"fv.trace(reduced_model(), images).{question}", {"block": Parameter("0", _whole(-3, 2))}, weight=0.6
        )


def _files() -> Iterator[Target]:
    saved, schedule = "files.saved", "files.schedule"
    yield Target(
        "fv.save",
        {"model": _model(also=ANY_MODEL - {"meta_model()"}), "directory": Parameter("'new'", _path)},
        weight=2,
    )
    yield Target(
        "fv.load",
        {
            "directory": Parameter(saved),
            "model": _optional("None", lambda value: value is None, also=frozenset({"model", "nan_model()"})),
        },
        "run_on({})",
        2,
        needs_files=True,
    )
    yield Target(
        "fv.save_schedule",
        {
            "schedule": Parameter("fv.Keep({})", lambda value: isinstance(value, fv.Schedule)),
            "path": Parameter("'new.json'", _path),
        },
    )
    yield Target("fv.load_schedule", {"path": Parameter(schedule)}, needs_files=True)


def _jobs() -> Iterator[Target]:
    """Jobs that take time: most of their cases end at once."""
    speed = {
        "model": _model(also=MODELS),
        "method": _WHOLE_METHOD,
        "schedule": _SCHEDULE,
        "batch_size": Parameter("1", _whole(1, 9)),
        "image_size": _optional("None", _size),
        "rounds": _optional("1", _whole(1, 9), given=True),
        "seconds": _optional("0.1", _number(0, 5), given=True),
        "warmup": _optional("1", _whole(1, 9)),
        "threads": _optional("None", lambda value: value is None or _whole(1, 9)(value)),
        "exact_last_block": _EXACT,
        "unit_qk": _UNIT,
        "dtype": _optional("None", lambda value: value is None or isinstance(value, torch.dtype)),
        "device": _optional("'cpu'", lambda value: isinstance(value, torch.device)),
        "progress": _optional("None", lambda value: value is None or callable(value)),
    }
    yield Target("fv.measure_speed", speed, weight=2.5)
    compare = {
        "model": _model(also=MODELS - {"nan_model()"}),
        "data": Parameter("[(images, torch.tensor([0, 1]))]", also=PICTURES),
        "methods": _optional("['topk']", _is_method, given=True),
        "budgets": _optional("(0.7,)", _number(0.2, 1), given=True),
        "batch_size": _optional("2", _whole(1, 99)),
        "device": _optional("'cpu'", lambda value: isinstance(value, torch.device)),
        "limit": _optional("None", lambda value: value is None or _whole(1, 99)(value)),
        "seconds": _optional("0.001", _number(0, 3), given=True),
        "split": _optional("None", lambda value: value is None),
        "classes": _optional("None", lambda value: value is None),
        "checkpoints": _optional("()", lambda value: isinstance(value, list | tuple | dict) and not value),
        "seed": _optional("0", _whole()),
        "workers": _optional("0", _whole(0)),
        "max_broken": _optional("0.01", lambda value: value == 0 or _number(0, 1)(value)),
        "data_options": _optional("None", lambda value: value is None or value == {}),
        "task": _optional("'classification'"),
        "name": _optional("'name'", lambda value: value is None or isinstance(value, str)),
        "trained": _optional("True", _truth),
        "store": _optional("None", lambda value: value is None or _path(value)),
        "resume": _optional("False", lambda value: value is False),
        "progress": _optional("None", lambda value: value is None or callable(value)),
    }
    yield Target("fv.compare", compare, weight=2.5)
    share = _optional("None", lambda value: value is None)
    search = {
        "model": _model(also=MODELS - {"nan_model()"}),
        "images": Parameter("images.repeat(32, 1, 1, 1)"),
        "macs": _optional("0.8", _number(0.5, 1), given=True),
        "agreement": share,
        "cosine": share,
        "latency": share,
        "speedup": share,
        "methods": _optional("['topk']", _is_method, given=True),
        "calibration": _optional("32", _whole(1, 999), given=True),
        "validation": _optional("32", _whole(1, 999), given=True),
        "trials": _optional("1", _whole(1, 9), given=True),
        "batch_size": _optional("1", _whole(1, 99)),
        "split": share,
        "workers": _optional("0", _whole(0, 9)),
        "seed": _optional("0", _whole(0, 10**9)),
        "seconds": _optional("0.001", _number(0, 3), given=True),
        "progress": _optional("None", lambda value: value is None or callable(value)),
    }
    yield Target("fv.search", search, weight=0.7)
    train = {
        "recipe": Parameter("files.config"),
        "model": _optional("None", lambda value: value is None),
        "data": _optional("None", lambda value: value is None),
        "out": _optional("'out'", _path),
        "overrides": _optional("()", lambda value: isinstance(value, list | tuple | dict) and not value),
        "resume": _optional("False", _truth),
        "progress": _optional("None", lambda value: value is None or callable(value)),
        "stop": _optional("None", lambda value: value is None),
    }
    yield Target("fv.train", train, weight=1.2, needs_files=True)


def _models() -> Iterator[Target]:
    name = Parameter("files.saved", also=frozenset({"'vit_tiny_patch16_224'"}))
    none = _optional("None", lambda value: value is None)
    yield Target(
        "fv.models.load_model",
        {
            "name": name,
            "pretrained": _optional("False", _truth),
            "weights": none,
            "options": _optional("None", lambda value: value is None or value == {}),
        },
        "run_on({})",
        1.5,
        needs_files=True,
    )
    weights = Parameter("model.state_dict()")
    yield Target("fv.models.convert_weights", {"weights": weights, "model": _model(also=MODELS)}, weight=1.2)
    yield Target("fv.models.drop_class_token_", {"model": _model(also=MODELS)}, "run_on({})")
    clustered = _model("fv.reduce_(model, fv.ClusterAttention(ratio=2.0, average=0.5))", frozenset())
    batches = Parameter("[images]", also=PICTURES)
    yield Target(
        "fv.models.fit_cluster_counts_",
        {"model": clustered, "batches": batches, "passes": _optional("1", _whole(1, 9))},
        weight=1.2,
    )
    dense = {
        "encoder": _model(also=ANY_MODEL),
        "head": Parameter("'linear'", also=frozenset({"'simple-pyramid'"})),
        "num_classes": _optional("3", lambda value: value is None or _whole(1, 1000)(value), given=True),
        "image_size": _optional("(16, 16)", lambda value: value is None),
    }
    yield Target("fv.models.dense_model", dense)
    share = Parameter("0.5", _number(0, 1e300))
    yield Target("fv.models.block_compression", {"tokens": share, "dim": share})
    yield Target("fv.models.Clustering", _options_of(fv.models.Clustering))  # type: ignore[arg-type]
    pyramid = {
        "depths": _optional("(1, 1, 1, 1)"),
        "embed_dims": _optional("(8, 8, 8, 8)"),
        "num_heads": _optional("(1, 1, 1, 1)"),
        "scales": _optional("((64, 16), (16, 4), (4, 1), (1,))"),
        "img_size": _optional("64"),
        "attention": _optional("'cluster'"),
        "top_keys": _optional("0", _whole(0, 100)),
        "drop_path_rate": _optional("0.0", lambda value: value == 0 or _number(0, 1)(value)),
    }
    yield Target("fv.models.ClusTR", pyramid, weight=1.2)
    attention = {
        "dim": Parameter("8"),
        "num_heads": Parameter("2", also=frozenset({"1", "np.int64(2)"})),
        "ratios": Parameter("(4, 1)", also=frozenset({"[1]", "(1, 2)", "[1, 2]", "range(3)"})),
        "clustering": Parameter("fv.models.Clustering()"),
    }
    yield Target("fv.models.MultiScaleClusterAttention", attention, weight=0.8)
    tokens = {
        "patch_size": _optional("4", given=True),
        "embed_dim": _optional("16", given=True),
        "img_size": _optional("16", also=frozenset({"True"}), given=True),
        "depth": _optional("2", _whole(1, 9)),
        "num_heads": _optional("2", also=frozenset({"1"}), given=True),
    }
    yield Target("fv.models.LVViT", tokens, weight=0.8)


TARGETS = tuple(_targets())
