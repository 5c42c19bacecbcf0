"""Tables 1 to 4, 6, 7 and A1 of ClusTR: parameters and FLOPs, counted from the models."""

from __future__ import annotations

from typing import Any

import foveate as fv
from foveate.models.clustr import GRID_STRIDES
from foveate.models.clustr_attention import MultiScaleClusterAttention
from foveate.tables.figures import GIGA, Figure, score, verdict
from foveate.tables.models import PrintedModel
from foveate.tables.registry import Row, Table, table

COLUMNS = ("table", "model", "GFLOPs", "as paper", "no clustering", "true", "M params", "counted")
TOP_KEYS = 16
NORM_OPERATIONS = 5
NOTE = """\
FLOPs: {flops}; parameters: {params}. A row holds when both round to what is printed; a model in several tables is \
judged once in each.
"as paper": the rule that gives what is printed counts attention as 2 n (n / r^2) C with r = 8, 4, 2, 1 in the four \
stages, whatever the ratios, and no clustering; patch embeddings, projections, MLPs and head in full, and every layer \
norm at five operations for each element, as one well-known counter does. The norms decide a single figure: 2.2 of \
ClusTR-T, which is 2.145 without them. "no clustering" counts all of the attention, "true" the clustering too: \
fv.cost, equal to torch's counter.
Table 6's kNN attention: each query attends to its {keys} best keys; the paper does not give their number. Only "true" \
counts the choice of keys. Table A1 prints layers, channels, heads and ratios; they are the models'.
Tables 2, 3 and 4 print parameters alone; the two columns of FLOPs are for one image of the size that is named. Mask \
R-CNN is counted with 1,000 proposals and 100 masks."""


def tiny(place: str, label: str, flops: str, params: str, **options: Any) -> PrintedModel:
    """Return a row for ClusTR-T."""
    return PrintedModel(place, label, flops, params, "clustr_tiny", options)


PRINTED = (
    tiny("1, A1", "ClusTR-T", "2.2", "11.7"),
    PrintedModel("1, A1", "ClusTR-S", "4.8", "22.7", "clustr_small"),
    PrintedModel("1, A1", "ClusTR-B", "7.5", "40.2", "clustr_base"),
    tiny("6", "SRA (grid)", "2.1", "13.2", attention="grid"),
    tiny("6", "SRA + kNN attention", "2.1", "13.2", attention="grid", top_keys=TOP_KEYS),
    tiny("6, 7", "ClusTR-T, 64 / 16 / 4 / 1", "2.0", "10.8", scales=(64, 16, 4, 1)),
    tiny("7", "ClusTR-T, 16 / 4 / 1 / 1", "2.1", "10.8", scales=(16, 4, 1, 1)),
    tiny("7", "ClusTR-T, multi-scale", "2.2", "11.7"),
)


DENSE = (
    PrintedModel("2", "Semantic FPN", None, "26.4", "clustr_small+semantic-fpn", {"num_classes": 150}),
    PrintedModel("2", "UperNet", None, "52.5", "clustr_small+upernet", {"num_classes": 150}),
    PrintedModel("3", "Mask R-CNN", None, "42.3", "clustr_small+mask-rcnn", {"num_classes": 80}),
    PrintedModel("4", "RetinaNet", None, "32.4", "clustr_small+retinanet", {"num_classes": 80}),
)
SIZES = ((512, 512), (800, 1333))


@table("clustr")
def clustr() -> Table:
    """ClusTR, tables 1 to 4, 6, 7 and A1: parameters and FLOPs of its models, dense ones, and the grid ablation."""
    rows, all_flops, all_params = [], [], []
    for printed in PRINTED:
        model = printed.build()
        cost = fv.cost(model)
        flops, params = printed.figures(papers_flops(model), cost.params)
        plain = cost.macs - cost.reduction_macs
        ours = (flops.counted, plain / GIGA, cost.macs / GIGA)
        cells = (printed.place, printed.label, flops.value, *ours, params.value, params.counted)
        rows.append(Row(cells, verdict(flops, params)))
        all_flops.append(flops)
        all_params.append(params)
    for printed in DENSE:
        found, params = dense_rows(printed)
        rows += found
        all_params.append(params)
    note = NOTE.format(flops=score(all_flops), params=score(all_params), keys=TOP_KEYS)
    return Table("ClusTR, tables 1 to 4, 6, 7 and A1", COLUMNS, tuple(rows), note)


def dense_rows(printed: PrintedModel) -> tuple[list[Row], Figure]:
    """Return a row for each image size, the parameters in the first, and those parameters."""
    model = printed.build()
    rows: list[Row] = []
    _, params = printed.figures(None, fv.cost(model).params)
    for size in SIZES:
        cost = fv.cost(model, (3, *size))
        label = f"ClusTR-S + {printed.label}, {size[0]} x {size[1]}"
        macs = ((cost.macs - cost.reduction_macs) / GIGA, cost.macs / GIGA)
        shown = (None, None) if rows else (params.value, params.counted)
        rows.append(Row((printed.place, label, None, None, *macs, *shown), None if rows else verdict(params)))
    return rows, params


def papers_flops(model: Any) -> int:
    """Count everything but the clustering, with norms, and with attention at r = 8, 4, 2, 1 instead of the ratios."""
    cost = fv.cost(model)
    total, sides = cost.macs - cost.reduction_macs, (56, 28, 14, 7)
    for stage, side, stride in zip(model.stages, sides, GRID_STRIDES, strict=True):
        for block in stage.blocks:
            tokens, keys = side**2, (side // stride) ** 2
            as_printed = 2 * tokens * keys * block.attn.q.in_features
            total += as_printed - attention_macs(block.attn, tokens, keys)
            total += NORM_OPERATIONS * norm_elements(block, tokens, keys)
        # one norm after the patch embedding, one after the stage
        total += NORM_OPERATIONS * 2 * side**2 * stage.norm.normalized_shape[0]
    return total


def norm_elements(block: Any, tokens: int, keys: int) -> int:
    """Count the elements that a block's norms read: two norms of its tokens, and one of the grid's keys."""
    width, on_keys = block.attn.q.in_features, getattr(block.attn, "norm", None) is not None
    return 2 * tokens * width + (keys * width if on_keys else 0)


def attention_macs(attention: Any, tokens: int, grid_keys: int) -> int:
    """Count the two products of queries, keys and values, and the choice of keys, as the model runs them."""
    width = attention.q.in_features
    if isinstance(attention, MultiScaleClusterAttention):
        return sum(2 * tokens * max(1, round(tokens / ratio)) * width for ratio in attention.ratios)
    return (3 if 0 < attention.top_keys < grid_keys else 2) * tokens * grid_keys * width
