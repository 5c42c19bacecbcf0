"""How many images run at once, by the memory that one takes."""

from __future__ import annotations

from foveate.scale.predictor import BATCH_SIZE
from foveate.scale.runnable import Runnable

MOST_ON_CPU, ON_ACCELERATORS = 32, 64
"""A CPU gains nothing from more. An accelerator's memory is not probed from here: it may be in another machine."""
SHARE = 0.5
"""Share of the free memory to use; the rest is for images, files and other processes."""
MIB = 2**20


def fitting_batch(runnable: Runnable, on_cpu: bool, memory: int) -> int:
    """The largest power of two whose batch fits into its share of ``memory`` bytes."""
    if not on_cpu:
        return ON_ACCELERATORS
    peak = runnable.peak(runnable.example.repeat(2, *[1] * (runnable.example.dim() - 1)))
    if peak is None:
        return BATCH_SIZE
    fitting = max(1, int(SHARE * memory / (max(peak, 1e-3) / 2 * MIB)))
    return min(MOST_ON_CPU, 1 << (fitting.bit_length() - 1))
