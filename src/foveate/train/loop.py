"""The one training loop: on accelerate, from one CPU to many nodes, stopped at any moment and continued exactly."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from timm.utils import ModelEmaV3
from torch import Tensor

import foveate as fv
from foveate.adapters import reduction_of
from foveate.data import Batch, Loader
from foveate.data.order import seed_everything, seed_from
from foveate.data.preprocessing import Preprocessing
from foveate.storage import write_text
from foveate.train.augmentation import build_mixup, training_transform
from foveate.train.build import (
    build_accelerator,
    build_model,
    build_objective,
    build_optimiser,
    build_schedule,
    check_own_teacher,
    check_warm_up,
    open_both,
    warm_keep_rate,
)
from foveate.train.checkpoint import (
    Checkpoint,
    find_checkpoint,
    join_optimiser,
    load_strictly,
    read_checkpoint,
    split_optimiser,
    write_checkpoint,
)
from foveate.train.classifier import train_mode_
from foveate.train.config import TrainConfig
from foveate.train.evaluate import evaluate
from foveate.train.objectives import Moment, Objective
from foveate.train.progress import Reporter, Stopper
from foveate.train.same_run import check_same_run, check_same_things

CLASSES = "classes.json"
"""Beside a saved model: the names of its classes, in its order."""
SAY_EVERY = 10
"""Steps from one look at the losses to the next."""


@dataclass
class State:
    """Where a run is: everything that changes but is no tensor."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    sums: dict[str, float] = field(default_factory=dict)
    """Losses of this epoch up to the last checkpoint, summed over its steps."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """What was said after each epoch."""
    best: float | None = None
    broken: list[str] = field(default_factory=list)
    """Images that could not be read, up to the last epoch's end."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    directory: Path
    finished: bool
    history: list[dict[str, Any]]
    best: float | None
    """The best evaluation of all epochs."""
    products: dict[str, Any]
    """What the objective has written beside the model."""


class Diverged(RuntimeError):
    """Losses or weights are no numbers any more."""


