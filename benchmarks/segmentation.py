"""CamVid under FOVEATE_ASSETS: short training runs, and verdicts with the noise that the choice of images makes."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from photographs import assets
from torch import Tensor, nn

import foveate as fv
from foveate.data import Batch, Loader
from foveate.data.preprocessing import Preprocessing
from foveate.data.source import ImageData, drawn_from
from foveate.tasks import Segmentation
from foveate.tasks.segmentation_metrics import per_class_iou
from foveate.training import Outcome

SIZE = (352, 480)
"""Height and width: multiples of 32, just below the images' 360 x 480."""
OWN = {"ignore": 11}
"""Void is class 11."""
RESAMPLED = 1000


def parser(description: str, steps: int) -> argparse.ArgumentParser:
    """Return a parser with the options that both scripts share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--steps", type=int, default=steps, help=f"training steps (default: {steps})")
    made.add_argument("--batch-size", type=int, default=8)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--limit", type=int, help="judge on this many images only, for a trial")
    made.add_argument("--out", type=Path, default=Path("runs/camvid"), help="runs and verdicts; repeat to continue")
    made.add_argument("--csv", type=Path, help="write the figures here")
    return made


def camvid() -> str:
    """Return the path of the folder."""
    return str(assets() / "camvid")


def opened(split: str) -> ImageData:
    return Segmentation.open(camvid(), split, own=OWN)


@dataclass(frozen=True)
class Verdict:
    """What a model predicts on the validation images: a confusion matrix for each, so that images can be resampled."""

    confusions: Tensor  # (images, classes, classes)
    figures: dict[str, float]
    seconds: float
    """Of the model alone, over all images."""

    @property
    def miou(self) -> float:
        return float(100 * per_class_iou(self.confusions.sum(dim=0)).nanmean())

    def lost(self, other: Verdict) -> tuple[float, float]:
        """Return points of mIoU below ``other``, and the standard error when images are drawn again, for both alike."""
        generator = torch.Generator().manual_seed(0)
        count = len(self.confusions)
        drawn = torch.randint(count, (RESAMPLED, count), generator=generator)
        lost = [resampled(other.confusions[places]) - resampled(self.confusions[places]) for places in drawn]
        return other.miou - self.miou, float(torch.tensor(lost).std())


def resampled(confusions: Tensor) -> float:
    return float(100 * per_class_iou(confusions.sum(dim=0)).nanmean())


def batches(model: nn.Module, limit: int | None) -> Iterator[Batch]:
    """Yield the validation images as ``model`` reads them, with their masks."""
    data, task = drawn_from(opened("val"), limit, 0), Segmentation()
    transform = task.evaluation_transform(Preprocessing.of(model))
    return Loader(data, transform, 4, seed=0, train=False, rules=task).epoch(0)


@torch.inference_mode()
def predictions(model: nn.Module, limit: int | None = None) -> list[Tensor]:
    """Return the logits of every batch, at the head's own resolution."""
    return [Segmentation().predict(model.eval(), batch.images) for batch in batches(model, limit)]


@torch.inference_mode()
def judge(model: nn.Module, reference: list[Tensor] | None = None, limit: int | None = None) -> Verdict:
    """Evaluate on the validation images, at their own size, beside the predictions of another model."""
    task = Segmentation(fv.inspect(model.eval()).num_classes)
    total, confusions, seconds = task.metrics(), [], 0.0
    for place, batch in enumerate(batches(model, limit)):
        begin = time.perf_counter()
        ours = task.predict(model, batch.images)
        seconds += time.perf_counter() - begin
        theirs = ours if reference is None else reference[place]
        for number, target in enumerate(batch.targets):
            one = task.metrics()
            one.update(ours[number : number + 1], [target], theirs[number : number + 1])
            confusions.append(one.confusion)
            total.merge(one)
    return Verdict(torch.stack(confusions), total.compute(), seconds)


def train(place: Path, args: argparse.Namespace, steps: int, **changes: Any) -> Outcome:
    """Train for ``steps`` on CamVid without evaluation in between; continues an interrupted run."""
    values: dict[str, Any] = {
        "data.val": "",
        "data.options": OWN,
        "data.batch_size": args.batch_size,
        "data.workers": 0,
        "schedule.steps": steps,
        "schedule.warmup_steps": steps // 10,
        "run.seed": args.seed,
        "run.checkpoint_minutes": 2.0,
    }
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    logging.basicConfig(level=logging.INFO, format="  %(message)s")
    return fv.train("segment", data=camvid(), out=place, overrides=values, resume=True)


def report(**figures: object) -> None:
    """Print measurements as one line of JSON."""
    print(json.dumps(figures), flush=True)
