"""DynamicViT's printed costs: DeiT-S and LV-ViT-S at five keep ratios, and the ablation of stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import foveate as fv
from foveate.tables.figures import Figure, score, verdict
from foveate.tables.models import build_shapes
from foveate.tables.registry import Row, Table, table

TOLERANCE = 0.11
SITES = {"deit_small_patch16_224": (3, 6, 9), "lvvit_small": (4, 8, 12)}
COLUMNS = ("model", "rho", "blocks", "printed", "true", "off by")
NOTE = f"""\
GMACs. {{score}} hold. True: fv.cost of the model with its predictors. The paper's numbers do not count all of the \
predictors, so a row holds within {TOLERANCE} G instead of by rounding.
Predictors come before the blocks named (from 0), and int(196 rho^s) tokens stay at stage s. LV-ViT-S is counted with \
its second head, which reads the tokens that are left.
The two-stage row prints no blocks: (3, 8) is our choice; (2, 10) gives 2.905. The one-stage row prints no block \
either: (6,) is our choice."""


@dataclass(frozen=True)
class Printed:
    """A printed row."""

    label: str
    architecture: str
    gmacs: str
    rho: float | None = None
    sites: tuple[int, ...] = ()


def by_ratio(label: str, architecture: str, printed: dict[float | None, str]) -> list[Printed]:
    """Return the rows of one model, by keep ratio; None is the unreduced model."""
    sites = SITES[architecture]
    return [Printed(label, architecture, gmacs, rho, sites if rho else ()) for rho, gmacs in printed.items()]


DEIT, LVVIT = SITES
PRINTED = (
    *by_ratio("DeiT-S", DEIT, {None: "4.6", 0.9: "4.0", 0.8: "3.4", 0.7: "2.9", 0.6: "2.5", 0.5: "2.2"}),
    *by_ratio("LV-ViT-S", LVVIT, {None: "6.6", 0.9: "5.8", 0.8: "5.1", 0.7: "4.6", 0.6: "4.1", 0.5: "3.7"}),
    Printed("DeiT-S, one stage", DEIT, "2.9", 0.25, (6,)),
    Printed("DeiT-S, two stages", DEIT, "2.9", 0.6, (3, 8)),
    Printed("DeiT-S, three stages", DEIT, "2.9", 0.7, SITES[DEIT]),
)


@table("dynamicvit")
def dynamicvit() -> Table:
    """DynamicViT, supplement: GFLOPs of DeiT-S and LV-ViT-S by keep ratio and by number of stages."""
    figures = [figure(printed, fv.cost(build(printed)).macs) for printed in PRINTED]
    rows = tuple(row(*pair) for pair in zip(PRINTED, figures, strict=True))
    return Table("DynamicViT, supplement, section B", COLUMNS, rows, NOTE.format(score=score(figures)))


def build(printed: Printed) -> nn.Module:
    """Build the model of a row, with its predictors, on the meta device."""
    model = build_shapes(printed.architecture)
    if printed.rho is None:
        return model
    with torch.device("meta"):
        return fv.reduce_(model, fv.DynamicViT(), fv.KeepRate(printed.rho, blocks=printed.sites))


def figure(printed: Printed, macs: int) -> Figure:
    """Pair the printed cost with ours."""
    return Figure(printed.gmacs, macs, tolerance=TOLERANCE)


def row(printed: Printed, gmacs: Figure) -> Row:
    """Return the row of one model."""
    sites = ", ".join(map(str, printed.sites))
    cells = (printed.label, printed.rho, sites, gmacs.value, gmacs.counted, gmacs.off_by(3))
    return Row(cells, verdict(gmacs))
