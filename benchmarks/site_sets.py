"""Default schedules against a dozen hand-chosen sets of blocks: how far is each method's default below the best?

The best set is chosen by agreement on one set of photographs and judged on the other, and the other way round; the
default chooses nothing there. Differences are paired: both run on the same photographs. Run as
``FOVEATE_ASSETS=... python benchmarks/site_sets.py --store sites.json --csv results/site_sets.csv``. Every setting is
written to --store at once, and an interrupted run goes on from there. A method may have options: ``ward:rounds=2``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from photographs import assets, logits, photographs, vit_tiny
from recording import record
from torch import Tensor, nn

import foveate as fv
from foveate.files import write_text
from foveate.methods.options import method_text, parse
from foveate.schedules import PlanError

METHODS = ("ward", "tome", "token-pooling", "evit")
BUDGETS = (0.5, 0.35, 0.42, 0.65, 0.8)
SETS = ("imagenet_dev", "imagenet_sample")
DEFAULT = "default"
SITES: dict[str, tuple[int, ...] | None] = {
    DEFAULT: None,
    "3 6 9": (3, 6, 9),
    "2 5 8": (2, 5, 8),
    "1 4 7": (1, 4, 7),
    "3 5 7 9": (3, 5, 7, 9),
    "2 4 6 8": (2, 4, 6, 8),
    "1 3 5 7 9": (1, 3, 5, 7, 9),
    "0 2 4 6 8": (0, 2, 4, 6, 8),
    "3 to 9": tuple(range(3, 10)),
    "2 to 8": tuple(range(2, 9)),
    "1 to 9": tuple(range(1, 10)),
    "1 to 6": tuple(range(1, 7)),
    "0 to 10": tuple(range(11)),
}
COLUMNS = ("method", "budget", "chosen_on", "judged_on", "best_sites", "best_percent", "default_percent", "below")
Same = list[int]  # 1 for each photograph with the unreduced model's decision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--limit", type=int, default=200, help="use the first N photographs of each set")
    parser.add_argument(
        "--store", type=Path, default=Path("out/site_sets.json"), help="what is measured; continued from"
    )
    parser.add_argument("--sites", nargs="+", choices=SITES, default=list(SITES), help="sets of blocks")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    parser.add_argument("--settings", type=Path, help="also write the agreement of every setting to this file")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = vit_tiny()
    held = {name: photographs(assets() / name, args.limit)[0] for name in SETS}
    whole = {name: logits(model, images).argmax(1) for name, images in held.items()}
    found: dict[str, Any] = json.loads(args.store.read_text()) if args.store.is_file() else {}
    rows, settings = [], []
    for method in args.methods:
        for budget in args.budgets:
            for sites in args.sites:
                key = f"{method} {budget:g} {sites} {args.limit}"
                if key not in found:
                    found[key] = measure(model, method, budget, sites, held, whole)
                    write_text(args.store, json.dumps(found))
                    print(key, {name: sum(same) for name, same in found[key].items()}, flush=True)
            measured = {sites: found[f"{method} {budget:g} {sites} {args.limit}"] for sites in args.sites}
            rows += compared(method, budget, measured)
            settings += [setting(method, budget, sites, same) for sites, same in measured.items() if same]
    for row in rows:
        print(*row, sep=" | ")
    sample = f"ViT-Tiny, the first {args.limit} photographs of each set, exact last block"
    if args.settings:
        record(args.settings, ("method", "budget", "sites", *SETS, "both", "standard_error"), settings, sample)
    if args.csv:
        sample += f"; {len(args.sites) - 1} site sets"
        note = "below: points by which the default is below the best set of the other photographs; its error is paired."
        record(args.csv, (*COLUMNS, "standard_error"), rows, sample, note)


def measure(
    model: nn.Module, name: str, budget: float, sites: str, held: dict[str, Tensor], whole: dict[str, Tensor]
) -> dict[str, Same]:
    """Which decisions stay, by set of photographs; empty if the sites cannot reach the budget."""
    try:
        fv.reduce_(model, parse(name), fv.Budget(budget, blocks=SITES[sites]), exact_last_block=True)
    except PlanError:
        return {}
    try:
        return {one: (logits(model, images).argmax(1) == whole[one]).int().tolist() for one, images in held.items()}
    finally:
        fv.restore_(model)


def setting(method: str, budget: float, sites: str, same: dict[str, Same]) -> tuple[Any, ...]:
    """The percentage of decisions that stay, for each set of photographs and for both."""
    both = torch.tensor([one for found in same.values() for one in found]).float()
    figures = [100 * sum(same[name]) / len(same[name]) for name in SETS]
    figures += [float(100 * both.mean()), float(100 * both.std() / len(both) ** 0.5)]
    return method_text(parse(method)), budget, sites, *(f"{figure:.1f}" for figure in figures)


def compared(method: str, budget: float, found: dict[str, dict[str, Same]]) -> list[tuple[Any, ...]]:
    """The best set on one set of photographs against the default on the other, both ways."""
    rows = []
    for chosen_on, judged_on in (SETS, SETS[::-1]):
        others = {sites: same for sites, same in found.items() if sites != DEFAULT and same}
        best = max(others, key=lambda sites: sum(others[sites][chosen_on]))
        theirs, ours = (torch.tensor(same[judged_on]).float() for same in (others[best], found[DEFAULT]))
        below = theirs - ours
        percent = (100 * theirs.mean(), 100 * ours.mean(), 100 * below.mean(), 100 * below.std() / len(below) ** 0.5)
        figures = (f"{float(p):.1f}" for p in percent)
        rows.append((method_text(parse(method)), budget, chosen_on, judged_on, best, *figures))
    return rows


if __name__ == "__main__":
    main()
