"""The training loop, on accelerate: from one CPU to many nodes, and resumed exactly after a stop at any moment."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from timm.utils import ModelEmaV3
from torch import Tensor

import foveate as fv
from foveate.adapters import reducer_of
from foveate.data import Batch, ImageData, Loader
from foveate.data.division import names_of
from foveate.data.labels import CLASSES_FILE
from foveate.data.order import seed_everything, seed_from
from foveate.data.preprocessing import Preprocessing
from foveate.evaluation.progress import Progress
from foveate.evaluation.side_by_side import evaluate, over_processes
from foveate.files import write_text
from foveate.tasks.base import chunk, to_device
from foveate.tasks.options import write_task
from foveate.training.announcing import write_inputs
from foveate.training.build import (
    build_accelerator,
    build_model,
    build_objective,
    build_optimizer,
    build_task,
    check_own_teacher,
    check_warm_up,
    open_both,
    warm_keep_rate,
)
from foveate.training.checkpoint import (
    Checkpoint,
    find_checkpoint,
    read_newest_checkpoint,
    restore_,
    split_optimizer,
    whole,
    write_checkpoint,
)
from foveate.training.config import TrainConfig
from foveate.training.freezing import train_mode_
from foveate.training.layout import find_layout
from foveate.training.learning_rate import build_lr_scheduler, cycle_steps, last_step, run_epochs
from foveate.training.local_checks import check_local
from foveate.training.objectives import Moment, Objective
from foveate.training.run_log import RunLog
from foveate.training.same_run import check_same_run, check_same_things
from foveate.training.state import Diverged, Outcome, State, read_state
from foveate.training.stopping import StopSignal

LOSSES_EVERY = 10
"""Steps between reports of the losses."""


class Run:
    """One training run: its parts, built from a configuration, and the loop.

    Args:
        config: The configuration of the run.
        directory: Where to write; ``foveate train --help`` lists the files.
        progress: Called after every step, in the main process.
        curves: Whether to write curves for TensorBoard.
    """

    def __init__(
        self, config: TrainConfig, directory: Path, progress: Progress | None = None, curves: bool = False
    ) -> None:
        check_local(config)
        self.config, self.directory = config, directory
        self.accelerator = build_accelerator(config.optimizer.precision)
        self.layout = find_layout(config, self.accelerator)
        self.rank, self.world = self.accelerator.process_index, self.accelerator.num_processes
        self.log = RunLog(progress, curves, self.accelerator.is_main_process)
        seed_everything(config.run.seed)  # every process builds the same model
        with self.accelerator.local_main_process_first():  # downloads happen once per machine
            train_data, val_data = open_both(config.data, config.run.seed)
        self.task = build_task(config, train_data)
        self.mixup = self.task.batch_transform(config.augmentation)
        self._check_parts()
        model, self.new_classifier = build_model(config, self.task)
        check_own_teacher(config.objective, self.new_classifier)
        self.objective: Objective = build_objective(config, model, self.task)
        preprocessing = Preprocessing.of(model)
        training = self.task.training_transform(preprocessing, config.augmentation)
        self.train_loader = self._loader(train_data, training, train=True)
        evaluation = self.task.evaluation_transform(preprocessing)
        self.val_loader = None if val_data is None else self._loader(val_data, evaluation, train=False)
        self.held_out = names_of(val_data) if config.data.val_share else []
        self.classes = list(train_data.classes or ()) if self.task.num_classes is not None else []
        self.identity = self._identify()
        self.layout.place_(self.objective)
        self.optimizer = build_optimizer(config.optimizer, self.objective, config.data.batch_size)
        self.steps = last_step(config, len(self.train_loader))
        self.lr_scheduler = build_lr_scheduler(config.schedule, self.optimizer, len(self.train_loader))
        ema = config.optimizer.ema
        self.ema = ModelEmaV3(model, decay=ema) if ema else None
        self.prepared, self.prepared_optimizer = self.layout.prepare(self.objective, self.optimizer)
        self.state = State()
        self._losses: dict[str, Tensor] = {}
        if self._warms_up():
            check_warm_up(config, len(self.train_loader))

    def _identify(self) -> dict[str, Any]:
        """Return what a checkpoint must match besides the configuration."""
        reducer = reducer_of(self.objective.model)
        counts = None if reducer is None else list(reducer.plan.counts)
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
            section.batch_size if train else section.eval_batch_size or section.batch_size,
            seed=self.config.run.seed,
            train=train,
            workers=section.workers,
            rank=self.rank,
            world=self.world,
            max_broken=section.max_broken,
            repeats=self.config.augmentation.repeats,
            rules=self.task,
        )

    def _check_parts(self) -> None:
        size, parts = self.config.data.batch_size, self.world * self.config.optimizer.accumulate
        if size % parts:
            raise ValueError(f"data.batch_size={size} is not divisible by {parts} (processes x optimizer.accumulate).")
        images = size // self.world
        if self.mixup is not None and images % 2:
            raise ValueError(f"Mixup needs an even number of images per process, got {images}. Change data.batch_size.")

    def _warms_up(self) -> bool:
        return self.config.reduction.warms_up and reducer_of(self.objective.model) is not None

    # -- the loop

    def train(self, stop: StopSignal | None = None) -> Outcome:
        """Train to the end, or until ``stop`` is requested. Both leave a checkpoint."""
        stop = stop or StopSignal()
        if self.accelerator.is_main_process:
            write_inputs(self.directory, self.config, self.held_out)
            self._write_log()  # of a resumed run, whose log may be older than its checkpoint
        self.accelerator.wait_for_everyone()
        epochs = run_epochs(self.config.schedule, len(self.train_loader))
        last_saved = time.monotonic()
        with self.log.running(self.directory, self.state.step, self.steps):
            while self.state.epoch < epochs and not self._enough():
                for batch in self._batches():
                    self._step(batch)
                    if self.layout.any(stop.requested):
                        self.save()
                        return self._outcome(finished=False)
                    if self.state.batch < len(self.train_loader) and self.layout.any(self._due(last_saved)):
                        self.save()
                        last_saved = time.monotonic()
                    if self._enough():
                        break
                if self.state.batch == len(self.train_loader):
                    self._end_epoch(epochs)
                    last_saved = time.monotonic()
            return self._finish()

    def _enough(self) -> bool:
        return self.state.step >= self.steps

    def _due(self, last_saved: float) -> bool:
        steps, seconds = self.config.run.checkpoint_steps, 60 * self.config.run.checkpoint_minutes
        return (steps > 0 and self.state.step % steps == 0) or time.monotonic() - last_saved > seconds

    def _batches(self) -> Iterator[Batch]:
        train_mode_(self.prepared)
        yield from self.train_loader.epoch(self.state.epoch, self.state.batch)

    def _step(self, batch: Batch) -> None:
        state, config = self.state, self.config
        seed_everything(config.run.seed, state.step, self.rank)  # same dropout and Mixup after a resume
        torch.manual_seed(seed_from(config.run.seed, state.step, self.rank))  # on the accelerator too
        moment = self._now()
        self._set_time(moment)
        device = self.accelerator.device
        images, targets = batch.images.to(device), to_device(batch.targets, device)
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        losses = self._backward(images, targets)
        self.objective.before_update(moment)
        if config.optimizer.clip_norm:
            self.accelerator.clip_grad_norm_(self.prepared.parameters(), config.optimizer.clip_norm)
        self.prepared_optimizer.step()
        self.prepared_optimizer.zero_grad(set_to_none=True)
        self.objective.after_step()
        state.step, state.batch = state.step + 1, state.batch + 1
        if self.ema is not None:
            self.ema.update(self.objective.model, step=state.step)
        self._count(losses, len(batch) * self.world)

    def _now(self) -> Moment:
        return Moment(self.state.step, self.state.epoch + self.state.batch / len(self.train_loader))

    def _set_time(self, moment: Moment) -> None:
        """Update what changes over time: learning rate, keep rate, and the objective."""
        self.lr_scheduler.step_update(moment.step % cycle_steps(self.config.schedule, len(self.train_loader)))
        self._set_keep_rate(moment)
        self.objective.before_step(moment)

    def _set_keep_rate(self, moment: Moment) -> None:
        section = self.config.reduction
        if self._warms_up():
            schedule = fv.KeepRate(warm_keep_rate(section, moment.epoch), section.blocks or None)
            for model in filter(None, (self.objective.model, self.ema and self.ema.module)):
                fv.reschedule_(model, schedule)

    def _backward(self, images: Tensor, targets: Any) -> dict[str, Tensor]:
        """Accumulate gradients of the batch in ``optimizer.accumulate`` parts; returns the mean losses."""
        parts = self.config.optimizer.accumulate
        means: dict[str, Tensor] = {}
        for number, (some, theirs) in enumerate(zip(images.chunk(parts), chunk(targets, parts), strict=True)):
            waiting = self.accelerator.no_sync(self.prepared) if number < parts - 1 else nullcontext()
            with waiting, self.accelerator.autocast():
                losses = self.prepared(some, theirs)
            self.accelerator.backward(torch.stack(list(losses.values())).sum() / parts)
            for name, loss in losses.items():
                means[name] = means.get(name, torch.zeros_like(loss)) + loss.detach() / parts
        return means

    def _count(self, losses: dict[str, Tensor], images: int) -> None:
        """Add the losses of a step to the sums of its epoch. Reading them waits for the GPU, so it happens rarely."""
        for name, loss in losses.items():
            before = self._losses.get(name, torch.zeros((), dtype=torch.float64, device=loss.device))
            self._losses[name] = before + loss.double()
        if self.state.step % LOSSES_EVERY == 0:
            means = {name: self.accelerator.reduce(loss, "mean").item() for name, loss in losses.items()}
            self._check_finite(sum(means.values()))
            self.log.losses(self.state.step, means, max(group["lr"] for group in self.optimizer.param_groups))
        self.log.step_done(images)

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss) and self.config.optimizer.precision != "fp16":  # the fp16 scaler skips such steps
            raise self._diverged(f"The loss became {loss}")

    def _diverged(self, what: str) -> Diverged:
        kept = find_checkpoint(self.directory)
        last = "" if kept is None else f" The last checkpoint, {kept}, is from before that."
        advice = "Start again with a lower optimizer.lr, or with optimizer.clip_norm=1."
        return Diverged(f"{what} at step {self.state.step}. {advice}{last}")

    def _summed(self) -> dict[str, float]:
        """Return the losses of this epoch, summed over steps and averaged over processes."""
        return {name: self.accelerator.reduce(total, "mean").item() for name, total in self._losses.items()}

    def _end_epoch(self, epochs: int) -> None:
        state = self.state
        last = state.epoch + 1 == epochs or self._enough()
        evaluated = last or (state.epoch + 1) % self.config.run.eval_epochs == 0
        if evaluated and self.val_loader is not None:
            self.save()  # a scheduler may kill the run during a long evaluation
        self._log_epoch(evaluated)
        state.epoch, state.batch, self._losses = state.epoch + 1, 0, {}
        self.save()

    def _log_epoch(self, evaluated: bool) -> None:
        """Log this epoch; an earlier entry of the same epoch is replaced."""
        state, summed = self.state, self._summed()
        self._check_finite(sum(summed.values()))
        means = {name: total / max(state.batch, 1) for name, total in summed.items()}
        line: dict[str, Any] = {"epoch": state.epoch, "step": state.step, "train": means, **self.log.pace()}
        if self.val_loader is not None and evaluated:
            self._set_keep_rate(self._now())
            line["val"] = self.evaluate()
            self._keep_best(line["val"])
        self._note_broken()
        line["broken"] = len(state.broken)
        state.history = [*(old for old in state.history if old["epoch"] != state.epoch), line]
        self.log.epoch(line)

    def _note_broken(self) -> None:
        """Collect the names of unreadable images from all processes, including those before a resume."""
        loaders = (self.train_loader, self.val_loader)
        names = [name for loader in loaders if loader is not None for name in loader.broken_names]
        gathered = gather_object(names) if self.world > 1 else names
        self.state.broken = sorted({*self.state.broken, *gathered})

    def evaluate(self) -> dict[str, float]:
        """Return the metrics over all validation images, each counted once, of the moving average if there is one."""
        assert self.val_loader is not None
        model = self.objective.model if self.ema is None else self.ema.module
        self.objective.eval()
        model.eval()
        data = self.val_loader.data
        total = -(-len(data) // self.world) if isinstance(data, ImageData) else None
        with self.layout.evaluating(self.objective, self.val_loader.epoch(0)) as batches:
            found = evaluate(
                {"model": model},
                batches,
                self.objective,
                self.accelerator.device,
                autocast=self.accelerator.autocast,
                after_batch=lambda so_far: self.log.evaluated(so_far.images, total),
            )
        metrics = over_processes(found.metrics["model"])
        if not metrics.images:
            raise ValueError("The validation data have no readable images.")
        return {**metrics.compute(), "images": metrics.images}

    def _keep_best(self, figures: dict[str, float]) -> None:
        """Save the model if it is the best so far, but not before the keep rate has reached its target."""
        section = self.config.reduction
        if self._warms_up() and self._now().epoch < section.warmup_start + section.warmup_epochs:
            return
        value = figures[self.objective.monitor]
        if self.objective.is_better(value, self.state.best):
            self.state.best = value
            self._write_model("best")

    # -- files

    def _write_model(self, name: str) -> None:
        model = self.layout.savable(self.objective.model if self.ema is None else self.ema.module)
        if self.accelerator.is_main_process:
            fv.save(model, self.directory / name)
            if self.classes:
                write_text(self.directory / name / CLASSES_FILE, json.dumps(self.classes, indent=0))
            write_task(self.directory / name, self.config.data.task, self.config.data.options)

    def save(self) -> None:
        """Write a checkpoint and the log, in the main process; raise ``Diverged`` if loss or weights are not finite."""
        self.state.sums = self._summed()
        self._check_finite(sum(self.state.sums.values()))
        if self.layout.any(not self.layout.finite(self.objective)):
            raise self._diverged("Weights became NaN or infinite")
        checkpoint = self._checkpoint()  # in every process, which may each hold a part
        if self.accelerator.is_main_process:
            write_checkpoint(self.directory, checkpoint)
            self._write_log()
        self.accelerator.wait_for_everyone()

    def _write_log(self) -> None:
        write_text(self.directory / "log.jsonl", "".join(json.dumps(line) + "\n" for line in self.state.history))

    def _checkpoint(self) -> Checkpoint:
        tensors, groups = split_optimizer(self.optimizer.state_dict())
        scaler = self.accelerator.scaler
        values = {"state": vars(self.state), "optimizer": groups, "scaler": scaler.state_dict() if scaler else None}
        values |= {"config": self.config.as_dict(), "identity": self.identity}
        kept = {"objective": self.objective.state_dict(), "optimizer": tensors}
        kept = {group: self.layout.whole(some) for group, some in kept.items()}
        if self.ema is not None:
            kept["ema"] = self.ema.module.state_dict()
        return Checkpoint(kept, values)

    def resume(self) -> bool:
        """Resume from the directory's newest whole checkpoint; returns False if it has none."""
        newest = read_newest_checkpoint(self.directory)
        self._check_everyone_found(None if newest is None else newest[0])
        if newest is None:
            return False
        path, found = newest
        check_same_run(found.values.get("config"), self.config)
        check_same_things(found.values.get("identity"), self.identity)
        with whole(path):
            found = self.layout.as_here(found, self.objective, self.optimizer)
            parts = {"model": self.objective, "moving average": self.ema and self.ema.module}
            restore_(parts, self.optimizer, self.accelerator.scaler, found)
            self.state = read_state(found.values["state"], len(self.train_loader))
        device = self.accelerator.device
        self._losses = {n: torch.tensor(v, dtype=torch.float64, device=device) for n, v in self.state.sums.items()}
        self._set_keep_rate(self._now())
        return True

    def _check_everyone_found(self, path: Path | None) -> None:
        found = [None if path is None else path.stat().st_size]
        if self.world > 1 and len({*gather_object(found)}) > 1:
            raise ValueError(f"The processes see different checkpoints in {self.directory}. Use a shared directory.")

    def _finish(self) -> Outcome:
        if self.state.batch and all(line["step"] != self.state.step for line in self.state.history):
            self._log_epoch(evaluated=True)  # steps ran out within an epoch
            self.save()
        self._write_model("model")
        products = self.objective.finish(self.directory) if self.accelerator.is_main_process else {}
        return self._outcome(finished=True, products=products)

    def _outcome(self, finished: bool, products: dict[str, Any] | None = None) -> Outcome:
        self.accelerator.wait_for_everyone()
        return Outcome(self.directory, finished, self.state.history, self.state.best, products or {})
