"""Time of the operations in a reduction: ways to gather, add up and attend, for one DeiT-S block.

Run as ``python benchmarks/kernels.py [--batch 16] [--threads 2]``. Microseconds, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention as attention

N, K, C, HEADS = 196, 183, 384, 6


def microseconds(run: Callable[[], object], repeats: int = 200) -> float:
    """Return the median time of ``run``, after a warmup."""
    times = []
    for _ in range(repeats + 20):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[20:])


def cases(batch: int) -> dict[str, Callable[[], object]]:
    """Return the operations to time, by name."""
    x = torch.randn(batch, N, C)
    kept = torch.stack([torch.randperm(N)[:K] for _ in range(batch)])
    owner = torch.randint(0, K, (batch, N))
    rows, offset = x.view(-1, C), torch.arange(batch).unsqueeze(1)
    wide_kept, wide_owner = (t.unsqueeze(-1).expand(-1, -1, C) for t in (kept, owner))
    q, k, v = (torch.randn(batch, HEADS, N, C // HEADS) for _ in range(3))
    bias, matrix = torch.zeros(batch, 1, 1, N), torch.rand(batch, K, N)
    return {
        "select: gather, expanded index": lambda: x.gather(1, wide_kept),
        "select: take_along_dim": lambda: torch.take_along_dim(x, kept.unsqueeze(-1), 1),
        "select: flat index_select": lambda: rows.index_select(0, (kept + offset * N).view(-1)),
        "merge: scatter_add, expanded index": lambda: x.new_zeros(batch, K, C).scatter_add_(1, wide_owner, x),
        "merge: flat index_add": lambda: x.new_zeros(batch * K, C).index_add_(0, (owner + offset * K).view(-1), rows),
        "merge: product with the matrix": lambda: torch.bmm(matrix, x),
        "attention": lambda: attention(q, k, v),
        "attention with a (B, 1, 1, N) bias": lambda: attention(q, k, v, attn_mask=bias),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        for name, run in cases(args.batch).items():
            print(f"{name:40s} {microseconds(run):8.0f}")


if __name__ == "__main__":
    main()
