"""``fv.train``: run a recipe from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from foveate.evaluation.progress import Progress
from foveate.training.checkpoint import find_checkpoint
from foveate.training.config import TrainConfig, override, set_values
from foveate.training.loop import Run
from foveate.training.recipe import read_recipe
from foveate.training.state import Outcome
from foveate.training.stopping import StopSignal

Overrides = Mapping[str, Any] | Sequence[str]


def train(
    recipe: str | PathLike[str] | TrainConfig,
    *,
    model: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    overrides: Overrides = (),
    resume: bool = False,
    progress: Progress | None = None,
    stop: StopSignal | None = None,
) -> Outcome:
    """Train, distill or fine-tune a model.

    What it did is in ``out``: config.json, log.jsonl, a checkpoint, TensorBoard curves, and the models ``best`` and
    ``model`` for ``fv.load``. Notes go to the logger ``foveate``.

    Args:
        recipe: A name of ``foveate recipes``, the path of a .toml file, or a configuration.
        model: What to train: a timm name, ``hf:NAME``, ``torchvision:NAME`` or a directory of ``fv.save``; default:
            the recipe's.
        data: What to train on (docs/data.md); default: the recipe's.
        out: Where to write; default: ``runs/RECIPE``.
        overrides: Other values for the recipe, ``{"optimizer.lr": 1e-3}`` or ``["optimizer.lr=1e-3"]``.
        resume: Go on from the checkpoint in ``out``, if there is one.
        progress: Called after every step.
        stop: Catches SIGTERM and Ctrl-C while it trains, and stops it with a checkpoint; default: signals are left
            alone.

    Returns:
        What the run came to; ``finished`` is False if it was stopped.

    Raises:
        ValueError: The recipe, a value, the model or the data cannot be used, or ``out`` holds a run already.
        Diverged: Loss or weights became NaN or infinite.
    """
    config = configured(recipe, model, data, overrides)
    directory = Path(out) if out is not None else Path("runs") / _name(recipe)
    if not resume and find_checkpoint(directory) is not None:
        raise ValueError(
            f"{directory} holds a run already. --resume goes on with it (resume=True in Python); --out names another "
            "directory."
        )
    run = Run(config, directory, progress, curves=True)
    run.log.info(f"Training on {run.accelerator.device.type}, processes: {run.world}.")
    if resume and run.resume():
        run.log.info(f"Resuming after step {run.state.step}, in epoch {run.state.epoch}.")
    if stop is None:
        return run.train()
    with stop.listening():
        return run.train(stop)


def configured(
    recipe: str | PathLike[str] | TrainConfig,
    model: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    overrides: Overrides = (),
) -> TrainConfig:
    """The configuration of a recipe, with other values."""
    for name, value in (("model", model), ("data", data)):
        if value is not None and not isinstance(value, str | PathLike):
            raise TypeError(f"{name} is a name or a path, so that a run can be resumed; got {type(value).__name__}.")
    changes = {"model.name": _text(model), "data.source": _text(data)}
    given = {name: value for name, value in changes.items() if value is not None}
    if not isinstance(recipe, TrainConfig):  # a recipe may have values for the model
        recipe = read_recipe(_text(recipe) or "", _last_model(overrides) or given.get("model.name") or "")
    config = set_values(recipe, given)
    return set_values(config, overrides) if isinstance(overrides, Mapping) else override(config, list(overrides))


def _last_model(overrides: Overrides) -> str | None:
    if isinstance(overrides, Mapping):
        return overrides.get("model.name")
    named = [change.partition("=")[2] for change in overrides if change.startswith("model.name=")]
    return named[-1] if named else None


def _text(value: str | PathLike[str] | None) -> str | None:
    return None if value is None else str(value)


def _name(recipe: str | PathLike[str] | TrainConfig) -> str:
    return "run" if isinstance(recipe, TrainConfig) else Path(recipe).stem
