"""What is left of a model's decisions: one pass over the images, the unreduced logits shared by all candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate.report.compare.images import Images
from foveate.train.decisions import Decisions
from foveate.train.objectives import logits_of


@dataclass
class Sums(Decisions):
    """Of one candidate, next to the unreduced model."""

    divergence: float = 0.0
    """Sum of KL(unreduced || this)."""

    def add(self, logits: Tensor, others: Tensor, labels: Tensor) -> None:
        super().add(logits, others, labels)
        self.divergence += float(divergence(others, logits))

    @property
    def kl(self) -> float:
        return self.divergence / self.images


@dataclass
class Fidelity:
    """The sums of every candidate after some batches; plain enough to be stored and taken up again."""

    sums: dict[str, Sums]
    broken: int = 0
    finished: bool = False

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, object]) -> Fidelity:
        values = dict(data)
        stored = values.pop("sums")
        assert isinstance(stored, dict)
        return Fidelity({key: Sums(**sums) for key, sums in stored.items()}, **values)  # type: ignore[arg-type]

    @property
    def images(self) -> int:
        return next(iter(self.sums.values())).images


@torch.inference_mode()
def measure_fidelity(
    models: Mapping[str, nn.Module],
    images: Images,
    device: torch.device,
    so_far: Fidelity,
    after_batch: Callable[[Fidelity], None],
) -> None:
    """Add to ``so_far`` all batches it has not seen; the first of ``models`` is the unreduced one.

    A batch counts for all models or for none, also where it is interrupted.
    """
    dtype = next(next(iter(models.values())).parameters()).dtype
    for batch, labels in images.batches(so_far.images, so_far.broken):
        batch, labels = batch.to(device, dtype), labels.to(device)
        logits = {key: logits_of(model(batch)).float() for key, model in models.items()}
        whole = next(iter(logits.values()))
        added = {key: dataclasses.replace(so_far.sums[key]) for key in models}
        for key, scores in logits.items():
            _check_logits(key, scores, whole)
            added[key].add(scores, whole, labels)
        so_far.sums = added
        after_batch(so_far)
    if not so_far.images:
        raise ValueError(f"{images.source} has no images.")
    so_far.finished = True


def divergence(whole: Tensor, logits: Tensor) -> Tensor:
    """Sum over a batch of KL(p || q) = sum_c p_c (log p_c - log q_c), p from ``whole``, q from ``logits``."""
    log_p, log_q = whole.double().log_softmax(dim=1), logits.double().log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum()


def _check_logits(key: str, logits: Tensor, whole: Tensor) -> None:
    if not bool(logits.isfinite().all()):
        raise ValueError(
            f"{key}: the model's outputs are not finite on these images. Look at its weights and precision."
        )
    if logits.shape != whole.shape:
        raise ValueError(f"{key} predicts {logits.shape[1]} classes, the unreduced model {whole.shape[1]}.")
