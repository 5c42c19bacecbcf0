"""Small comparisons for tests: pictures, pretended speeds, and what of a comparison depends on no clock."""

import numpy as np
from PIL import Image

import foveate as fv
from foveate.report.compare import timing

QUICK = {"methods": ("tome", "topk"), "budgets": (0.7, 0.5), "seconds": 0.001, "batch_size": 4}
TIMED = ("images_per_second", "speed_up", "speed_up_quartiles", "efficiency", "overhead", "memory_mib", "pareto")


def pretended(unreduced, candidate, *rest):
    speed = fv.cost(unreduced).macs / fv.cost(candidate.model).macs
    return timing.Speed(100.0, speed, (speed, speed), None, 1.0, 6)


def write_picture(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (30, 34, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def untimed(comparison):
    """A comparison without all that depends on a clock."""
    data = comparison.as_dict()
    entries = [{k: v for k, v in entry.items() if k not in TIMED} for entry in data["entries"]]
    return {**data, "entries": entries, "recommendation": None}


def titles(comparison):
    return [entry.title for entry in comparison.entries]
