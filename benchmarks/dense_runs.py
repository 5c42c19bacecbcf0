"""Training runs of dense models for benchmarks: resumed if they were stopped, and their figures over time."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import foveate as fv
from foveate.training.config import TrainConfig
from foveate.training.stopping import StopSignal


def arguments(description: str, out: str, csv: str) -> argparse.ArgumentParser:
    """The options that these benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / out, help="where runs are kept; started again, they go on"
    )
    parser.add_argument("--csv", type=Path, help=f"file to write, such as results/{csv}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def trained(
    model: str, data: str, out: Path, values: Mapping[str, Any], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Train, or go on with a run that was stopped, and return its log: one entry per epoch."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s", force=True)
    torch.set_num_threads(args.threads)
    given = {"run.seed": args.seed, "run.checkpoint_minutes": 5.0, "data.workers": 0, **values}
    outcome = fv.train(TrainConfig(), model=model, data=data, out=out, overrides=given, resume=True, stop=StopSignal())
    if not outcome.finished:
        raise SystemExit("Stopped. Start it again to go on.")
    return outcome.history


def write_repeated(folder: Path, content: Mapping[str, Any], photographs: Path, stem: str, copies: int) -> Path:
    """Write a COCO folder with the same photographs in both splits, ``copies`` of each in the training split.

    Epochs of a few photographs would be over at once, and each writes a checkpoint.
    """
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    link = folder / "images"
    if not link.is_symlink():
        link.symlink_to(photographs.resolve(), target_is_directory=True)
    for split, times in (("train", copies), ("val", 1)):
        shifts = [number * 10**7 for number in range(times)]
        repeated = {
            "images": [{**image, "id": shift + image["id"]} for shift in shifts for image in content["images"]],
            "annotations": [
                {**row, "image_id": shift + row["image_id"]} for shift in shifts for row in content["annotations"]
            ],
            "categories": content["categories"],
        }
        (folder / "annotations" / f"{stem}_{split}.json").write_text(json.dumps(repeated), encoding="utf-8")
    return folder


def head_options(head: str, channels: int, sampled: int) -> dict[str, int]:
    """Options of a detector for images of 128 to 256 pixels."""
    options = {"channels": channels, "smallest_anchor": 16}
    return options | {"sampled": sampled} if head == "mask-rcnn" else options


class Clock:
    """Seconds of this process, summed over restarts in a file beside the run."""

    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.monotonic()
        self.before = float(path.read_text()) if path.is_file() else 0.0

    def minutes(self) -> float:
        """Minutes so far; also written to the file."""
        seconds = self.before + time.monotonic() - self.start
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(str(seconds))
        return seconds / 60


def evaluated(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries with an evaluation."""
    return [entry for entry in history if "val" in entry]


def cell(value: float | None, digits: int = 1) -> str | None:
    """A figure with its digits; None stays empty."""
    return None if value is None else f"{value:.{digits}f}"
