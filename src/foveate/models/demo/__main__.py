"""``python -m foveate.models.demo RUN``: make the demonstration's weights from a run of ``foveate train scenes``."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from foveate.files import write_tensors
from foveate.models.demo import WEIGHTS
from foveate.storage import load

LARGEST = 8_000_000
"""Maximum size in bytes of the weights in the package."""


def export(run: Path, weights: Path = WEIGHTS) -> dict[str, str]:
    """Write the best model of ``run`` to ``weights`` in half precision and return the file's metadata."""
    model = load(run / "best")
    tensors = {name: _halved(tensor) for name, tensor in model.state_dict().items()}
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise ValueError(f"{', '.join(broken[:3])} of {run} cannot be written in half precision. Train it again.")
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > LARGEST:
        raise ValueError(f"The weights of {run} take {size} bytes; the package allows at most {LARGEST}.")
    facts = _facts(run)
    write_tensors(weights, tensors, facts)
    return facts


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.half() if tensor.is_floating_point() else tensor).contiguous()  # batch norms have an integer buffer


def _facts(run: Path) -> dict[str, str]:
    try:
        config = json.loads((run / "config.json").read_text())
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        classes = json.loads((run / "best" / "classes.json").read_text())
        best = max(line["val"]["top1"] for line in lines if "val" in line)
        seed, source = config["run"]["seed"], config["data"]["source"]
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{run} is not a finished run of `foveate train scenes`: {error}.") from error
    return {
        "recipe": "scenes",
        "data": source,
        "seed": str(seed),
        "version": version("foveate"),
        "top1": f"{best:.2f}",
        "classes": json.dumps(classes),
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the directory of a run: python -m foveate.models.demo runs/scenes")
    try:
        print(f"Wrote {WEIGHTS}: {export(Path(sys.argv[1]))}")
    except ValueError as error:
        sys.exit(str(error))
