"""Table 1 of task-agnostic distillation into EViT: parameters, MACs and speed of a student, pruned or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

import timm
import torch
from timm.layers import LayerScale
from torch import nn

import foveate as fv
from foveate.adapters import find_adapter, reduction_of
from foveate.cost import Plan
from foveate.methods.base import Method
from foveate.report import SpeedResult, measure_speed
from foveate.tables.registry import Row, SpeedOptions, Table, table

IMAGE_SIZE = (3, 224, 224)
BATCH_SIZE = 32
BLOCKS = (3, 6, 9)
TEACHER_ROUNDS = 3  # a batch takes it about a minute on a CPU, and no ratio hangs on it
COLUMNS = (
    "model",
    "params printed",
    "params",
    "MACs printed",
    "MACs as paper",
    "off by",
    "true MACs",
    "img/s printed",
)
SPEED_COLUMNS = (
    "model",
    "img/s printed",
    "img/s here",
    "speed-up printed",
    "speed-up here",
    "from",
    "to",
    "MAC ratio",
    "rounds",
)
NOTE = """\
Parameters and MACs in millions. Parameters: {params}; MACs: {macs}. A row holds when both round to what is printed, \
one digit after the point.
Rule: MACs of matrix products, linear layers and convolutions without biases, one for each element that a LayerNorm \
reads, and one for each element-wise multiplication: queries by their scale, LayerScale, and the weights of fused \
tokens.
"true MACs" is fv.cost: products, linear layers and convolutions only, with the class token's row of attention, which \
foveate computes beside a fused kernel and the paper's models read off the whole matrix.
EViT prunes in blocks 3, 6 and 9, between attention and MLP. The printed MACs are those of dropping the inattentive \
tokens, though the paper describes fusing them; with the fused token they are in the rows marked so, where nothing is \
printed.
ViT-S/14 has no LayerScale. ViT-L is DINOv2's ViT-L/14 with LayerScale and positions for 518 px. Its mask token, which \
timm's model lacks, is added to the parameters; it costs no MACs."""
UNMEASURED = """
Images per second are printed for an NVIDIA 3090, batch 32, float32; for this machine run \
foveate tables evit --speed"""
SPEED_NOTE = """\
Printed: NVIDIA 3090. Here: {machine}. Both: batch {batch}, 224 px. Not judged.
EViT is timed as it is counted, dropping tokens, in turns with ViT-S: the speed-up is the median of the ratios within \
a round, from and to their quartiles, and the rate of ViT-S the mean of its two measurements. ViT-L is timed alone. \
Printed speed-ups are quotients of printed rates; the MAC ratio is of true MACs."""


@dataclass(frozen=True)
class Printed:
    """A line of the paper's table. Counts are in millions and stay text: they are judged to their own digits."""

    params: str
    macs: str
    per_second: float


@dataclass(frozen=True)
class Line:
    """A line of ours: a model, and how it is pruned."""

    name: str
    build: Callable[[], nn.Module]
    rate: float | None = None
    fuse: bool = False
    mask_token: bool = False

    @property
    def method(self) -> fv.EViT:
        return fv.EViT(fuse=self.fuse)

    @property
    def schedule(self) -> fv.KeepRate | fv.Keep:
        return fv.Keep({}) if self.rate is None else fv.KeepRate(self.rate, BLOCKS)


@dataclass(frozen=True)
class Count:
    """What one model has and costs."""

    params: int
    as_paper: int
    true: int


def student() -> nn.Module:
    """ViT-S/14 without a head."""
    return timm.create_model("vit_small_patch16_224", patch_size=14, num_classes=0)


def teacher() -> nn.Module:
    """DINOv2's ViT-L/14: its positions are for 518 px, and are resized to the image."""
    return timm.create_model("vit_large_patch14_dinov2", num_classes=0, dynamic_img_size=True)


PRINTED = {
    "ViT-S": Printed("21.6", "6127.2", 940.9),
    "EViT-S/0.7": Printed("21.6", "3963.7", 1443.1),
    "EViT-S/0.5": Printed("21.6", "3013.7", 1831.3),
    "ViT-L": Printed("304.4", "81043.8", 72.8),
}
STUDENT, TEACHER = Line("ViT-S", student), Line("ViT-L", teacher, mask_token=True)
LINES = (
    STUDENT,
    Line("EViT-S/0.7", student, 0.7),
    Line("0.7, fused", student, 0.7, fuse=True),
    Line("EViT-S/0.5", student, 0.5),
    Line("0.5, fused", student, 0.5, fuse=True),
    TEACHER,
)


@table("evit")
def evit(speed: SpeedOptions | None = None) -> Table:
    """Distillation into EViT, table 1: parameters and MACs of ViT-S, EViT-S and ViT-L; speed with --speed."""
    counts = {line: count(line) for line in LINES}
    rows = tuple(row(line, counted) for line, counted in counts.items())
    measured = None if speed is None else speeds(speed)
    note = NOTE.format(**scores(counts)) + (UNMEASURED if measured is None else "")
    return Table("Task-agnostic distillation into EViT, table 1", COLUMNS, rows, note, measured)


