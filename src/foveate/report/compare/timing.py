"""How fast each candidate is, and what it needs: in turns with the unreduced model and the free slice."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from foveate.report.compare.candidates import Candidate, free_slice_of
from foveate.report.environment import Environment
from foveate.report.speed import FREE_SLICE, REDUCED, UNREDUCED, interleave, summarise, timer

WARM_UP_ROUNDS = 1  # the pass over the images has run every model many times


@dataclass(frozen=True)
class Speed:
    """What was measured of one candidate; plain enough to be stored."""

    unreduced_per_second: float
    speed_up: float
    speed_up_quartiles: tuple[float, float]
    efficiency: float | None
    """None where nothing is chosen."""
    memory_mib: float | None
    rounds: int


@torch.inference_mode()
def measure_candidate(
    unreduced: nn.Module, candidate: Candidate, images: Tensor, seconds: float, environment: Environment
) -> Speed:
    """Time ``candidate`` for about ``seconds``, in turns with the unreduced model and its free slice."""
    free = free_slice_of(candidate)
    models = {UNREDUCED: unreduced, REDUCED: candidate.model} | ({} if free is None else {FREE_SLICE: free})
    timers = {name: timer(model, images) for name, model in models.items()}
    interleave(timers, WARM_UP_ROUNDS)
    rounds = interleave(timers, None, seconds)
    # where nothing is chosen, the candidate is its own free slice
    whole = [{FREE_SLICE: times[REDUCED], **times} for times in rounds]
    size = (images.shape[1], images.shape[2], images.shape[3])
    result = summarise(whole, 1.0, len(images), size, environment)
    return Speed(
        unreduced_per_second=result.unreduced_per_second,
        speed_up=result.speed_up,
        speed_up_quartiles=result.speed_up_quartiles,
        efficiency=None if free is None else result.efficiency,
        memory_mib=peak_memory(candidate.model, images),
        rounds=result.rounds,
    )


@torch.inference_mode()
def peak_memory(model: nn.Module, images: Tensor) -> float | None:
    """Most MiB that one pass holds at a time beyond weights and images, as torch's own allocator counts them.

    None for devices whose allocator is not watched.
    """
    if images.device.type == "cuda":
        return _peak_on_cuda(model, images)
    return _peak_on_cpu(model, images) if images.device.type == "cpu" else None


def _peak_on_cuda(model: nn.Module, images: Tensor) -> float:
    torch.cuda.reset_peak_memory_stats(images.device)
    before = torch.cuda.memory_allocated(images.device)
    model(images)
    torch.cuda.synchronize(images.device)
    return (torch.cuda.max_memory_allocated(images.device) - before) / 2**20


def _peak_on_cpu(model: nn.Module, images: Tensor) -> float:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler's library chats on stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(images)
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20
