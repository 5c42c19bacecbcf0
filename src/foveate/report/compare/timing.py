"""Speed and memory of each candidate, timed in turns with the unreduced model and the free slice."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.evaluation.environment import Environment
from foveate.evaluation.memory import peak_memory
from foveate.evaluation.speed import FREE_SLICE, REDUCED, UNREDUCED, summarize
from foveate.evaluation.timing import interleave, timer
from foveate.report.compare.candidates import Candidate, free_slice_of

WARM_UP_ROUNDS = 1  # the pass over the images has already run every model many times


def noise_for(model: nn.Module, batch_size: int) -> Tensor:
    """Return random images for timing: token counts do not depend on the content."""
    noise = torch.randn(batch_size, *inspect(model).image_size, generator=torch.Generator().manual_seed(0))
    reference = next(model.parameters())
    return noise.to(reference.device, reference.dtype)


@dataclass(frozen=True)
class Speed:
    """The measurements of one candidate, as values that can be stored."""

    unreduced_per_second: float
    speed_up: float
    speed_up_quartiles: tuple[float, float]
    efficiency: float | None
    """None if no tokens are chosen."""
    memory_mib: float | None
    rounds: int


@torch.inference_mode()
def measure_candidate(
    unreduced: nn.Module, candidate: Candidate, images: Tensor, seconds: float, environment: Environment
) -> Speed:
    """Time ``candidate`` for about ``seconds``, in turns with the unreduced model and its free slice."""
    free = free_slice_of(candidate)
    models = {UNREDUCED: unreduced, REDUCED: candidate.model} | ({} if free is None else {FREE_SLICE: free})
    timers = {name: timer(inspect(model).image_model, images) for name, model in models.items()}
    interleave(timers, WARM_UP_ROUNDS)
    rounds = interleave(timers, None, seconds)
    # a candidate that chooses no tokens is its own free slice
    completed = [{FREE_SLICE: times[REDUCED], **times} for times in rounds]
    size = (images.shape[1], images.shape[2], images.shape[3])
    result = summarize(completed, 1.0, len(images), size, environment)
    return Speed(
        unreduced_per_second=result.unreduced_per_second,
        speed_up=result.speed_up,
        speed_up_quartiles=result.speed_up_quartiles,
        efficiency=None if free is None else result.efficiency,
        memory_mib=peak_memory(inspect(candidate.model).image_model, images),
        rounds=result.rounds,
    )
