"""The work of ``foveate cost``."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from torch import nn

from foveate.adapters import inspect, reducer_of
from foveate.api import cost
from foveate.cli import output
from foveate.cli.requests import load_from, read_reductions
from foveate.costs import Cost
from foveate.methods.base import Site
from foveate.methods.options import method_text
from foveate.reductions import Reduction

COLUMNS = ("method", "schedule", "GMACs", "of un-\nreduced", "own\nMMACs", "params\nM", "tokens after each block")


class CostRow(NamedTuple):
    """The cost of the model under one reduction."""

    reduction: Reduction
    cost: Cost
    keys: tuple[int, ...] | None = None


def run(args: argparse.Namespace) -> int:
    reductions = read_reductions(args)  # before a model is loaded
    loaded = load_from(args)
    size = loaded.image_size
    rows = [CostRow(Reduction(), cost(loaded.model, size))]
    rows += [count(reduction, model, size) for reduction, model in loaded.variants(reductions)]
    if args.json:
        output.print_json({"model": args.model, "image_size": size, "rows": [as_json(row, rows[0]) for row in rows]})
    else:
        cells = [as_cells(row, rows[0]) for row in rows]
        title = f"{args.model}, one {'x'.join(map(str, size))} image"
        output.print_table(title, COLUMNS, cells, (*COLUMNS[:2], COLUMNS[-1]))
    return 0


def count(reduction: Reduction, model: nn.Module, image_size: tuple[int, int, int]) -> CostRow:
    """The cost of one reduced model."""
    keys = None
    if reduction.method is not None and reduction.method.site is Site.KV:
        reducer = reducer_of(model)
        assert reducer is not None
        keys = reducer.plan_for(inspect(model).grid_for(*image_size[1:])).counts
    return CostRow(reduction, cost(model, image_size), keys)


def as_cells(row: CostRow, unreduced: CostRow) -> list[str]:
    """Format one line of the table."""
    counted, tokens = row.cost, output.run_lengths(row.cost.tokens)
    if row.keys is not None:
        tokens += f"; keys {output.run_lengths(row.keys)}"
    return [
        "unreduced" if row.reduction.method is None else method_text(row.reduction.method),
        "" if row.reduction.method is None else row.reduction.schedule_words,
        f"{counted.macs / 1e9:.3f}",
        f"{counted.macs / unreduced.cost.macs:.1%}",
        f"{counted.reduction_macs / 1e6:.1f}",
        f"{counted.params / 1e6:.2f}",
        tokens,
    ]


def as_json(row: CostRow, unreduced: CostRow) -> dict[str, object]:
    """One row of the JSON document."""
    return {
        "reduction": row.reduction.to_dict(),
        "macs": row.cost.macs,
        "of_unreduced": row.cost.macs / unreduced.cost.macs,
        "reduction_macs": row.cost.reduction_macs,
        "params": row.cost.params,
        "tokens": list(row.cost.tokens),
        "keys": None if row.keys is None else list(row.keys),
    }
