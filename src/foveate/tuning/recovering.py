"""``fv.recover``: a short tuning without labels, in which a reduced model follows the unreduced one.

Both see the same pictures, made from unlabeled images by crops, colors, pasted parts and means of two, since there are
few images and many steps. The reduced model follows the other's predictions, and its class token after every block
(``following.py`` has the loss). AdamW changes all weights, at a rate that rises over a twentieth of the time and then
falls to zero. Images that are held apart judge the running average of the weights every eighth of the time. The average
whose predictions diverge least is returned, among those whose decisions are not fewer than at the beginning by more
than a standard error. The weights at the beginning are one of them, so that the divergence on those images never ends
larger than it began.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from foveate.adapters import copy_unreduced, inspect
from foveate.evaluation.bars import shown_progress
from foveate.evaluation.environment import computes_bf16
from foveate.evaluation.progress import Progress
from foveate.evaluation.timing import check_positive, check_progress, check_workers
from foveate.methods.validation import check_type, shown
from foveate.tuning.following import Following
from foveate.tuning.judging import FEWEST_IMAGES, Judge, Judged, read_images, task_of
from foveate.tuning.varying import varied

CHECKS = 8
"""How often the held-apart images judge."""
WARMUP = 0.05
"""Share of the time over which the rate rises."""
HELD_APART = 0.2
"""Share of the images that judge and do not train."""
Precision = Literal["fp32", "bf16"]
AVERAGED = 0.99
"""Share of the running average that stays at each step: a tenth of all steps count, and at most about 100."""


@dataclass(frozen=True)
class Recovered:
    """A tuned model, and what its tuning gained on images that did not train it."""

    model: nn.Module
    before: Judged
    after: Judged
    steps: int
    """Steps after which the returned weights were taken; 0 if no tuning was better than none."""
    steps_done: int
    seconds: float
    complete: bool
    """Whether the time was used up; Ctrl-C keeps the best so far."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        figures = {
            f"{name}_{when}": getattr(judged, name)
            for when, judged in (("before", self.before), ("after", self.after))
            for name in ("quality", "standard_error", "divergence")
        }
        done = {"steps": self.steps, "steps_done": self.steps_done, "seconds": round(self.seconds, 1)}
        return figures | done | {"images": self.after.images, "complete": self.complete}

    def __str__(self) -> str:
        gain = f"{100 * self.before.quality:.1f} -> {100 * self.after.quality:.1f} %"
        error = f"+- {100 * self.after.standard_error:.1f}"
        return f"{gain} {error} {self.after.what} on {self.after.images} images held apart, after {self.steps} steps"


def recover(
    model: nn.Module,
    images: Tensor | str | PathLike[str],
    *,
    minutes: float = 10.0,
    steps: int | None = None,
    batch_size: int = 32,
    lr: float = 2e-5,
    limit: int = 1000,
    split: str | None = None,
    workers: int = 0,
    seed: int = 0,
    precision: Precision | None = None,
    progress: Progress | None = None,
) -> Recovered:
    """Tune a reduced model so that it follows the unreduced one, on images without labels. ``model`` does not change.

    Args:
        model: a reduced, trained model.
        images: a source of images, or a tensor (N, channels, height, width) as the model reads them.
        minutes: time to spend, evaluation included.
        steps: largest number of steps; a run that ends by it is repeatable.
        batch_size: images in a step.
        lr: highest learning rate.
        limit: largest number of images to read; a fifth of them is held apart.
        split: split of the source.
        workers: processes that read images.
        seed: of the images and crops.
        precision: ``bf16`` runs both models in bfloat16 while the weights stay as they are, more than twice as fast on
            processors that have it. Default: ``bf16`` there, else ``fp32``.
        progress: called after every step. Default: a bar, if a terminal or a notebook shows it.

    Returns:
        A tuned copy of the model, with what was gained. Interrupted by Ctrl-C, the best so far.

    Raises:
        ValueError: if the model is not reduced, there are too few images, or the time is too short for one step.
    """
    started = time.monotonic()
    check_positive(batch_size=batch_size, limit=limit, steps=1 if steps is None else steps)
    check_progress(progress)
    check_workers(workers)
    check_type(str | None, "text", split=split)
    check_type(int, "a whole number", seed=seed)
    for name, value in (("minutes", minutes), ("lr", lr)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name} must be a number above 0, got {shown(value)}.")
    if precision not in (None, *get_args(Precision)):
        raise ValueError(f"precision must be 'fp32' or 'bf16', got {shown(precision)}.")
    family = inspect(model)
    if family.reduction.method is None:
        raise ValueError("recover takes a reduced model. Reduce it first: fv.reduce_(model, 'Ward', 0.5).")
    student, teacher = copy.deepcopy(model).eval(), copy_unreduced(copy.deepcopy(model)).eval()
    task = task_of(teacher)
    pool = read_images(teacher, images, task, limit, seed, split, workers)
    apart = max(FEWEST_IMAGES, round(HELD_APART * len(pool)))
    judge = Judge(teacher, pool[:apart], task)
    run = _Tuning(student, teacher, pool[apart:], judge, batch_size, lr, seed, precision)
    with shown_progress(progress) as told:
        return run.run(started, 60 * minutes, steps, told)


