"""DynamicViT's printed costs: DeiT-S and LV-ViT-S at five keep ratios, and the ablation of stages, counted."""

from __future__ import annotations

from dataclasses import dataclass

import timm
import torch
from torch import nn

import foveate as fv
from foveate.tables.registry import Row, Table, table

TOLERANCE = 0.11
SITES = {"deit_small_patch16_224": (3, 6, 9), "lvvit_small": (4, 8, 12)}
COLUMNS = ("model", "rho", "blocks", "printed", "true", "off by")
NOTE = f"""\
GMACs. {{score}} hold. True: fv.cost of the model with its predictors, of which the paper's numbers count less; a row \
holds within {TOLERANCE} G.
Predictors stand before the blocks named (from 0), and int(196 rho^s) tokens stay at stage s. LV-ViT-S is counted with \
its second head, which reads the tokens that are left.
The two-stage row prints no blocks: (3, 8) is our choice; (2, 10) gives 2.905. The one-stage row prints none either: \
(6,)."""


@dataclass(frozen=True)
class Printed:
    """A printed row."""

    label: str
    architecture: str
    gmacs: float
    rho: float | None = None
    sites: tuple[int, ...] = ()


def by_ratio(label: str, architecture: str, printed: dict[float | None, float]) -> list[Printed]:
    sites = SITES[architecture]
    return [Printed(label, architecture, gmacs, rho, sites if rho else ()) for rho, gmacs in printed.items()]


DEIT, LVVIT = "deit_small_patch16_224", "lvvit_small"
PRINTED = (
    *by_ratio("DeiT-S", DEIT, {None: 4.6, 0.9: 4.0, 0.8: 3.4, 0.7: 2.9, 0.6: 2.5, 0.5: 2.2}),
    *by_ratio("LV-ViT-S", LVVIT, {None: 6.6, 0.9: 5.8, 0.8: 5.1, 0.7: 4.6, 0.6: 4.1, 0.5: 3.7}),
    Printed("DeiT-S, one stage", DEIT, 2.9, 0.25, (6,)),
    Printed("DeiT-S, two stages", DEIT, 2.9, 0.6, (3, 8)),
    Printed("DeiT-S, three stages", DEIT, 2.9, 0.7, SITES[DEIT]),
)


@table("dynamicvit")
def dynamicvit() -> Table:
    """DynamicViT, supplement: GFLOPs of DeiT-S and LV-ViT-S by keep ratio and by number of stages."""
    rows = tuple(row(printed, fv.cost(build(printed)).macs) for printed in PRINTED)
    score = f"{sum(row.holds is True for row in rows)} of {len(rows)}"
    return Table("DynamicViT, supplement, section B", COLUMNS, rows, NOTE.format(score=score))


def build(printed: Printed) -> nn.Module:
    """The model of a row. Costs are read off its shapes, so it needs no memory."""
    with torch.device("meta"):
        model = timm.create_model(printed.architecture)
        if printed.rho is None:
            return model
        return fv.reduce_(model, fv.DynamicViT(), fv.KeepRate(printed.rho, blocks=printed.sites))


def row(printed: Printed, macs: int) -> Row:
    off = macs / 1e9 - printed.gmacs
    sites = ", ".join(map(str, printed.sites))
    return Row((printed.label, printed.rho, sites, printed.gmacs, macs / 1e9, round(off, 3)), abs(off) <= TOLERANCE)
