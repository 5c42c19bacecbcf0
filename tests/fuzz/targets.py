"""Every call of ``fv`` that is spoiled: its arguments, good expressions for them, and what else it may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import foveate as fv
from foveate.methods import all_methods

from .jobs import job_targets
from .parameters import (
    ANY_MODEL,
    EXACT,
    METHOD,
    MODELS,
    PICTURES,
    SCHEDULE,
    UNIT,
    WHOLE_METHOD,
    Parameter,
    Target,
    a_model,
    anything,
    is_blocks,
    is_method,
    is_path,
    is_schedule,
    is_size,
    number,
    optional,
    options_of,
    truth,
    whole,
)


def _targets() -> Iterator[Target]:
    yield Target("fv.inspect", {"model": a_model()}, "repr({})")
    yield Target("fv.is_reduced", {"model": Parameter("model", anything)}, weight=0.3)
    yield Target("fv.cost", {"model": a_model(), "image_size": optional("None", is_size)}, "str({})")
    pictures = Parameter("images", also=PICTURES)
    yield Target("fv.trace", {"model": a_model(), "images": pictures}, "{}.owner(-1)", 2)
    block = optional("-1", lambda value: whole(-3, 2)(value) or (is_blocks(value) and value is not None))
    yield Target("fv.features", {"model": a_model(), "images": pictures, "block": block}, weight=2)
    reducing = {"method": METHOD, "schedule": SCHEDULE, "exact_last_block": EXACT, "unit_qk": UNIT}
    yield Target("fv.reduce_", {"model": a_model(), **reducing}, "run_on({})", 3)
    yield Target("fv.reduced", {"model": a_model(), **reducing, "method": WHOLE_METHOD}, "entered({})", 2)
    changed = Parameter("fv.Keep({1: 8})", is_schedule)
    yield Target("fv.reschedule_", {"model": a_model("reduced_model()"), "schedule": changed}, "run_on({})")
    yield Target("fv.restore_", {"model": a_model("reduced_model()", frozenset())}, "run_on({})")
    yield Target(
        "fv.list_methods",
        {
            "filter": optional("None", lambda value: value is None or isinstance(value, str)),
            "kind": optional("'merge'", lambda value: value is None),
        },
    )
    yield Target(
        "fv.check_method",
        {"method": Parameter("fv.TopK()", lambda value: isinstance(value, fv.Method), also=frozenset({"fv.ToMe"}))},
        weight=0.15,
    )
    yield from _values()
    yield from _files()
    yield from job_targets()
    yield from _models()


def _values() -> Iterator[Target]:
    """Constructors, and the methods of what they make."""
    described = {
        "method": optional("'tome'", lambda value: value is None or is_method(value)),
        "schedule": optional("0.5", is_schedule),
        "exact_last_block": optional("False", truth),
        "unit_qk": optional("None", lambda value: value is None),
    }
    yield Target("fv.Reduction", described, "run_on({}.apply_(model))", 2)
    yield Target(
        "fv.Reduction.from_dict",
        {"data": Parameter("fv.Reduction('tome', 0.5).to_dict()", lambda value: value is None or value == {})},
        "[{}]",
    )
    yield Target("fv.Reduction.parse", {"text": Parameter("'tome --budget 0.5'", also=frozenset({"''", "'tome'"}))})
    yield Target("fv.Reduction('tome', 0.5).with_schedule", {"schedule": Parameter("fv.Keep({})", is_schedule)})
    yield Target("fv.Reduction('tome', 0.5).plan", {"shape": Parameter("fv.inspect(model).shape()")}, weight=0.5)

    def is_plan(value: Any) -> bool:
        numbers = (
            [*value, *value.values()]
            if isinstance(value, dict)
            else value
            if isinstance(value, list | tuple | range)
            else None
        )
        return numbers is not None and all(map(whole(0), numbers))

    for call, share in (("fv.KeepRate", "rate"), ("fv.Budget", "fraction")):
        known = {share: Parameter("0.79", number(0, 1)), "blocks": optional("(1,)", is_blocks)}
        yield Target(call, known, "run_on(fv.reduce_(model, 'tome', {}))", 1.5)
    yield Target("fv.Keep", {"plan": Parameter("{1: 8}", is_plan)}, "run_on(fv.reduce_(model, 'tome', {}))", 1.5)
    yield Target("fv.RemovePerBlock", {"r": Parameter("2", whole(0))}, "run_on(fv.reduce_(model, 'tome', {}))")
    for name, method in all_methods().items():
        if options := options_of(method):
            yield Target(f"fv.{name}", options, "reduced_and_run({}, model, images)", 0.8)
    for question in ("after", "owner", "keys"):
        yield Target(
            f"fv.trace(reduced_model(), images).{question}", {"block": Parameter("0", whole(-3, 2))}, weight=0.6
        )


def _files() -> Iterator[Target]:
    saved, schedule = "files.saved", "files.schedule"
    yield Target(
        "fv.save",
        {"model": a_model(also=ANY_MODEL - {"meta_model()"}), "directory": Parameter("'new'", is_path)},
        weight=2,
    )
    yield Target(
        "fv.load",
        {
            "directory": Parameter(saved),
            "model": optional("None", lambda value: value is None, also=frozenset({"model", "nan_model()"})),
        },
        "run_on({})",
        2,
        needs_files=True,
    )
    yield Target(
        "fv.save_schedule",
        {
            "schedule": Parameter("fv.Keep({})", lambda value: isinstance(value, fv.Schedule)),
            "path": Parameter("'new.json'", is_path),
        },
    )
    yield Target("fv.load_schedule", {"path": Parameter(schedule)}, needs_files=True)


def _models() -> Iterator[Target]:
    name = Parameter("files.saved", also=frozenset({"'vit_tiny_patch16_224'"}))
    none = optional("None", lambda value: value is None)
    yield Target(
        "fv.models.load_model",
        {
            "name": name,
            "pretrained": optional("False", truth),
            "weights": none,
            "options": optional("None", lambda value: value is None or value == {}),
        },
        "run_on({})",
        1.5,
        needs_files=True,
    )
    weights = Parameter("model.state_dict()")
    yield Target("fv.models.convert_weights", {"weights": weights, "model": a_model(also=MODELS)}, weight=1.2)
    yield Target("fv.models.drop_class_token_", {"model": a_model(also=MODELS)}, "run_on({})")
    clustered = a_model("fv.reduce_(model, fv.ClusterAttention(ratio=2.0, average=0.5))", frozenset())
    batches = Parameter("[images]", also=PICTURES)
    yield Target(
        "fv.models.fit_cluster_counts_",
        {"model": clustered, "batches": batches, "passes": optional("1", whole(1, 9))},
        weight=1.2,
    )
    dense = {
        "encoder": a_model(also=ANY_MODEL),
        "head": Parameter("'linear'", also=frozenset({"'simple-pyramid'"})),
        "num_classes": optional("3", lambda value: value is None or whole(1, 1000)(value), given=True),
        "image_size": optional("(16, 16)", lambda value: value is None),
    }
    yield Target("fv.models.dense_model", dense)
    share = Parameter("0.5", number(0, 1e300))
    yield Target("fv.models.block_compression", {"tokens": share, "dim": share})
    yield Target("fv.models.Clustering", options_of(fv.models.Clustering))  # type: ignore[arg-type]
    pyramid = {
        "depths": optional("(1, 1, 1, 1)", also=frozenset({"(8, 8, 8, 8)"})),
        "embed_dims": optional("(8, 8, 8, 8)", also=frozenset({"(1, 1, 1, 1)"})),
        "num_heads": optional("(1, 1, 1, 1)"),
        "scales": optional("((64, 16), (16, 4), (4, 1), (1,))"),
        "img_size": optional("64"),
        "attention": optional("'cluster'"),
        "top_keys": optional("0", whole(0, 100)),
        "drop_path_rate": optional("0.0", lambda value: value == 0 or number(0, 1)(value)),
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
        "patch_size": optional("4", also=frozenset({"16", "2"}), given=True),
        "embed_dim": optional("16", also=frozenset({"4"}), given=True),
        "img_size": optional("16", also=frozenset({"True"}), given=True),
        "depth": optional("2", whole(1, 9)),
        "num_heads": optional("2", also=frozenset({"1", "4"}), given=True),
    }
    yield Target("fv.models.LVViT", tokens, weight=0.8)


TARGETS = tuple(_targets())
