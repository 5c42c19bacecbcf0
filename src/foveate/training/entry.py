"""``fv.train``: run a recipe from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

from foveate.evaluation.progress import Progress
from foveate.evaluation.timing import check_progress
from foveate.files import check_writable, exclusive_lock
from foveate.methods.validation import check_type, shown
from foveate.training.announcing import announcement
from foveate.training.checkpoint import CURRENT, PREVIOUS, find_checkpoint, read_values
from foveate.training.config import TrainConfig, override, set_values
from foveate.training.loop import Run
from foveate.training.recipe import read_recipe
from foveate.training.same_run import check_same_run
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

    Writes to ``out``: config.json, log.jsonl, a checkpoint, TensorBoard curves, and the models ``best`` and
    ``model`` for ``fv.load``. Messages go to the logger ``foveate``.

    Args:
        recipe: A name of ``foveate recipes``, the path of a .toml file, or a configuration.
        model: What to train: a timm name, ``hf:NAME``, ``torchvision:NAME`` or a directory of ``fv.save``. Default:
            the recipe's model.
        data: What to train on (docs/data.md). Default: the recipe's data.
        out: Where to write. Default: ``runs/RECIPE``.
        overrides: Changed values of the recipe, ``{"optimizer.lr": 1e-3}`` or ``["optimizer.lr=1e-3"]``.
        resume: Resume from the checkpoint in ``out``, if there is one.
        progress: Called after every step.
        stop: Catches SIGTERM and Ctrl-C during training and stops the run with a checkpoint. Default: signals are not
            handled.

    Returns:
        The outcome of the run; ``finished`` is False if it was stopped.

    Raises:
        ValueError: If the recipe, a value, the model or the data cannot be used, or ``out`` already holds a run.
        TypeError: If ``model`` or ``data`` is neither a name nor a path.
        FolderInUse: If another process trains in ``out``.
        Diverged: If loss or weights become NaN or infinite.
    """
    check_type(bool, "True or False", resume=resume)
    check_progress(progress)
    check_type(StopSignal | None, "a StopSignal", stop=stop)
    config = configured(recipe, model, data, overrides)
    directory = Path(out) if out is not None else Path("runs") / _name(recipe)
    _check_directory(directory, config, resume)
    run = Run(config, directory, progress, curves=True)
    directory.mkdir(parents=True, exist_ok=True)
    lock = exclusive_lock(directory, "foveate train") if run.accelerator.is_main_process else nullcontext()
    with lock:
        run.log.info(f"Training on {run.accelerator.device.type}, processes: {run.world}.")
        if resume and run.resume():
            run.log.info(f"Resuming after step {run.state.step}, in epoch {run.state.epoch}.")
        for line in announcement(run):
            run.log.info(line)
        if stop is None:
            return run.train()
        with stop.listening():
            return run.train(stop)


def _check_directory(directory: Path, config: TrainConfig, resume: bool) -> None:
    """Raise a ValueError if the run cannot be written, or be resumed, there."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file, not a directory. Choose another directory with --out.")
    kept = find_checkpoint(directory)
    if kept is not None and not resume:
        raise ValueError(
            f"{directory} already holds a run. Resume it with --resume (resume=True in Python), or choose another "
            "directory with --out."
        )
    for path in (directory / CURRENT, directory / PREVIOUS):
        if path.is_dir():
            raise ValueError(f"{path} is a directory, where a checkpoint is written. Remove it.")
    check_writable(directory)
    if kept is not None and (values := read_values(kept)) is not None:
        check_same_run(values.get("config"), config)


def configured(
    recipe: str | PathLike[str] | TrainConfig,
    model: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    overrides: Overrides = (),
) -> TrainConfig:
    """Return the configuration of a recipe with changed values."""
    check_type(str | PathLike | None, "a name or a path, so that the run can be resumed", model=model, data=data)
    if isinstance(overrides, str) or not isinstance(overrides, Mapping | Sequence):
        raise TypeError(f"overrides must be values by name, such as {{'optimizer.lr': 1e-3}}; got {shown(overrides)}.")
    if not all(isinstance(change, str) for change in overrides):
        raise TypeError(f"overrides must have texts such as 'optimizer.lr=1e-3' or as names; got {shown(overrides)}.")
    check_type(str | PathLike | TrainConfig, "a name, a path or a TrainConfig", recipe=recipe)
    changes = {"model.name": _text(model), "data.source": _text(data)}
    given = {name: value for name, value in changes.items() if value is not None}
    if not isinstance(recipe, TrainConfig):  # a recipe may have values for this model
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
