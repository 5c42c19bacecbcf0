"""What a search should lower, so that decisions stay: divergence, or a bounded measure of it?

    FOVEATE_ASSETS=... python benchmarks/objectives.py --budget 0.5 --store objectives [--csv FILE]

Candidates are Ward's default counts and random changes of them at equal cost. They run over images that judge no
claim: photographs of pets and of COCO, and Imagenette's validation images. The images are split in two at random, 400
times. On some of one part each measure chooses a candidate; on the other part its decisions are counted, in points
above the mean candidate.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

import torch
from photographs import assets, logits, opened, vit_tiny
from recording import record
from torch import Tensor, nn

import foveate as fv
from foveate.adapters import inspect
from foveate.methods.options import parse
from foveate.tuning.expenses import Macs
from foveate.tuning.refining import changed, fitted, ratios

SPLITS = 400
FOLDERS = ("pets/train", "pets/val", "coco_mini", "imagenette/val")
Measure = Callable[[Tensor, Tensor], Tensor]
COLUMNS = ("budget", "measure", "calibration", "points_above_mean", "standard_error", "correlation")


def margin(whole: Tensor, reduced: Tensor) -> Tensor:
    """How far the unreduced decision is ahead in the reduced model's logits, (N,)."""
    decided = whole.argmax(1, keepdim=True)
    return (reduced.gather(1, decided) - reduced.scatter(1, decided, -torch.inf).amax(1, keepdim=True)).squeeze(1)


def kl(whole: Tensor, reduced: Tensor) -> Tensor:
    p, q = whole.log_softmax(1), reduced.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)


MEASURES: dict[str, Measure] = {
    "KL": kl,
    "bounded KL, 1 - exp(-KL)": lambda w, r: 1 - (-kl(w, r)).exp(),
    "root of KL": lambda w, r: kl(w, r).clamp_min(0).sqrt(),
    "log(1 + KL)": lambda w, r: kl(w, r).clamp_min(0).log1p(),
    "total variation": lambda w, r: (w.softmax(1) - r.softmax(1)).abs().sum(1) / 2,
    "squared Hellinger": lambda w, r: 1 - (w.softmax(1) * r.softmax(1)).sqrt().sum(1),
    "probability lost by the decision": lambda w, r: (
        w.softmax(1).amax(1) - r.softmax(1).gather(1, w.argmax(1, keepdim=True)).squeeze(1)
    ),
    "margin, width 0.25": lambda w, r: (-margin(w, r) / 0.25).sigmoid(),
    "margin, width 0.5": lambda w, r: (-margin(w, r) / 0.5).sigmoid(),
    "margin, width 1": lambda w, r: (-margin(w, r)).sigmoid(),
    "margin, width 2": lambda w, r: (-margin(w, r) / 2).sigmoid(),
    "decisions": lambda w, r: (margin(w, r) < 0).float(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, nargs="+", default=(0.5, 0.35))
    parser.add_argument("--candidates", type=int, default=60)
    parser.add_argument("--method", default="Ward")
    parser.add_argument("--store", type=Path, default=Path("objectives"), help="a folder that keeps logits")
    parser.add_argument("--limit", type=int, default=300, help="images of each folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.store.mkdir(parents=True, exist_ok=True)
    images = torch.cat([pictures(assets() / name, args.limit) for name in FOLDERS])
    model, rows = vit_tiny(), []
    whole = kept(args.store / f"whole {len(images)}.pt", lambda: logits(model, images))
    for budget in args.budget:
        found = []
        for number, reduction in enumerate(candidates(model, args.method, budget, args.candidates)):
            name = f"{args.method} {budget:g} {number} {len(images)}.pt"
            found.append(kept(args.store / name, lambda r=reduction: run(model, r, images)))
            print(
                budget,
                number,
                reduction.text,
                float((found[-1].argmax(1) == whole.argmax(1)).float().mean()),
                flush=True,
            )
        for calibration in (64, 128, 256, len(images) // 2):
            rows += [(budget, *row) for row in compared(whole, found, calibration)]
    for row in rows:
        print(*row, sep=" | ")
    if args.csv:
        sample = f"ViT-Tiny, {args.candidates} candidates, {len(images)} images: {', '.join(FOLDERS)}"
        record(
            args.csv, COLUMNS, rows, sample, f"{SPLITS} random splits; they share images, so errors are of the splits"
        )


def pictures(folder: Path, limit: int) -> Tensor:
    """Up to ``limit`` images (N, 3, 224, 224), spread over the folder's files."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    files = [file for file in files if "trimaps" not in file.parts]
    files = files[:: max(1, len(files) // limit)][:limit]
    return opened(files)


def candidates(model: nn.Module, name: str, budget: float, number: int) -> list[fv.Reduction]:
    """The default, then changes of changes of it, of the same cost."""
    draw, method, shape = random.Random(0), parse(name), inspect(model).shape()
    expense, patches = Macs(shape, True), shape.num_patches
    most = budget * expense.whole()
    default = fv.Reduction(method, fv.Budget(budget), exact_last_block=True).plan(shape).counts
    found = [(*default[:-1], default[-2])]  # no tokens are left behind the exact last block

    def cost(counts: tuple[int, ...]) -> float:
        return expense.total(method, counts, patches)

    while len(found) < number:
        start = found[0] if draw.random() < 0.5 else draw.choice(found)
        new = fitted(changed(ratios(start, patches), draw), patches, method, cost, most)
        if new is not None and new not in found:
            found.append(new)
    return [fv.Reduction(method, fv.Keep(list(counts)), exact_last_block=True) for counts in found]


def kept(path: Path, make: Callable[[], Tensor]) -> Tensor:
    if not path.is_file():
        torch.save(make(), path)
    return torch.load(path, weights_only=True)


def run(model: nn.Module, reduction: fv.Reduction, images: Tensor) -> Tensor:
    reduction.apply_(model)
    try:
        return logits(model, images)
    finally:
        fv.restore_(model)


def compared(whole: Tensor, found: list[Tensor], calibration: int) -> list[tuple[object, ...]]:
    """One row per measure: what the candidate that it chooses keeps on other images."""
    same = torch.stack([(one.argmax(1) == whole.argmax(1)).double() for one in found])  # (candidates, N)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(whole), generator=generator) for _ in range(SPLITS)]
    rows = []
    for name, measure in MEASURES.items():
        values = torch.stack([measure(whole, one).double() for one in found])
        points, correlations = [], []
        for order in orders:
            choosing, judging = order[:calibration], order[len(whole) // 2 :]
            chosen_by, kept_by = values[:, choosing].mean(1), same[:, judging].mean(1)
            best = chosen_by == chosen_by.min()
            points.append(100 * (kept_by[best].mean() - kept_by.mean()))
            correlations.append(torch.corrcoef(torch.stack([-chosen_by, kept_by]))[0, 1])
        gain, correlation = torch.stack(points), torch.stack(correlations)
        figures = gain.mean(), gain.std() / SPLITS**0.5, correlation.nanmean()
        rows.append((name, calibration, *(f"{float(value):.2f}" for value in figures)))
    return rows


if __name__ == "__main__":
    main()
