"""Fidelity of a pretrained ViT-Tiny when it is reduced without training, at equal cost.

Every method runs under the same MAC budgets, its own cost included, with the default schedule and the exact last block,
on two sets of photographs. ``--searched`` methods also run with counts that ``fv.search`` chose on photographs of the
other set; the set that judges chose nothing. Reported are agreement with the unreduced model's decisions and its
standard error, the mean KL(unreduced || reduced) of the probabilities, and top-1. Run as
``FOVEATE_ASSETS=... python benchmarks/training_free.py``. With ``--csv results/training_free.csv`` the README's table
can be rendered again (results/render.py). With ``--partial FILE`` an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from photographs import assets, logits, photographs, vit_tiny
from recording import record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import kl_div

import foveate as fv
from foveate.methods.options import parse

METHODS = {  # as the command line takes them, and as results/training_free.csv names them
    "RandomSelect": "RandomSelect",
    "ImportanceSelect": "ImportanceSelect",
    "TopK": "TopK",
    "PoWER": "PoWER",
    "EViT": "EViT",
    "ToMe": "ToMe",
    "TokenPooling:output=medoid,rescale=false,proportional_attention=false": "TokenPooling, the paper's medoids",
    "TokenPooling": "TokenPooling",
    "Ward": "Ward",
    "Ward:search=greedy": "Ward, greedy",
}
BUDGETS = (0.8, 0.65, 0.5, 0.42, 0.35)
SETS = ("imagenet_dev", "imagenet_sample")
SEARCHED_AT = (0.65, 0.5, 0.35)
SEARCHED = ("Ward", "ToMe", "TokenPooling", "EViT")
CALIBRATION = 256
VALIDATION = 32
"""Photographs of the set that chooses which a search holds apart; what counts is judged on the other set."""
SUFFIX = ", searched"


@dataclass(frozen=True)
class Result:
    """One method at one budget, on one set of photographs."""

    method: str
    photographs: str
    budget: float
    macs: float  # share of the unreduced model's
    agreement: float
    divergence: float
    top1: float
    images: int
    counts: tuple[int, ...]

    @property
    def standard_error(self) -> float:
        return (self.agreement * (1 - self.agreement) / self.images) ** 0.5


@dataclass(frozen=True)
class Photographs:
    """A set of photographs, and what the unreduced model makes of it."""

    name: str
    images: Tensor
    labels: Tensor
    whole: Tensor


def measure(
    model: nn.Module, name: str, budget: float, on: Photographs, reduction: fv.Reduction | None = None
) -> Result:
    """Reduce the model, by default by the method's own schedule, run it over all images, and restore it."""
    unreduced = fv.cost(model).macs
    (reduction or fv.Reduction(parse(name), fv.Budget(budget), exact_last_block=True)).apply_(model)
    try:
        cost = fv.cost(model)
        kept = logits(model, on.images)
    finally:
        fv.restore_(model)
    divergence = kl_div(kept.log_softmax(1), on.whole.log_softmax(1), log_target=True, reduction="batchmean")
    agreement = (kept.argmax(1) == on.whole.argmax(1)).float().mean()
    top1 = (kept.argmax(1) == on.labels).float().mean()
    shares = (cost.macs / unreduced, float(agreement), float(divergence), float(top1))
    return Result(name, on.name, budget, *shares, len(on.images), tuple(n - 1 for n in cost.tokens))


def search(
    model: nn.Module, name: str, budget: float, chosen_on: Photographs, known: Path | None, sizes: dict[str, int]
) -> fv.Reduction:
    """Counts of a method that keep the most on photographs of one set."""
    kept = None if known is None else known.with_suffix(f".{name}.{chosen_on.name}.{sizes['calibration']}.json")
    found = fv.search(
        model, chosen_on.images, macs=budget, methods=[name], measurements=kept, validation=VALIDATION, **sizes
    )
    return found.reduction


def print_results(results: list[Result], title: str) -> None:
    table = Table("method", "photographs", "of the MACs", "agreement", "+-", "KL", "top-1", title=title)
    for r in results:
        cells = f"{r.macs:.3f}", f"{r.agreement:.1%}", f"{r.standard_error:.1%}", f"{r.divergence:.4f}", f"{r.top1:.1%}"
        table.add_row(r.method, r.photographs, *cells)
    Console(width=140).print(table)


