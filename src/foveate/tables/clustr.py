"""Tables 1, 6, 7 and A1 of ClusTR: parameters and FLOPs, counted from the models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import timm
import torch

import foveate as fv
from foveate.models.clustr import GRID_STRIDES
from foveate.models.clustr_attention import MultiScaleClusterAttention
from foveate.tables.hvt import rounds_to, score
from foveate.tables.registry import Row, Table, table

COLUMNS = ("table", "model", "GFLOPs", "as paper", "no clustering", "true", "M params", "counted")
TOP_KEYS = 16
NORM_OPERATIONS = 5
NOTE = """\
FLOPs: {flops}; parameters: {params}. A cell holds when ours rounds to what is printed; a model that several tables \
print is judged once in each.
"as paper": the rule that gives what is printed counts attention as 2 n (n / r^2) C with r = 8, 4, 2, 1 in the four \
stages, whatever the ratios, and no clustering; patch embeddings, projections, MLPs and head in full, and every layer \
norm at five operations for each element, as one well-known counter does. The norms decide one cell alone: 2.2 of \
ClusTR-T, which is 2.145 without them. "no clustering" counts all of the attention, "true" the clustering too: \
fv.cost, equal to torch's counter.
Table 6's kNN attention: each query attends to its {keys} best keys; the paper does not say how many. Its choosing is \
in "true" alone. Table A1 prints layers, channels, heads and ratios; they are the models'."""


@dataclass(frozen=True)
class Printed:
    """One printed row and the model it speaks of."""

    place: str
    label: str
    flops: str
    params: str
    architecture: str = "clustr_tiny"
    options: dict[str, Any] = field(default_factory=dict)


PRINTED = (
    Printed("1, A1", "ClusTR-T", "2.2", "11.7"),
    Printed("1, A1", "ClusTR-S", "4.8", "22.7", "clustr_small"),
    Printed("1, A1", "ClusTR-B", "7.5", "40.2", "clustr_base"),
    Printed("6", "SRA (grid)", "2.1", "13.2", options={"attention": "grid"}),
    Printed("6", "SRA + kNN attention", "2.1", "13.2", options={"attention": "grid", "top_keys": TOP_KEYS}),
    Printed("6, 7", "ClusTR-T, 64 / 16 / 4 / 1", "2.0", "10.8", options={"scales": (64, 16, 4, 1)}),
    Printed("7", "ClusTR-T, 16 / 4 / 1 / 1", "2.1", "10.8", options={"scales": (16, 4, 1, 1)}),
    Printed("7", "ClusTR-T, multi-scale", "2.2", "11.7"),
)


@table("clustr")
def clustr() -> Table:
    """ClusTR, tables 1, 6, 7 and A1: parameters and FLOPs of its models and of the grid ablation."""
    rows, flops, params = [], [], []
    for printed in PRINTED:
        with torch.device("meta"):
            model = timm.create_model(printed.architecture, **printed.options)
        cost, rule = fv.cost(model), papers_flops(model)
        flops.append(rounds_to(rule, printed.flops, 10**9))
        params.append(rounds_to(cost.params, printed.params, 10**6))
        plain = cost.macs - cost.reduction_macs
        cells = (printed.place, printed.label, float(printed.flops), rule / 1e9, plain / 1e9, cost.macs / 1e9)
        rows.append(Row((*cells, float(printed.params), cost.params / 1e6), flops[-1] and params[-1]))
    note = NOTE.format(flops=score(flops), params=score(params), keys=TOP_KEYS)
    return Table("ClusTR, tables 1, 6, 7 and A1", COLUMNS, tuple(rows), note)


def papers_flops(model: Any) -> int:
    """All but the clustering, and norms, with attention at r = 8, 4, 2, 1 in place of that at the model's ratios."""
    cost = fv.cost(model)
    total, sides = cost.macs - cost.reduction_macs, (56, 28, 14, 7)
    stages: Any = model.stages
    for stage, side, stride in zip(stages, sides, GRID_STRIDES, strict=True):
        for block in stage.blocks:
            tokens, attention = side**2, block.attn
            as_printed = 2 * tokens * (tokens // stride**2) * attention.q.in_features
            total += as_printed - attention_macs(attention, tokens, tokens // stride**2)
            keys = tokens // stride**2
            total += NORM_OPERATIONS * norm_elements(block, tokens, keys)
        # one norm behind the patch embedding, one behind the stage
        total += NORM_OPERATIONS * 2 * side**2 * stage.norm.normalized_shape[0]
    return total


def norm_elements(block: Any, tokens: int, keys: int) -> int:
    """Elements that the norms of a block read: two for its tokens, and one for the keys of the grid."""
    width, on_keys = block.attn.q.in_features, getattr(block.attn, "norm", None) is not None
    return 2 * tokens * width + (keys * width if on_keys else 0)


def attention_macs(attention: Any, tokens: int, grid_keys: int) -> int:
    """Of the two products of queries, keys and values, and of choosing keys, as they are run."""
    width = attention.q.in_features
    if isinstance(attention, MultiScaleClusterAttention):
        return sum(2 * tokens * max(1, round(tokens / ratio)) * width for ratio in attention.ratios)
    return (3 if 0 < attention.top_keys < grid_keys else 2) * tokens * grid_keys * width