class Run:
    """One training run: its parts, built from a configuration, and the loop over them."""

    def __init__(self, config: TrainConfig, directory: Path, reporter: Reporter | None = None) -> None:
        config.check()
        self.config, self.directory = config, directory
        self.accelerator = build_accelerator(config.optimiser.precision)
        self.rank, self.world = self.accelerator.process_index, self.accelerator.num_processes
        self.reporter = reporter or Reporter(quiet=True, curves=False)
        seed_everything(config.run.seed)  # every process builds the same model
        with self.accelerator.local_main_process_first():  # what is fetched is fetched once
            train_data, val_data = open_both(config.data)
        classes = train_data.num_classes if config.objective.kind != "distill" else None
        model, new_classifier = build_model(config, classes)
        check_own_teacher(config.objective, new_classifier)
        self.objective: Objective = build_objective(config, model)
        self.train_loader = self._loader(train_data, training_transform(config, model), train=True)
        evaluation = Preprocessing.of(model).evaluation()
        self.val_loader = None if val_data is None else self._loader(val_data, evaluation, train=False)
        self.classes = list(train_data.classes or ()) if classes is not None else []
        self.identity = self._identify()
        self.mixup = build_mixup(config, classes)
        self.optimiser = build_optimiser(config.optimiser, self.objective, config.data.batch_size)
        self.rates = build_schedule(config.schedule, self.optimiser, len(self.train_loader))
        self.objective.to(self.accelerator.device)
        ema = config.optimiser.ema
        self.ema = ModelEmaV3(model, decay=ema) if ema else None
        self.wrapped, self.stepper = self.accelerator.prepare(self.objective, self.optimiser)
        self.state = State()
        self._losses: dict[str, Tensor] = {}
        self._check_parts()
        if self._warms_up():
            check_warm_up(config, len(self.train_loader))

    def _identify(self) -> dict[str, Any]:
        """What a checkpoint has to agree with, and no value of the configuration says."""
        reduction = reduction_of(self.objective.model)
        counts = None if reduction is None else list(reduction.plan.counts)
        return {
            "images": len(self.train_loader) * self.config.data.batch_size,
            "classes": self.classes,
            "counts": counts,
        }

    def _loader(self, data: Any, transform: Any, train: bool) -> Loader:
        section = self.config.data
        return Loader(
            data,
            transform,
            section.batch_size,
            seed=self.config.run.seed,
            train=train,
            workers=section.workers,
            rank=self.rank,
            world=self.world,
            max_broken=section.max_broken,
            repeats=self.config.augmentation.repeats,
        )

    def _check_parts(self) -> None:
        parts = self.world * self.config.optimiser.accumulate
        if self.config.data.batch_size % parts:
            raise ValueError(f"data.batch_size={self.config.data.batch_size} does not divide into {parts} equal parts.")
        images = self.config.data.batch_size // self.world
        if self.mixup is not None and images % 2:
            raise ValueError(f"Mixup pairs images, so that every process needs an even number of them; got {images}.")

    def _warms_up(self) -> bool:
        return self.config.reduction.warms_up and reduction_of(self.objective.model) is not None

    # -- the loop

    def train(self, stopper: Stopper | None = None) -> Outcome:
        """Train to the end, or until ``stopper`` is told to stop; a checkpoint is there in both cases."""
        stopper = stopper or Stopper()
        if self.accelerator.is_main_process:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_text(self.directory / "config.json", json.dumps(self.config.as_dict(), indent=2) + "\n")
        self.accelerator.wait_for_everyone()
        epochs = self.config.schedule.epochs * self.config.schedule.cycles
        last_saved = time.monotonic()
        steps = min(epochs * len(self.train_loader), self.config.run.steps or math.inf)
        with self.reporter.running(self.directory, self.state.step, int(steps)):
            while self.state.epoch < epochs and not self._enough():
                for batch in self._batches():
                    self._step(batch)
                    if self._any(stopper.told):
                        self.save()
                        return self._outcome(finished=False)
                    if self.state.batch < len(self.train_loader) and self._any(self._due(last_saved)):
                        self.save()
                        last_saved = time.monotonic()
                    if self._enough():
                        break
                if self.state.batch == len(self.train_loader):
                    self._end_epoch(epochs)
                    last_saved = time.monotonic()
            return self._finish()

    def _enough(self) -> bool:
        return 0 < self.config.run.steps <= self.state.step

    def _due(self, last_saved: float) -> bool:
        steps, seconds = self.config.run.checkpoint_steps, 60 * self.config.run.checkpoint_minutes
        return (steps > 0 and self.state.step % steps == 0) or time.monotonic() - last_saved > seconds

    def _any(self, said: bool) -> bool:
        """Whether any process says so. Clocks and signals differ between them, and all must do the same."""
        if self.world == 1:
            return said
        return bool(self.accelerator.reduce(torch.tensor(float(said), device=self.accelerator.device), "sum").item())

    def _batches(self) -> Iterator[Batch]:
        train_mode_(self.wrapped)
        yield from self.train_loader.epoch(self.state.epoch, self.state.batch)

    def _step(self, batch: Batch) -> None:
        state, config = self.state, self.config
        seed_everything(config.run.seed, state.step, self.rank)  # dropout and Mixup of this step, resumed or not
        torch.manual_seed(seed_from(config.run.seed, state.step, self.rank))  # on the accelerator too
        moment = self._now()
        self._set_time(moment)
        images, labels = batch.images.to(self.accelerator.device), batch.labels.to(self.accelerator.device)
        if self.mixup is not None:
            images, labels = self.mixup(images, labels)
        losses = self._backward(images, labels)
        self.objective.before_update(moment)
        if config.optimiser.clip_norm:
            self.accelerator.clip_grad_norm_(self.wrapped.parameters(), config.optimiser.clip_norm)
        self.stepper.step()
        self.stepper.zero_grad(set_to_none=True)
        self.objective.after_step()
        state.step, state.batch = state.step + 1, state.batch + 1
        if self.ema is not None:
            self.ema.update(self.objective.model, step=state.step)
        self._count(losses, len(batch) * self.world)

    def _now(self) -> Moment:
        return Moment(self.state.step, self.state.epoch + self.state.batch / len(self.train_loader))

    def _set_time(self, moment: Moment) -> None:
        """What changes over time: the learning rate, the keep rate, and what the objective says."""
        self.rates.step_update(moment.step % (self.config.schedule.epochs * len(self.train_loader)))
        self._set_keep_rate(moment)
        self.objective.before_step(moment)

    def _set_keep_rate(self, moment: Moment) -> None:
        section = self.config.reduction
        if self._warms_up():
            schedule = fv.KeepRate(warm_keep_rate(section, moment.epoch), section.blocks or None)
            for model in filter(None, (self.objective.model, self.ema and self.ema.module)):
                fv.reschedule_(model, schedule)

    def _backward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Gradients of the whole batch, in as many parts as the recipe says; returns the mean losses."""
        parts = self.config.optimiser.accumulate
        means: dict[str, Tensor] = {}
        for number, (some, theirs) in enumerate(zip(images.chunk(parts), labels.chunk(parts), strict=True)):
            waiting = self.accelerator.no_sync(self.wrapped) if number < parts - 1 else nullcontext()
            with waiting, self.accelerator.autocast():
                losses = self.wrapped(some, theirs)
            self.accelerator.backward(torch.stack(list(losses.values())).sum() / parts)
            for name, loss in losses.items():
                means[name] = means.get(name, torch.zeros_like(loss)) + loss.detach() / parts
        return means

    def _count(self, losses: dict[str, Tensor], images: int) -> None:
        """Add a step to the sums of its epoch. Numbers are fetched now and then: a GPU makes us wait."""
        for name, loss in losses.items():
            before = self._losses.get(name, torch.zeros((), dtype=torch.float64, device=loss.device))
            self._losses[name] = before + loss.double()
        self.reporter.images(images)
        if self.state.step % SAY_EVERY == 0:
            means = {name: self.accelerator.reduce(loss, "mean").item() for name, loss in losses.items()}
            self._refuse_nonsense(sum(means.values()))
            self.reporter.step(self.state.step, means, max(group["lr"] for group in self.optimiser.param_groups))

    def _refuse_nonsense(self, loss: float) -> None:
        if not math.isfinite(loss) and self.config.optimiser.precision != "fp16":  # whose scaler skips such steps
            raise self._diverged(f"The loss is {loss}")

    def _diverged(self, what: str) -> Diverged:
        kept = find_checkpoint(self.directory)
        last = "" if kept is None else f" The last checkpoint, {kept}, is from before."
        advice = "Start again with a lower optimiser.lr, or with optimiser.clip_norm=1."
        return Diverged(f"{what} at step {self.state.step}. {advice}{last}")

    def _summed(self) -> dict[str, float]:
        """Losses of this epoch, summed over its steps and averaged over processes."""
        return {name: self.accelerator.reduce(total, "mean").item() for name, total in self._losses.items()}

    def _end_epoch(self, epochs: int) -> None:
        state = self.state
        last = state.epoch + 1 == epochs or self._enough()
        evaluated = last or (state.epoch + 1) % self.config.run.eval_epochs == 0
        if evaluated and self.val_loader is not None:
            self.save()  # an evaluation may be long, and a scheduler's patience short
        self._tell(evaluated)
        state.epoch, state.batch, self._losses = state.epoch + 1, 0, {}
        self.save()

    def _tell(self, evaluated: bool) -> None:
        """Write the line of this epoch, instead of one from an earlier moment of it."""
        state, summed = self.state, self._summed()
        self._refuse_nonsense(sum(summed.values()))
        means = {name: total / max(state.batch, 1) for name, total in summed.items()}
        line: dict[str, Any] = {"epoch": state.epoch, "step": state.step, "train": means, **self.reporter.pace()}
        if self.val_loader is not None and evaluated:
            self._set_keep_rate(self._now())
            line["val"] = self.evaluate()
            self._keep_best(line["val"])
        self._note_broken()
        line["broken"] = len(state.broken)
        state.history = [*(old for old in state.history if old["epoch"] != state.epoch), line]
        self.reporter.epoch(line)

    def _note_broken(self) -> None:
        """Names of broken images that any process has met, also before a resume."""
        loaders = (self.train_loader, self.val_loader)
        met = [name for loader in loaders if loader is not None for name in loader.broken_names]
        everyone = gather_object(met) if self.world > 1 else met
        self.state.broken = sorted({*self.state.broken, *everyone})

    def evaluate(self) -> dict[str, float]:
        """Figures over all validation images, each counted once, for the moving average where there is one."""
        assert self.val_loader is not None
        model = self.objective.model if self.ema is None else self.ema.module
        batches = self.val_loader.epoch(0)
        return evaluate(self.objective, model, batches, self.accelerator, self.reporter)

    def _keep_best(self, figures: dict[str, float]) -> None:
        """Write the model where it is better than before; with the tokens it is to have, not with more."""
        section = self.config.reduction
        if self._warms_up() and self._now().epoch < section.warmup_start + section.warmup_epochs:
            return
        value, sign = figures[self.objective.better], self.objective.sign
        if self.state.best is None or sign * value > sign * self.state.best:
            self.state.best = value
            self._write_model("best")

    # -- files

    def _write_model(self, name: str) -> None:
        if self.accelerator.is_main_process:
            fv.save(self.objective.model if self.ema is None else self.ema.module, self.directory / name)
            if self.classes:
                write_text(self.directory / name / CLASSES, json.dumps(self.classes, indent=0))

    def save(self) -> None:
        """Write a checkpoint and the log, in one process; not over a good one when the losses are none."""
        self.state.sums = self._summed()
        self._refuse_nonsense(sum(self.state.sums.values()))
        if not all(bool(p.isfinite().all()) for p in self.objective.parameters()):
            raise self._diverged("Weights are not finite")
        if self.accelerator.is_main_process:
            write_checkpoint(self.directory, self._checkpoint())
            lines = "".join(json.dumps(line) + "\n" for line in self.state.history)
            write_text(self.directory / "log.jsonl", lines)
        self.accelerator.wait_for_everyone()

    def _checkpoint(self) -> Checkpoint:
        tensors, groups = split_optimiser(self.optimiser.state_dict())
        scaler = self.accelerator.scaler
        values = {"state": vars(self.state), "optimiser": groups, "scaler": scaler.state_dict() if scaler else None}
        values |= {"config": self.config.as_dict(), "identity": self.identity}
        kept = {"objective": self.objective.state_dict(), "optimiser": tensors}
        if self.ema is not None:
            kept["ema"] = self.ema.module.state_dict()
        return Checkpoint(kept, values)

    def resume(self) -> bool:
        """Go on from the directory's checkpoint; False where there is none."""
        path = find_checkpoint(self.directory)
        self._check_everyone_found(path)
        if path is None:
            return False
        found = read_checkpoint(path)
        check_same_run(found.values["config"], self.config)
        check_same_things(found.values["identity"], self.identity)
        load_strictly(self.objective, found.tensors["objective"], "model")
        if self.ema is not None:
            load_strictly(self.ema.module, found.tensors["ema"], "moving average")
        self.optimiser.load_state_dict(join_optimiser(found.tensors.get("optimiser", {}), found.values["optimiser"]))
        if self.accelerator.scaler is not None and found.values["scaler"]:
            self.accelerator.scaler.load_state_dict(found.values["scaler"])
        self.state = State(**found.values["state"])
        device = self.accelerator.device
        self._losses = {n: torch.tensor(v, dtype=torch.float64, device=device) for n, v in self.state.sums.items()}
        self._set_keep_rate(self._now())
        return True

    def _check_everyone_found(self, path: Path | None) -> None:
        found = [None if path is None else path.stat().st_size]
        if self.world > 1 and len({*gather_object(found)}) > 1:
            raise ValueError(f"Not every process sees the same checkpoint in {self.directory}; share the directory.")

    def _finish(self) -> Outcome:
        if self.state.batch and all(line["step"] != self.state.step for line in self.state.history):
            self._tell(evaluated=True)  # steps ran out within an epoch
            self.save()
        self._write_model("model")
        products = self.objective.finish(self.directory) if self.accelerator.is_main_process else {}
        return self._outcome(finished=True, products=products)

    def _outcome(self, finished: bool, products: dict[str, Any] | None = None) -> Outcome:
        self.accelerator.wait_for_everyone()
        return Outcome(self.directory, finished, self.state.history, self.state.best, products or {})