def write_csv(path: Path, results: list[Result], unreduced: dict[str, float]) -> None:
    """Write one row for each method, budget and set, and one over both sets where both were measured."""
    names = METHODS | {method + SUFFIX: name + SUFFIX for method, name in METHODS.items()}
    rows = []
    for r in [*results, *both(results)]:
        figures = (f"{100 * v:.1f}" for v in (r.agreement, r.standard_error, r.top1))
        counts = " ".join(map(str, r.counts))
        rows.append((names.get(r.method, r.method), r.budget, r.photographs, *figures, f"{r.divergence:.4f}", counts))
    rows.sort(key=lambda row: (names_in_order(results, names).index(row[0]), -float(row[1]), row[2]))
    columns = ("method", "budget", "photographs", "agreement_percent", "standard_error", "top1_percent", "kl", "tokens")
    whole = ", ".join(f"{name} {share:.1%}" for name, share in unreduced.items())
    record(path, columns, rows, f"ViT-Tiny, exact last block; top-1 unreduced: {whole}")


def names_in_order(results: list[Result], names: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(names.get(r.method, r.method) for r in results))


def both(results: list[Result]) -> list[Result]:
    """Means over the two sets."""
    found = []
    for one in results:
        other = next((r for r in results if (r.method, r.budget) == (one.method, one.budget) and r is not one), None)
        if other is None or one.photographs != SETS[0]:
            continue
        images = one.images + other.images
        means = ((getattr(one, k) * one.images + getattr(other, k) * other.images) / images for k in AVERAGED)
        found.append(Result(one.method, "both", one.budget, one.macs, *means, images, one.counts))
    return found


AVERAGED = ("agreement", "divergence", "top1")


def read_known(path: Path | None) -> list[Result]:
    """Rows of an earlier, interrupted run."""
    if path is None or not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Result(**row | {"counts": tuple(row["counts"])}) for row in rows]


def keep(result: Result, partial: Path | None) -> None:
    if partial is not None:
        with partial.open("a") as file:
            file.write(json.dumps(vars(result)) + "\n")


def whole_logits(model: nn.Module, images: Tensor, name: str, partial: Path | None) -> Tensor:
    """Logits of the unreduced model, kept beside the rows of an interrupted run."""
    if partial is None:
        return logits(model, images)
    kept = partial.with_suffix(f".{name}.{len(images)}.pt")
    if not kept.is_file():
        torch.save(logits(model, images), kept)
    return torch.load(kept, weights_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="use the first N photographs of each set only")
    parser.add_argument("--budget", type=float, nargs="+", default=BUDGETS, help="shares of the MACs")
    parser.add_argument(
        "--method", nargs="*", default=list(METHODS), help="name:option=value,... as in `foveate methods`"
    )
    parser.add_argument("--searched", nargs="*", default=(), help=f"methods to search too; all of them: {SEARCHED}")
    parser.add_argument(
        "--searched-budget", type=float, nargs="+", default=(0.65, 0.5, 0.35), help="shares to search at"
    )
    parser.add_argument("--trials", type=int, default=60, help="settings that a search refines its best two with")
    parser.add_argument("--calibration", type=int, default=CALIBRATION, help="photographs that a search chooses on")
    parser.add_argument("--photographs", nargs="+", choices=SETS, default=SETS, help="sets of photographs")
    parser.add_argument("--threads", type=int, default=2, help="threads torch may use")
    parser.add_argument("--partial", type=Path, help="keep every row in this file, and go on from it")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.partial is not None:
        args.partial.parent.mkdir(parents=True, exist_ok=True)
    model = vit_tiny()
    results = read_known(args.partial)
    done = {(r.method, r.photographs, r.budget) for r in results}
    unreduced = {}
    sets = {}
    for name in args.photographs:
        images, labels = photographs(assets() / name, args.limit)
        on = sets[name] = Photographs(name, images, labels, whole_logits(model, images, name, args.partial))
        unreduced[name] = float((on.whole.argmax(1) == labels).float().mean())
        work = [(method, budget) for method in args.method for budget in args.budget]
        for method, budget in track(work, description=name):
            if (method, name, budget) not in done:
                results.append(measure(model, method, budget, on))
                keep(results[-1], args.partial)
    for method, budget, on in [(m, b, on) for m in args.searched for b in args.searched_budget for on in sets.values()]:
        others = [other for other in sets.values() if other is not on]
        if others and (method + SUFFIX, on.name, budget) not in done:
            sizes = {"calibration": args.calibration, "trials": args.trials}
            found = search(model, method, budget, others[0], args.partial, sizes)
            result = measure(model, method, budget, on, found)
            results.append(replace(result, method=method + SUFFIX))
            keep(results[-1], args.partial)
    print_results(results, "ViT-Tiny, exact last block")
    if args.csv:
        write_csv(args.csv, results, unreduced)


if __name__ == "__main__":
    main()
