"""Table 1 of task-agnostic distillation into EViT: parameters, MACs and speed of pruned and unpruned models."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

from torch import nn

import foveate as fv
from foveate.adapters import inspect, reducer_of
from foveate.costs import Plan
from foveate.evaluation.timing import FEWEST_ROUNDS
from foveate.methods.base import Method
from foveate.models.by_name import load_model
from foveate.report import SpeedResult, measure_speed
from foveate.tables.figures import MEGA, Figure, score, verdict
from foveate.tables.models import build_shapes
from foveate.tables.registry import Row, SpeedOptions, Table, table

IMAGE_SIZE = (3, 224, 224)
BATCH_SIZE = 32
BLOCKS = (3, 6, 9)
TEACHER_ROUNDS = 3  # one batch takes about a minute on a CPU, and no ratio depends on it
COLUMNS = ("model", "params printed", "params", "MACs printed", "MACs as paper", "off by", "true MACs", "img/s printed")
SPEED_COLUMNS = (
    *("model", "img/s printed", "img/s here", "speed-up printed", "speed-up here"),
    *("from", "to", "MAC ratio", "rounds"),
)
NOTE = """\
Parameters and MACs in millions. Parameters: {params}; MACs: {macs}. A row holds when both round to what is printed, \
one digit after the point.
Rule: MACs of matrix products, linear layers and convolutions without biases, one for each element that a LayerNorm \
reads, and one for each element-wise multiplication: queries by their scale, LayerScale, and the weights of fused \
tokens.
"true MACs" is fv.cost: products, linear layers and convolutions only, including the class token's row of attention. \
foveate computes that row next to a fused kernel; the paper's models read it off the full matrix.
EViT prunes in blocks 3, 6 and 9, between attention and MLP. The printed MACs are those of dropping the inattentive \
tokens, though the paper describes fusing them; the rows marked "fused" count the fused token and have no printed \
value.
ViT-S/14 has no LayerScale. ViT-L is DINOv2's ViT-L/14 with LayerScale and positions for 518 px. Its mask token, which \
timm's model lacks, is added to the parameters; it costs no MACs."""
UNMEASURED = """
Images per second are printed for an NVIDIA 3090, batch 32, float32; for this machine run \
foveate tables evit --speed"""
SPEED_NOTE = """\
Printed: NVIDIA 3090. Here: {machine}. Both: batch {batch}, 224 px. Not judged.
EViT drops tokens here as in the counts, and is timed in turns with ViT-S: the speed-up is the median of the ratios \
within a round, from and to are their quartiles, and the rate of ViT-S is the mean of its two measurements. ViT-L is \
timed alone. Printed speed-ups are quotients of printed rates; the MAC ratio is of true MACs."""


@dataclass(frozen=True)
class Printed:
    """A row of the paper's table; values that are not printed are None. Counts are in millions."""

    params: str | None = None
    macs: str | None = None
    per_second: float | None = None


@dataclass(frozen=True)
class Model:
    """A model by name, with the options that match the paper."""

    name: str
    options: dict[str, Any]
    mask_token: bool = False
    """Whether the paper's model has a mask token that timm's lacks."""


@dataclass(frozen=True)
class Line:
    """One of our rows: a model, and how it is pruned."""

    name: str
    model: Model
    rate: float | None = None
    fuse: bool = False

    @property
    def method(self) -> fv.EViT:
        return fv.EViT(fuse=self.fuse)

    @property
    def schedule(self) -> fv.KeepRate | fv.Keep:
        return fv.Keep({}) if self.rate is None else fv.KeepRate(self.rate, BLOCKS)


@dataclass(frozen=True)
class Count:
    """Parameters and costs of one row's model."""

    params: int
    as_paper: int
    true: int


VIT_S = Model("vit_small_patch16_224", {"patch_size": 14, "num_classes": 0})
# its position embeddings are for 518 px and are resized to the image
VIT_L = Model("vit_large_patch14_dinov2", {"num_classes": 0, "dynamic_img_size": True}, mask_token=True)
PRINTED = {
    "ViT-S": Printed("21.6", "6127.2", 940.9),
    "EViT-S/0.7": Printed("21.6", "3963.7", 1443.1),
    "EViT-S/0.5": Printed("21.6", "3013.7", 1831.3),
    "ViT-L": Printed("304.4", "81043.8", 72.8),
}
STUDENT, TEACHER = Line("ViT-S", VIT_S), Line("ViT-L", VIT_L)
LINES = (
    STUDENT,
    Line("EViT-S/0.7", VIT_S, 0.7),
    Line("0.7, fused", VIT_S, 0.7, fuse=True),
    Line("EViT-S/0.5", VIT_S, 0.5),
    Line("0.5, fused", VIT_S, 0.5, fuse=True),
    TEACHER,
)