class _Tuning:
    """One tuning: the student, its average, and the best average so far."""

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        images: Tensor,
        judge: Judge,
        batch_size: int,
        lr: float,
        seed: int,
        precision: Precision | None,
    ) -> None:
        self.student, self.images, self.judge = student, images, judge
        self.batch_size, self.lr = min(batch_size, len(images)), lr
        self.following = Following(student, teacher, judge.task)
        self.generator = torch.Generator().manual_seed(seed)
        first = next(student.parameters())
        self.device, self.dtype = first.device, first.dtype
        fast = self.dtype == torch.float32 and computes_bf16(self.device)
        self.bf16 = fast if precision is None else precision == "bf16"
        self.averaged = copy.deepcopy(student)
        student.requires_grad_(True)
        teacher.requires_grad_(False)
        decayed = [p for p in student.parameters() if p.dim() > 1]
        others = [p for p in student.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))
        self.before = judge.compare(self.averaged)
        self.best = self.judged = self.before
        self.best_steps = 0
        self.best_weights = _copied(self.averaged)

    def run(self, started: float, seconds: float, steps: int | None, progress: Progress) -> Recovered:
        """Step until the time or the steps are used up."""
        done, checked, complete = 0, 0, True
        prepared = time.monotonic() - started
        try:
            while done == 0 or (time.monotonic() - started < seconds and (steps is None or done < steps)):
                if done == 0 and prepared >= seconds:
                    raise ValueError(
                        f"{seconds / 60:g} minutes are too short for one step: reading and judging the images alone "
                        f"took {prepared / 60:.1f}. Give more minutes, or fewer images."
                    )
                elapsed = (time.monotonic() - started) / seconds
                share = elapsed if steps is None else done / steps  # a run that ends by its steps is repeatable
                loss = self._step(share)
                done += 1
                self._average(done)
                amount = (done, steps) if steps is not None else (round(elapsed * seconds), round(seconds))
                unit = "steps" if steps is not None else "seconds"
                apart = f"{self.judged.divergence:.4f} held apart, {self.before.divergence:.4f} at first"
                progress(f"tuning, {unit}", *amount, f"step {done}, loss {loss:.4f}; divergence {apart}")
                if (due := math.floor(CHECKS * share)) > checked:
                    checked = due
                    self._check(done)
        except KeyboardInterrupt:
            complete = False
        if done:
            self._check(done)
        self.averaged.load_state_dict(self.best_weights)
        taken = time.monotonic() - started
        return Recovered(self.averaged, self.before, self.best, self.best_steps, done, taken, complete)

    def _step(self, share: float) -> float:
        rate = min(1.0, share / WARMUP + 0.02) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * rate
        chosen = torch.randint(len(self.images), (self.batch_size,), generator=self.generator)
        crops = varied(self.images[chosen], self.generator).to(self.device, self.dtype)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.following.loss(crops)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def _average(self, done: int) -> None:
        keep = min(AVERAGED, done / (done + 10))  # the first steps are not held back by the beginning
        for ours, theirs in zip(self.averaged.parameters(), self.student.parameters(), strict=True):
            ours.lerp_(theirs, 1 - keep)

    def _check(self, done: int) -> None:
        judged = self.judged = self.judge.compare(self.averaged)
        least = self.before.quality - self.before.standard_error  # fewer images than that tell nothing
        if judged.divergence < self.best.divergence and judged.quality >= least:
            self.best, self.best_steps = judged, done
            self.best_weights = _copied(self.averaged)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