def count(line: Line) -> Count:
    """Build the line's model, prune it, count it. Costs are read off shapes, so it needs no memory."""
    with torch.device("meta"):
        model: Any = line.build()
    fv.reduce_(model, line.method, line.schedule)
    cost = fv.cost(model, IMAGE_SIZE)
    products = cost.macs - cost.reduction_macs
    mask_token = model.embed_dim if line.mask_token else 0
    return Count(cost.params + mask_token, products + elementwise(model), cost.macs)


def elementwise(model: Any) -> int:
    """What the paper's rule counts beside products: normalised, scaled and fused elements."""
    reduction, adapter = reduction_of(model), find_adapter(model)
    assert reduction is not None
    shape = adapter.shape(model, adapter.grid(model, *IMAGE_SIZE[1:]))
    plan = reduction.plan_for(shape.grid)
    total, tokens = 0, shape.num_prefix + plan.num_patches
    for index, (block, sizes) in enumerate(zip(model.blocks, shape.blocks, strict=True)):
        left = shape.num_prefix + plan.tokens_after(index)
        total += tokens * sizes.heads * sizes.head_dim  # queries by their scale
        total += tokens * sizes.dim * elements_per_channel(block.norm1, block.ls1)
        total += left * sizes.dim * elements_per_channel(block.norm2, block.ls2)
        total += fused_tokens(reduction.method, plan, index) * sizes.dim
        tokens = left
    return total + tokens * model.embed_dim * elements_per_channel(model.norm)


def elements_per_channel(*modules: nn.Module) -> int:
    """How many of the modules are charged for each channel of each token; an Identity is not."""
    return sum(isinstance(module, nn.LayerNorm | LayerScale) for module in modules)


def fused_tokens(method: Method, plan: Plan, block: int) -> int:
    """Tokens that are weighted and summed to one in ``block``."""
    if not (isinstance(method, fv.EViT) and method.fuse and plan.acts_in(block)):
        return 0
    return plan.before(block) - (plan.counts[block] - 1)


def row(line: Line, counted: Count) -> Row:
    """The printed line beside our numbers."""
    params, as_paper, true = (number / 1e6 for number in (counted.params, counted.as_paper, counted.true))
    printed = PRINTED.get(line.name)
    if printed is None:
        return Row((line.name, None, params, None, as_paper, None, true, None))
    theirs, macs = float(printed.params), float(printed.macs)
    holds = rounds_to(counted.params, printed.params) and rounds_to(counted.as_paper, printed.macs)
    return Row((line.name, theirs, params, macs, as_paper, round(as_paper - macs, 2), true, printed.per_second), holds)


def rounds_to(number: int, text: str) -> bool:
    """Whether ``number`` is printed as ``text`` millions; in whole numbers, so that both sides of an exact half are."""
    unit = 10 ** (6 - len(text.partition(".")[2]))
    return 2 * abs(number - int(text.replace(".", "")) * unit) <= unit


def scores(counts: Mapping[Line, Count]) -> dict[str, str]:
    """How many printed numbers are met."""
    judged = [(PRINTED[line.name], counted) for line, counted in counts.items() if line.name in PRINTED]
    params = sum(rounds_to(counted.params, printed.params) for printed, counted in judged)
    macs = sum(rounds_to(counted.as_paper, printed.macs) for printed, counted in judged)
    return {"params": f"{params} of {len(judged)}", "macs": f"{macs} of {len(judged)}"}


def speeds(options: SpeedOptions) -> Table:
    """Every printed line timed: each EViT in turns with the unpruned student, the teacher by itself."""
    pruned = {line: timed(line, options) for line in LINES if line.name in PRINTED and line.rate is not None}
    alone = timed(TEACHER, options)
    student_rate = mean(result.unreduced_per_second for result in pruned.values())
    rows = (
        unpruned_row(STUDENT, student_rate, None),
        *(pruned_row(line, result) for line, result in pruned.items()),
        unpruned_row(TEACHER, alone.unreduced_per_second, alone.rounds),
    )
    note = SPEED_NOTE.format(machine=alone.environment, batch=BATCH_SIZE)
    return Table("Images per second", SPEED_COLUMNS, rows, note)


def timed(line: Line, options: SpeedOptions) -> SpeedResult:
    """The line's model, with weights, in turns with itself unpruned."""
    pruned = line.rate is not None
    with options.progress(f"{line.name}, batch {BATCH_SIZE}") as progress:
        return measure_speed(
            line.build(),
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
    """A rate that no speed-up belongs to."""
    return Row((line.name, PRINTED[line.name].per_second, per_second, None, None, None, None, None, rounds))


def pruned_row(line: Line, result: SpeedResult) -> Row:
    """A rate, and what pruning gained over the unpruned student."""
    printed = PRINTED[line.name].per_second
    rates, gains = (printed, result.reduced_per_second), (printed / PRINTED["ViT-S"].per_second, result.speed_up)
    return Row((line.name, *rates, *gains, *result.speed_up_quartiles, result.mac_ratio, result.rounds))