@table("evit")
def evit(speed: SpeedOptions | None = None) -> Table:
    """Distillation into EViT, table 1: parameters and MACs of ViT-S, EViT-S and ViT-L; speed with --speed."""
    rows, all_params, all_macs = [], [], []
    for line in LINES:
        counted, printed = count(line), PRINTED.get(line.name, Printed())
        params = Figure(printed.params, counted.params, MEGA)
        macs = Figure(printed.macs, counted.as_paper, MEGA)
        numbers = (params.value, params.counted, macs.value, macs.counted, macs.off_by(2), counted.true / MEGA)
        rows.append(Row((line.name, *numbers, printed.per_second), verdict(params, macs)))
        all_params.append(params)
        all_macs.append(macs)
    measured = None if speed is None else speeds(speed)
    note = NOTE.format(params=score(all_params), macs=score(all_macs)) + (UNMEASURED if measured is None else "")
    return Table("Task-agnostic distillation into EViT, table 1", COLUMNS, tuple(rows), note, measured)


def count(line: Line) -> Count:
    """Build the row's model on the meta device, prune it and count it."""
    model: Any = build_shapes(line.model.name, **line.model.options)
    fv.reduce_(model, line.method, line.schedule)
    cost = fv.cost(model, IMAGE_SIZE)
    products = cost.macs - cost.reduction_macs
    mask_token = model.embed_dim if line.model.mask_token else 0
    return Count(cost.params + mask_token, products + elementwise(model), cost.macs)


def elementwise(model: Any) -> int:
    """Count what the paper's rule adds to matrix products: normalized, scaled and fused elements."""
    reducer, family = reducer_of(model), inspect(model)
    assert reducer is not None
    assert reducer.method is not None
    shape = family.shape(family.grid_for(*IMAGE_SIZE[1:]))
    plan = reducer.plan_for(shape.grid)
    total, tokens = 0, shape.num_prefix + plan.num_patches
    for index, (block, sizes) in enumerate(zip(model.blocks, shape.blocks, strict=True)):
        left = shape.num_prefix + plan.tokens_after(index)
        total += tokens * sizes.heads * sizes.head_dim  # queries by their scale
        total += tokens * sizes.dim * elements_per_channel(block.norm1, block.ls1)
        total += left * sizes.dim * elements_per_channel(block.norm2, block.ls2)
        total += fused_tokens(reducer.method, plan, index) * sizes.dim
        tokens = left
    return total + tokens * model.embed_dim * elements_per_channel(model.norm)


def elements_per_channel(*modules: nn.Module) -> int:
    """Return how many of the norms and layer scales count per element; an Identity does not."""
    return sum(not isinstance(module, nn.Identity) for module in modules)


def fused_tokens(method: Method, plan: Plan, block: int) -> int:
    """Return how many tokens are fused into one in ``block``."""
    if not (isinstance(method, fv.EViT) and method.fuse and plan.acts_in(block)):
        return 0
    return plan.before(block) - (plan.counts[block] - 1)


def speeds(options: SpeedOptions) -> Table:
    """Time every printed row: each EViT in turns with the unpruned student, the teacher alone."""
    pruned = [(line, timed(line, options)) for line in LINES if line.name in PRINTED and line.rate is not None]
    alone = timed(TEACHER, options)
    student_rate = mean(result.unreduced_per_second for _, result in pruned)
    rows = (
        unpruned_row(STUDENT, student_rate, None),
        *(pruned_row(line, result) for line, result in pruned),
        unpruned_row(TEACHER, alone.unreduced_per_second, alone.rounds),
    )
    note = SPEED_NOTE.format(machine=alone.environment, batch=BATCH_SIZE)
    return Table("Images per second", SPEED_COLUMNS, rows, note)


def timed(line: Line, options: SpeedOptions) -> SpeedResult:
    """Time the row's model, with weights, in turns with itself unpruned."""
    pruned = line.rate is not None
    with options.progress(f"{line.name}, batch {BATCH_SIZE}") as progress:
        if progress is not None:  # building the model and warming up take long enough to show that work began
            progress("rounds", 0, FEWEST_ROUNDS if pruned else TEACHER_ROUNDS)
        return measure_speed(
            load_model(line.model.name, options=line.model.options),
            line.method,
            line.schedule,
            batch_size=BATCH_SIZE,
            image_size=IMAGE_SIZE,
            rounds=None if pruned else TEACHER_ROUNDS,
            seconds=options.seconds,
            warmup=2 if pruned else 1,
            progress=progress,
        )


def unpruned_row(line: Line, per_second: float, rounds: int | None) -> Row:
    """Return a row with a rate but no speed-up."""
    return Row((line.name, PRINTED[line.name].per_second, per_second, None, None, None, None, None, rounds))


def pruned_row(line: Line, result: SpeedResult) -> Row:
    """Return a row with a rate and the speed-up over the unpruned student."""
    printed, unpruned = PRINTED[line.name].per_second, PRINTED[STUDENT.name].per_second
    assert printed is not None
    assert unpruned is not None
    rates, gains = (printed, result.reduced_per_second), (printed / unpruned, result.speed_up)
    return Row((line.name, *rates, *gains, *result.speed_up_quartiles, result.mac_ratio, result.rounds))
