"""``foveate cost``: MACs, parameters and tokens, counted."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from torch import nn

from foveate.adapters import find_adapter, reduction_of
from foveate.api import cost, restore_
from foveate.cli import output
from foveate.cli.arguments import Request, add_json, add_methods, add_model, add_schedule, read_requests
from foveate.cli.models import Loaded, load_from
from foveate.cost import Cost
from foveate.methods.base import Site
from foveate.methods.options import method_text

DESCRIPTION = """\
Count what one image costs: multiply-accumulates, parameters, and tokens after every block (class token included),
for the unreduced model and for every --method."""

EPILOG = """\
examples:
  foveate cost deit_small_patch16_224
  foveate cost deit_small_patch16_224 --method evit --method topk --keep-rate 0.7 --blocks 3,6,9
  foveate cost deit_small_patch16_224 --method evit:fuse=false --keep 3:100,6:50 --exact-last-block
  foveate cost torchvision:vit_b_16 --method tome --budget 0.5 --json

keys of --json:
  model, image_size [channels, height, width], rows; the first row is the unreduced model. In each row:
  method {name, options} or null, schedule {kind, ...} or null, exact_last_block, unit_qk,
  macs (all of them), of_unreduced (share of the unreduced macs), reduction_macs (the method's own),
  params, tokens (after each block, class token included), keys (patch tokens attended to in each block, for a
  method that reduces keys and values only; else null)"""

COLUMNS = ("method", "schedule", "GMACs", "of un-\nreduced", "own\nMMACs", "params\nM", "tokens after each block")

UNREDUCED_AS_JSON: dict[str, object] = {"method": None, "schedule": None, "exact_last_block": False, "unit_qk": None}


class CostRow(NamedTuple):
    """The cost of the model under one request; None is the unreduced model."""

    request: Request | None
    cost: Cost
    keys: tuple[int, ...] | None = None


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("cost", help="MACs, parameters and tokens", description=DESCRIPTION, epilog=EPILOG)
    add_model(parser)
    add_methods(parser)
    add_schedule(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    read_requests(args)  # so that a wrong request fails before a model is loaded
    loaded = load_from(args)
    rows = [CostRow(None, cost(loaded.model, loaded.image_size))]
    rows += [count_request(loaded, request) for request in read_requests(args, loaded.own)]
    if args.json:
        size = list(loaded.image_size)
        output.print_json({"model": args.model, "image_size": size, "rows": [as_json(row, rows[0]) for row in rows]})
    else:
        size_text = "x".join(map(str, loaded.image_size))
        cells = [as_cells(row, rows[0]) for row in rows]
        output.print_table(f"{args.model}, one {size_text} image", COLUMNS, cells, (*COLUMNS[:2], COLUMNS[-1]))
    return 0


def count_request(loaded: Loaded, request: Request) -> CostRow:
    """The cost under ``request``; the model is as before afterwards."""
    model = request.apply_(loaded.model)
    try:
        counted = cost(model, loaded.image_size)
        keys = _keys_in_each_block(model, loaded.image_size) if request.method.site is Site.KV else None
    finally:
        restore_(model)
    return CostRow(request, counted, keys)


def _keys_in_each_block(model: nn.Module, image_size: tuple[int, int, int]) -> tuple[int, ...]:
    reduction = reduction_of(model)
    assert reduction is not None
    return reduction.plan_for(find_adapter(model).grid(model, *image_size[1:])).counts


def as_cells(row: CostRow, unreduced: CostRow) -> list[str]:
    """One line of the table."""
    counted, tokens = row.cost, output.run_lengths(row.cost.tokens)
    if row.keys is not None:
        tokens += f"; keys {output.run_lengths(row.keys)}"
    return [
        "unreduced" if row.request is None else method_text(row.request.method),
        "" if row.request is None else row.request.schedule_in_words,
        f"{counted.macs / 1e9:.3f}",
        f"{counted.macs / unreduced.cost.macs:.1%}",
        f"{counted.reduction_macs / 1e6:.1f}",
        f"{counted.params / 1e6:.2f}",
        tokens,
    ]


def as_json(row: CostRow, unreduced: CostRow) -> dict[str, object]:
    """One row of the document."""
    return {
        **(UNREDUCED_AS_JSON if row.request is None else row.request.as_json()),
        "macs": row.cost.macs,
        "of_unreduced": row.cost.macs / unreduced.cost.macs,
        "reduction_macs": row.cost.reduction_macs,
        "params": row.cost.params,
        "tokens": list(row.cost.tokens),
        "keys": None if row.keys is None else list(row.keys),
    }
