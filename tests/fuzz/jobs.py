"""Calls that take time, spoiled: most of their cases end at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import foveate as fv

from .parameters import (
    CLASSIFIERS,
    EXACT,
    MODELS,
    PICTURES,
    SCHEDULE,
    UNIT,
    WHOLE_METHOD,
    Parameter,
    Target,
    a_model,
    is_blocks,
    is_method,
    is_path,
    is_size,
    number,
    optional,
    truth,
    whole,
)

SOUND = MODELS - {"nan_model()"}
"""Models whose outputs can be judged."""


def _is_none(value: Any) -> bool:
    return value is None


def _is_call(value: Any) -> bool:
    return value is None or (callable(value) and not isinstance(value, torch.nn.Module))


NONE = optional("None", _is_none)
PROGRESS = optional("None", _is_call)
DEVICE = optional("'cpu'", lambda value: isinstance(value, torch.device))


def job_targets() -> Iterator[Target]:
    """Everything that measures, trains, searches or exports."""
    yield _measure_speed()
    yield _measure_runtimes()
    yield from _comparisons()
    yield from _searches()
    yield _train()
    yield from _exports()
    yield _predictor()
    yield _recover()
    yield from _adaptive()


def _measure_speed() -> Target:
    options = {
        "model": a_model(also=MODELS),
        "method": WHOLE_METHOD,
        "schedule": SCHEDULE,
        "batch_size": Parameter("1", whole(1, 9)),
        "image_size": optional("None", is_size),
        "rounds": optional("1", whole(1, 9), given=True),
        "seconds": optional("0.1", number(0, 5), given=True),
        "warmup": optional("1", whole(1, 9)),
        "threads": optional("None", lambda value: value is None or whole(1, 9)(value)),
        "exact_last_block": EXACT,
        "unit_qk": UNIT,
        "dtype": optional("None", lambda value: value is None or isinstance(value, torch.dtype)),
        "device": DEVICE,
        "progress": PROGRESS,
    }
    return Target("fv.measure_speed", options, weight=2.5)


def _comparisons() -> Iterator[Target]:
    options = {
        "model": a_model(also=SOUND),
        "data": Parameter("[(images, torch.tensor([0, 1]))]", also=PICTURES),
        "methods": optional("['topk']", is_method, given=True),
        "budgets": optional("(0.7,)", number(0.2, 1), given=True),
        "batch_size": optional("2", whole(1, 99)),
        "device": DEVICE,
        "limit": optional("None", lambda value: value is None or whole(1)(value)),
        "seconds": optional("0.001", number(0, 3), given=True),
        "split": NONE,
        "classes": NONE,
        "checkpoints": optional("()", lambda value: isinstance(value, list | tuple | dict) and not value),
        "seed": optional("0", whole()),
        "workers": optional("0", whole(0)),
        "max_broken": optional("0.01", lambda value: value == 0 or number(0, 1)(value)),
        "data_options": optional("None", lambda value: value is None or value == {}),
        "task": optional("'classification'", also=frozenset({"'embedding'"})),
        "task_options": optional("None", lambda value: value is None or value == {}),
        "name": optional("'name'", lambda value: value is None or isinstance(value, str)),
        "trained": optional("True", truth),
        "store": optional("None", lambda value: value is None or is_path(value)),
        "resume": optional("False", lambda value: value is False),
        "progress": PROGRESS,
    }
    yield Target("fv.compare", options, weight=2)
    vectors = {
        "model": a_model("embedding_model()", frozenset()),
        "data": Parameter("images", also=PICTURES),
        "task": optional("'embedding'", _is_none),
        "task_options": optional("{}", lambda value: value is None or value == {}),
    }
    yield Target("fv.compare", options | vectors, weight=0.7)
    masks = {
        "model": a_model("segmenter()", frozenset()),
        "data": Parameter("files.masks"),
        "task": optional("'segmentation'", _is_none),
        "task_options": optional("{'ignore': 2}", lambda value: value is None or value == {}),
        "limit": optional("1", lambda value: value is None or whole(1)(value)),
    }
    yield Target("fv.compare", options | masks, weight=0.7, needs_files=True)


def _searches() -> Iterator[Target]:
    options = {
        "model": a_model(also=SOUND),
        "images": Parameter("images.repeat(32, 1, 1, 1)"),
        "macs": optional("0.8", number(0.5, 1), given=True),
        "agreement": NONE,
        "miou": NONE,
        "cosine": NONE,
        "latency_ms": NONE,
        "speedup": NONE,
        "memory_mib": NONE,
        "optimize": optional("'macs'"),
        "methods": optional("['topk']", is_method, given=True),
        "calibration": optional("32", whole(1, 999), given=True),
        "validation": optional("32", whole(1, 999), given=True),
        "trials": optional("1", whole(1, 99), given=True),
        "batch_size": optional("1", whole(1, 99)),
        "split": NONE,
        "workers": optional("0", whole(0, 9)),
        "seed": optional("0", whole(0, 10**9)),
        "seconds": optional("0.001", number(0, 3), given=True),
        "progress": PROGRESS,
    }
    yield Target("fv.search", options, weight=0.7)
    vectors = {"model": a_model("embedding_model()", frozenset()), "cosine": optional("0.1", number(0, 0.5))}
    yield Target("fv.search", options | vectors, weight=0.4)


def _train() -> Target:
    options = {
        "recipe": Parameter("files.config"),
        "model": NONE,
        "data": NONE,
        "out": optional("'out'", is_path),
        "overrides": optional("()", lambda value: isinstance(value, list | tuple | dict) and not value),
        "resume": optional("False", truth),
        "progress": PROGRESS,
        "stop": NONE,
    }
    return Target("fv.train", options, weight=1.2, needs_files=True)


def _exports() -> Iterator[Target]:
    export = {
        "model": a_model(also=SOUND | {"reduced_model()"}),
        "path": Parameter("'new'", is_path),
        "to": Parameter("'torch-export'"),
        "data": optional("images", _is_none, given=True),
        "images": optional("2", lambda value: value is None or whole(1)(value)),
        "input_size": NONE,
        "classes": NONE,
        "quantize": NONE,
        "tolerance": optional("1e-3", number(0, 1e300)),
    }
    yield Target("fv.export", export, weight=0.8)
    load = {
        "path": Parameter("files.exported"),
        "threads": optional("1", lambda value: value is None or whole(1)(value)),
        "trusted": optional("False", truth),
    }
    yield Target("fv.load_exported", load, "{}(images)", needs_files=True)
    pictures = Parameter("images", also=PICTURES)
    yield Target("fv.load_exported(files.exported)", {"images": pictures}, weight=0.5, needs_files=True)


def _predictor() -> Target:
    options = {
        "model": a_model(also=CLASSIFIERS | {"reduced_model()"}),
        "reduction": optional("None", lambda value: value is None or isinstance(value, fv.Reduction)),
        "output": optional("'classes'"),
        "top_k": optional("2", whole(1)),
        "dtype": optional("'float32'"),
        "pretrained": optional("False", lambda value: value is False),
        "weights": NONE,
        "image_size": NONE,
        "classes": NONE,
        "batch_size": optional("None", lambda value: value is None or whole(1)(value)),
        "device": DEVICE,
        "threads": optional("1", lambda value: value is None or whole(1, 9)(value)),
        "column": optional("'image'", lambda value: isinstance(value, str)),
        "untrained": optional("True", truth, given=True),
    }
    return Target("fv.Predictor", options, "predicted({})", weight=0.8)


def _recover() -> Target:
    options = {
        "model": a_model("reduced_model()", frozenset()),
        "images": Parameter("images.repeat(32, 1, 1, 1)"),
        "minutes": optional("0.05", number(0, 0.2), given=True),
        "steps": optional("1", lambda value: value is None or whole(1, 9)(value), given=True),
        "batch_size": optional("4", whole(1, 99)),
        "lr": optional("1e-4", number(0, 1)),
        "limit": optional("64", whole(1, 10**21)),
        "split": NONE,
        "workers": optional("0", whole(0, 9)),
        "seed": optional("0", whole(0, 10**9)),
        "progress": PROGRESS,
    }
    return Target("fv.recover", options, weight=0.4)


def _adaptive() -> Iterator[Target]:
    share = {
        "fraction": Parameter("0.7", number(0, 1)),
        "blocks": optional("(1,)", is_blocks),
        "threshold": optional("None", lambda value: value is None or number(-1e301, 1e301)(value)),
        "span": optional("0.3", number(0, 1)),
        "levels": optional("3", whole(1, 99)),
    }
    yield Target("fv.Adaptive", share, weight=0.5)
    fitted = "fv.reduce_(model, 'tome', fv.Adaptive(0.7))"
    yield Target(
        "fv.fit_adaptive_",
        {"model": a_model(fitted, frozenset()), "images": Parameter("images", also=PICTURES)},
        weight=0.4,
    )
    grouped = {
        "model": a_model(f"fv.fit_adaptive_({fitted}, images)", MODELS | {"reduced_model()"}),
        "batches": Parameter(
            "[images]", also=frozenset({"[]", "()", "torch.zeros(0)", "torch.zeros(0, 3, 16, 16)", "{}"})
        ),
        "pool": optional("4", whole(1, 10**21)),
    }
    yield Target("fv.predict_grouped", grouped, "list({})", weight=0.4)


def _measure_runtimes() -> Target:
    options = {
        "model": a_model(also=MODELS),
        "reductions": Parameter("[fv.Reduction('topk', 0.7)]", also=frozenset({"[]", "()"})),
        "runtimes": optional("['eager']", given=True),
        "batch_sizes": optional("[1]", also=frozenset({"(1, 2)", "[1, 2]"}), given=True),
        "rounds": optional("1", whole(1, 9), given=True),
        "seconds": optional("0.01", number(0, 3), given=True),
        "progress": PROGRESS,
    }
    return Target("fv.measure_runtimes", options, weight=0.2)
