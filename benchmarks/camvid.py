"""Segmentation on CamVid with fewer tokens: ViT-Tiny with a linear head at 480 x 352.

1. The unreduced model is trained from ImageNet weights.
2. ToMe, Ward, TokenPooling, EViT and ClusterAttention reduce it to 0.8, 0.65 and 0.5 of the encoder's MACs, without
   training; the head reads one feature for each patch.
3. Every method at 0.65, and the best of them at 0.8 and 0.5, is trained for some more steps with its reduction, and so
   is the unreduced model, to which it is compared.

    FOVEATE_ASSETS=... python benchmarks/camvid.py --csv results/camvid.csv

Every finished part is kept in --out, so a run that was stopped continues when it is repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from photographs import assets
from recording import record
from segmentation import SIZE, Verdict, judge, parser, predictions, report, train
from torch import Tensor, nn

import foveate as fv

METHODS: dict[str, fv.Method] = {
    "ToMe": fv.ToMe(),
    "Ward": fv.Ward(),
    "TokenPooling": fv.TokenPooling(),
    "EViT": fv.EViT(),
    "ClusterAttention": fv.ClusterAttention(),
}
BUDGETS, TRAINED = (0.8, 0.65, 0.5), 0.65
COLUMNS = (
    *("training", "method", "budget", "mac_share", "miou", "lost", "lost_standard_error", "pixel_accuracy"),
    *("boundary_accuracy", "agreement", "boundary_agreement", "seconds"),
)


class Table:
    """The figures so far."""

    def __init__(self, args: argparse.Namespace, whole: nn.Module) -> None:
        self.args, self.whole, self.rows = args, whole, list[list[Any]]()

    @cached_property
    def predicted(self) -> list[Tensor]:
        """What the unreduced model predicts."""
        return predictions(self.whole, self.args.limit)

    def verdict(self, name: str, make: Callable[[], nn.Module]) -> Verdict:
        """Judge the model that ``make`` returns, or read what an earlier run found."""
        path = self.args.out / "verdicts" / f"{name}.pt"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(dataclasses.asdict(judge(make(), self.predicted, self.args.limit)), path)
        return Verdict(**torch.load(path, weights_only=True))

    def add(
        self, training: str, method: str, budget: float | None, share: float, found: Verdict, than: Verdict
    ) -> None:
        lost, error = found.lost(than)
        names = ("pixel_accuracy", "boundary_accuracy", "agreement", "boundary_agreement")
        figures = [f"{found.figures[name]:.2f}" for name in names]
        cells = [f"{share:.3f}", f"{found.miou:.2f}", f"{lost:.2f}", f"{error:.2f}", *figures, f"{found.seconds:.1f}"]
        self.rows.append([training, method, budget, *cells])
        report(**dict(zip(COLUMNS, self.rows[-1], strict=True)))


def encoder_share(model: nn.Module, whole: nn.Module) -> float:
    """Return the encoder's MACs as a share of the unreduced encoder's; both have the same head."""
    head = fv.cost(whole).macs - encoder_macs(whole)
    return (fv.cost(model).macs - head) / encoder_macs(whole)


def encoder_macs(whole: Any) -> int:
    return fv.cost(whole.encoder).macs


def refused(model: nn.Module, method: fv.Method, budget: float) -> str:
    """Return why a method does not reach a budget; empty if it does."""
    try:
        with fv.reduced(model, fv.Reduction(method, fv.Budget(budget), output="grid")):
            return ""
    except fv.PlanError as error:
        return str(error)


def reduced_copy(saved: Path, method: fv.Method, budget: float) -> nn.Module:
    return fv.reduce_(fv.load(saved), method, fv.Budget(budget), output="grid")


def main() -> None:
    made = parser(__doc__ or "", steps=240)
    made.add_argument("--tune", type=int, default=40, help="steps of each training with a reduction (default: 40)")
    args = made.parse_args()
    torch.set_num_threads(args.threads)
    weights = str(assets() / "vit_tiny" / "model.safetensors")
    first = {"model__name": "vit_tiny_patch16_224+linear", "model__weights": weights, "model__pretrained": False}
    train(args.out / "unreduced", args, args.steps, **first, model__options={"image_size": list(SIZE)})
    saved = args.out / "unreduced" / "model"
    whole = fv.load(saved)
    table = Table(args, whole)
    unreduced = table.verdict("unreduced", lambda: whole)
    table.add("none", "unreduced", None, 1.0, unreduced, unreduced)
    notes = without_training(table, saved, unreduced)
    with_training(table, saved, notes)
    if args.csv is not None:
        judged = len(unreduced.confusions)
        sample = f"ViT-Tiny + linear, CamVid 480 x 352, 367 images to train on, {judged} judged, one seed"
        record(args.csv, COLUMNS, table.rows, sample, *notes, *REMARKS)


REMARKS = (
    "lost: points of mIoU below the unreduced model of the same training; its standard error over images drawn again",
    "mac_share: of the encoder's MACs; seconds: of the model alone on all judged images, on a machine with other work",
    "the best method at 0.65 was chosen on the judged images",
)


def without_training(table: Table, saved: Path, unreduced: Verdict) -> list[str]:
    """Judge every method at every budget; returns notes on those that do not reach one."""
    notes = []
    for name, method in METHODS.items():
        for budget in BUDGETS:
            why = refused(table.whole, method, budget)
            if why:
                notes.append(f"{name} at {budget}: {why}")
                continue
            model = reduced_copy(saved, method, budget)
            found = table.verdict(f"free-{name}-{budget}", lambda m=model: m)
            table.add("none", name, budget, encoder_share(model, table.whole), found, unreduced)
    return notes


def with_training(table: Table, saved: Path, notes: list[str]) -> None:
    """Train every method at 0.65, the best of them at 0.8 and 0.5, and the unreduced model as long."""
    tuned = trained(table, saved, None, 1.0)
    table.add("tuned", "unreduced", None, 1.0, tuned, tuned)
    usable = {name: method for name, method in METHODS.items() if not refused(table.whole, method, TRAINED)}
    found = {name: trained(table, saved, name, TRAINED) for name in usable}
    best = max(found, key=lambda name: found[name].miou)
    for name, verdict in found.items():
        table.add("tuned", name, TRAINED, share_of(table, saved, name, TRAINED), verdict, tuned)
    for budget in BUDGETS:
        if budget != TRAINED and not refused(table.whole, METHODS[best], budget):
            verdict = trained(table, saved, best, budget)
            table.add("tuned", best, budget, share_of(table, saved, best, budget), verdict, tuned)
    notes.append(f"tuned: {table.args.tune} steps more, with the reduction; best at {TRAINED}: {best}")


def share_of(table: Table, saved: Path, name: str, budget: float) -> float:
    return encoder_share(reduced_copy(saved, METHODS[name], budget), table.whole)


def trained(table: Table, saved: Path, name: str | None, budget: float) -> Verdict:
    """Train for a few more steps with a reduction, from the unreduced model, and judge."""
    place = table.args.out / ("tuned" if name is None else f"tuned-{name}-{budget}")
    changes: dict[str, Any] = {"model__name": str(saved), "model__options": {}, "model__pretrained": False}
    changes |= {"optimizer__lr": 1e-4, "schedule__warmup_steps": 0}
    if name is not None:
        changes |= {"reduction__method": name, "reduction__budget": budget, "reduction__output": "grid"}

    def make() -> nn.Module:
        train(place, table.args, table.args.tune, **changes)
        return fv.load(place / "model")

    return table.verdict(place.name, make)


if __name__ == "__main__":
    main()
