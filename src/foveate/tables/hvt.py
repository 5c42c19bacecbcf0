"""Tables 1-9 and section 4.2 of HVT: parameters and FLOPs, counted from the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import foveate as fv
from foveate.adapters import inspect
from foveate.methods import HVTPool
from foveate.tables.figures import GIGA, Figure, score, verdict
from foveate.tables.models import PrintedModel, steps_of
from foveate.tables.registry import Row, Table, table

COLUMNS = ("table", "model", "GFLOPs", "as paper", "true", "M params", "counted", "remark")
NOTE = """\
FLOPs: {flops}; parameters: {params}. A row holds when both round to what is printed.
"as paper": 12 n d^2 + 2 n^2 d for each block, patch embedding and head, all multiply-accumulates, and with them the \
bias of convolutions and the elements that enter a pooling. Those last two decide a single figure: 0.69 in table 7 \
(without them 0.6849). "true" is fv.cost: matrix products and convolutions.
Tables 3-9 are counted with a head of 100 classes (CIFAR-100), tables 1 and 2 and section 4.2 with one of 1000.
DeiT + PoWER: the paper prints no K list, so its FLOPs cannot be counted; its parameters are DeiT's. Neither is judged.
Section 4.2 prints FLOPs only."""


def small(place: str, label: str, flops: str, params: str | None, classes: int = 100, **options: Any) -> PrintedModel:
    """Return a row for HVT-S, with four stages unless ``options`` sets another number."""
    return PrintedModel(place, label, flops, params, "hvt_small", {"stages": 4, "num_classes": classes, **options})


def deit(
    place: str, size: str, label: str, flops: str, params: str, judged: bool = True, **options: Any
) -> PrintedModel:
    return PrintedModel(place, label, flops, params, f"deit_{size}_patch16_224", options, judged)


PRINTED = (
    deit("1", "tiny", "DeiT-Ti", "1.25", "5.72"),
    deit("1", "tiny", "DeiT-Ti + PoWER", "0.80", "5.72", judged=False),
    PrintedModel("1", "HVT-Ti-1", "0.64", "5.74", "hvt_tiny_1", {}),
    PrintedModel("1", "Scale HVT-Ti-4", "1.39", "22.12", "scale_hvt_tiny_4", {}),
    deit("1", "small", "DeiT-S", "4.60", "22.05"),
    deit("1", "small", "DeiT-S + PoWER", "2.70", "22.05", judged=False),
    PrintedModel("1", "HVT-S-1", "2.40", "22.09", "hvt_small_1", {}),
    PrintedModel("2", "DeiT-Ti with CLS", "1.25", "5.72", "hvt_tiny", {"stages": 0, "class_token": True}),
    PrintedModel("2", "DeiT-Ti without CLS", "1.25", "5.72", "hvt_tiny", {"stages": 0}),
    small("3", "HVT-S-4 conv", "1.47", "23.54", pool="conv"),
    small("3", "HVT-S-4 avg", "1.39", "21.77", pool="avg"),
    small("3", "HVT-S-4 max", "1.39", "21.77", pool="max"),
    small("4", "HVT-S-0", "4.57", "21.70", stages=0),
    small("4", "HVT-S-1", "2.40", "21.74", stages=1),
    small("4", "HVT-S-2", "1.94", "21.76", stages=2),
    small("4", "HVT-S-3", "1.62", "21.77", stages=3),
    small("4", "HVT-S-4", "1.39", "21.77"),
    small("5", "HVT-S-4, 12 blocks", "1.39", "21.77"),
    small("5", "HVT-S-4, 16 blocks", "1.72", "28.87", depth=16),
    small("5", "HVT-S-4, 20 blocks", "2.05", "35.97", depth=20),
    small("5", "HVT-S-4, 24 blocks", "2.37", "43.07", depth=24),
    small("6", "HVT-Ti-4, 3 heads", "0.38", "5.58", num_heads=3),
    small("6", "HVT-Ti-4, 6 heads", "1.39", "21.77"),
    small("6", "HVT-Ti-4, 12 heads", "5.34", "86.01", num_heads=12),
    small("6", "HVT-Ti-4, 16 heads", "9.39", "152.43", num_heads=16),
    small("7", "HVT-S-4, 160 px", "0.69", "21.70", img_size=160),
    small("7", "HVT-S-4, 224 px", "1.39", "21.77"),
    small("7", "HVT-S-4, 320 px", "3.00", "21.92", img_size=320),
    small("7", "HVT-S-4, 384 px", "4.48", "22.06", img_size=384),
    small("8", "HVT-S-4, patch 8", "6.18", "21.99", patch_size=8),
    small("8", "HVT-S-4, patch 16", "1.39", "21.77"),
    small("8", "HVT-S-4, patch 32", "0.37", "22.55", patch_size=32),
    deit("9", "small", "DeiT-S", "4.60", "21.70", num_classes=100),
    PrintedModel("9", "HVT-S-2 (2D)", "4.62", "21.80", "hvt_small_2_2d", {"num_classes": 100}),
    small("4.2", "HVT-S-4, 11 heads", "4.51", None, 1000, num_heads=11),
    small("4.2", "HVT-S-4, 48 blocks", "4.33", None, 1000, depth=48),
    small("4.2", "HVT-S-4, patch 8, 192 px", "4.35", None, 1000, patch_size=8, img_size=192),
    small("4.2", "HVT-S-4, 384 px", "4.48", None, 1000, img_size=384),
)


@table("hvt")
def hvt() -> Table:
    """HVT, tables 1-9 and section 4.2: parameters and FLOPs of every model."""
    rows, flops, params = [], [], []
    for printed in PRINTED:
        row, figures = count(printed)
        rows.append(row)
        if printed.judged:
            flops.append(figures[0])
            params.append(figures[1])
    note = NOTE.format(flops=score(flops), params=score(params))
    return Table("HVT, tables 1-9 and section 4.2", COLUMNS, tuple(rows), note)


def count(printed: PrintedModel) -> tuple[Row, tuple[Figure, Figure]]:
    """Build the model of a row and compare its cost with the printed one."""
    model = printed.build()
    cost = fv.cost(model)
    flops, params = printed.figures(papers_flops(model) if printed.judged else None, cost.params)
    cells = (
        printed.place,
        printed.label,
        flops.value,
        flops.counted,
        cost.macs / GIGA if printed.judged else None,
        params.value,
        params.counted,
        "" if printed.judged else "no K list printed",
    )
    return Row(cells, verdict(flops, params)), (flops, params)


def papers_flops(model: Any) -> int:
    """Count multiply-accumulates, the bias of convolutions, and the elements that enter a pooling."""
    embedding_bias = model.patch_embed.num_patches * model.embed_dim
    return fv.cost(model).macs + embedding_bias + sum(pooling_elements(model))


def pooling_elements(model: Any) -> Sequence[int]:
    """Return what the rule adds for each pooling: its input elements or, for a convolution, its bias."""
    method = inspect(model).reduction.method
    if method is None:
        return ()
    assert isinstance(method, HVTPool)
    pools = [step for step in steps_of(model) if step.keep < step.n]
    return [step.dim * (step.keep if method.pool == "conv" else step.n) for step in pools]
