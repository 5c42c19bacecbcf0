"""A small comparison and real token maps of toy models: what the page is tested on."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from PIL import Image

import foveate as fv
from foveate.drawing.pixels import to_pil_image
from foveate.methods import Site
from foveate.report.compare.comparison import Comparison, Entry, Recommendation, Refused
from foveate.report.compare.served import InRuntime
from foveate.report.page import Gallery, collect_gallery
from zoo import IMAGE, images, reduced

PYTHON = "import foveate as fv\nfv.reduce_(model, fv.ToMe(), fv.Budget(0.65))"
# label, kind, budget, share of MACs, agreement, images per second, on the front
FIGURES: list[tuple[str, str, float | None, float, float, float | None, bool]] = [
    ("unreduced", "none", None, 1.0, 100.0, 100.0, False),
    ("exact last block", "none", None, 0.95, 100.0, 104.0, True),
    ("ToMe", "merge", 0.8, 0.8, 99.5, 118.0, True),
    ("ToMe", "merge", 0.65, 0.649, 99.0, 142.0, True),
    ("ToMe", "merge", 0.5, 0.5, 95.0, 171.0, True),
    ("EViT", "select", 0.65, 0.651, 97.0, 145.0, True),
    ("TopK", "select", 0.5, 0.5, 91.97, 180.0, True),
    ("Token Pooling", "cluster", 0.65, 0.648, 99.0, 93.0, False),
    ("HVT", "pool", 0.5, 0.51, 61.0, 160.0, False),
    ("DynamicViT", "learned", 0.65, 0.66, 98.5, 139.0, False),
    ("Keys", "cluster", 0.8, 0.8, 88.0, None, False),
]


def entry(row: tuple[str, str, float | None, float, float, float | None, bool], labeled: bool) -> Entry:
    label, kind, budget, ratio, agreement, rate, pareto = row
    accuracy = 0.82 * agreement if labeled else None
    return Entry(
        method=label.lower(),
        label=label,
        kind=kind,
        budget=budget,
        counts=(36, 22, 14, 14),
        exact_last_block=False,
        macs=int(1e6 * ratio),
        mac_ratio=ratio,
        params=12_345,
        top1=accuracy,
        top5=None if accuracy is None else accuracy + 10,
        agreement=agreement,
        kl=(100 - agreement) / 100,
        images_per_second=rate,
        speed_up=None if rate is None else rate / 100,
        speed_up_quartiles=None if rate is None else (rate / 103, rate / 98),
        efficiency=None if rate is None else 0.96,
        overhead=None if rate is None else 0.04,
        memory_mib=None,
        on_object=37.5,
        pareto=pareto,
        python="" if label == "unreduced" else PYTHON,
    )


def comparison(labeled: bool = True, **changes: Any) -> Comparison:
    """Eleven settings of which the fourth is recommended."""
    whole = Comparison(
        model={
            "name": "toy_vit",
            "params": 12_345,
            "macs": 1_000_000,
            "image_size": [3, IMAGE, IMAGE],
            "grid": [6, 6],
            "blocks": 4,
            "prefix": 1,
            "num_classes": 7,
        },
        data={"source": "some/folder", "split": "val", "images": 200, "labeled": labeled, "note": "", "broken": 0},
        options={"budgets": [0.8, 0.65, 0.5], "batch_size": 16, "device": "cpu", "limit": None, "seed": 0},
        environment={"cpu": "A processor", "cores": 2, "threads": 1, "torch": "2.0", "device": "cpu"},
        demonstration=False,
        complete=True,
        entries=tuple(entry(row, labeled) for row in FIGURES),
        refused=(Refused("hvt-pool", "HVT", 0.8, "reaches 0.51 of the MACs only."),),
        recommendation=Recommendation(3, "ToMe at 0.65 is 1.4x as fast, with 99.0 % of decisions unchanged.", PYTHON),
    )
    return dataclasses.replace(whole, **changes)


def in_runtimes() -> Comparison:
    """The same, with three settings also in two other runtimes."""
    runtimes = ("onnxruntime", "openvino")
    found = [(entry, *one) for entry in (0, 3, 6) for one in enumerate(runtimes, start=2)]
    measured = tuple(
        InRuntime(number, name, "fp32", 16, 9.5, 1684.0, speed, (speed, speed), 1.1, None, FIGURES[number][4], 1.0, 0.2)
        for number, speed, name in found
    )
    return comparison(runtimes=measured)


def segmentation() -> Comparison:
    """The same with the columns of segmentation, whose titles are long."""
    figures = {"miou": 71.2, "pixel_accuracy": 91.0, "boundary_accuracy": 60.4, "boundary_agreement": 88.3}
    entries = tuple(dataclasses.replace(entry(row, False), metrics=figures) for row in FIGURES)
    note = "The labels are those of another data set."
    told = Recommendation(None, f"{note} Nothing is recommended.", "")
    data = comparison().data | {"note": note}
    return comparison(entries=entries, recommendation=told, data=data)


def models() -> dict[str, Any]:
    """Toy models of every way to reduce: merged, fused, dropped, and keys alone."""
    return {
        "ToMe 0.65": reduced("timm-cls", fv.ToMe()),
        "EViT 0.65": reduced("timm-cls", fv.EViT()),
        "TopK 0.5": reduced("timm-cls", fv.TopK(), exact_last_block=True),
        "Keys 0.8": reduced("timm-cls", fv.FreeSlice(site=Site.KV)),
    }


def pictures(number: int) -> list[Image.Image]:
    """Smooth colours: every patch differs from every other, and JPEG keeps them."""
    rows, columns = torch.meshgrid(torch.linspace(0, 1, 240), torch.linspace(0, 1, 240), indexing="ij")
    made = [torch.stack([rows, columns, (rows + columns * k) % 1]) for k in range(number)]
    return [to_pil_image((40 + 150 * pixels).to(torch.uint8)) for pixels in made]


def gallery(names: tuple[str, ...] = ("first.png", "second.png", "third.png")) -> Gallery:
    return collect_gallery(models(), images(len(names)), pictures(len(names)), names, [f"kind {n}" for n in names])
