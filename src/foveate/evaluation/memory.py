"""Peak memory of one forward pass."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


@torch.inference_mode()
def peak_memory(model: nn.Module, images: Tensor) -> float | None:
    """Return the peak memory of one pass in MiB, beyond weights and images, as counted by torch's allocator.

    Returns:
        MiB on CPU and CUDA; None on other devices, which are not measured.
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
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler's library writes to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(images)
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20
