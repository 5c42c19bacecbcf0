"""``python -m tests.fuzz``: draw bad input by a seed, and count what the library does with it.

    python -m tests.fuzz --cases 2000 --seed 0                       a table by area, and failures by cause
    python -m tests.fuzz --cases 2000 --seed 0 --csv results/fuzz.csv
    python -m tests.fuzz --only calls --number 17 --seed 0           one case again, with its traceback

Exits with 1 if a case fails.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no case may reach for the network
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as in conftest.py, before torch loads

import torch

from foveate.evaluation.environment import describe_environment

from .drawing import AREAS, draw_case
from .judging import Verdict, judge
from .materials import Materials


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many, shared out over the areas; default: 2000")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--only", choices=AREAS, action="append", help="an area; may be given several times")
    parser.add_argument("--number", type=int, help="one case, by the number that is printed with a failure")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the counts there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    areas = args.only or list(AREAS)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        materials = Materials(Path(folder))
        verdicts = run_all(areas, args.cases, args.seed, args.number, materials)
    print_failures(verdicts)
    rows = table(verdicts)
    print("\n".join("  ".join(f"{cell!s:>9}" for cell in row) for row in rows))
    if args.csv:
        record(args.csv, rows, args.seed)
    return 1 if any(verdict.failed for _, verdict in verdicts) else 0


def run_all(
    areas: Sequence[str], cases: int, seed: int, number: int | None, materials: Materials
) -> list[tuple[int, Verdict]]:
    """Every verdict with the number of its case."""
    share = sum(AREAS[area] for area in areas)
    found: list[tuple[int, Verdict]] = []
    for area in areas:
        start = time.monotonic()
        numbers = [number] if number is not None else range(round(cases * AREAS[area] / share))
        for index in numbers:
            verdict = judge(draw_case(area, seed, index, materials))
            found.append((index, verdict))
            if number is not None:
                print(f"{verdict.case.text}\n{verdict.cause or 'passed'}\n{verdict.detail}")
            elif (index + 1) % 100 == 0:
                print(f"{area}: {index + 1} cases, {time.monotonic() - start:.0f} s", file=sys.stderr)
    return found


def print_failures(verdicts: Sequence[tuple[int, Verdict]]) -> None:
    """Causes, the most frequent first, each with up to three calls."""
    failed = [(index, v) for index, v in verdicts if v.failed]
    causes = Counter((v.case.area, v.cause.splitlines()[0]) for _, v in failed)
    for (area, cause), times in causes.most_common():
        print(f"\n{times} x {area}: {cause}")
        same = [(i, v) for i, v in failed if (v.case.area, v.cause.splitlines()[0]) == (area, cause)]
        for index, v in same[:3]:
            more = " ".join([*v.cause.splitlines()[1:], v.detail])
            print(f"    [{index}] {v.case.text[:300]}\n        {more[:220]}")
    print()


def table(verdicts: Sequence[tuple[int, Verdict]]) -> list[list[object]]:
    """Cases, passed and failed, by area."""
    rows: list[list[object]] = [["area", "cases", "passed", "failed"]]
    for area in AREAS:
        own = [v for _, v in verdicts if v.case.area == area]
        if own:
            failed = sum(v.failed for v in own)
            rows.append([area, len(own), len(own) - failed, failed])
    return rows


def record(path: Path, rows: list[list[object]], seed: int) -> None:
    """Write a results file; see results/README.md."""
    machine = describe_environment(torch.device("cpu"), torch.float32)
    cases = sum(int(str(row[1])) for row in rows[1:])
    header = {
        "command": f"python -m tests.fuzz --cases {cases} --seed {seed}",
        "machine": f"{machine.cpu}; cores: {machine.cores}, threads: {machine.threads}",
        "date": date.today().isoformat(),
        "versions": f"foveate {machine.foveate}, torch {machine.torch}, timm {machine.timm}; {machine.dtype}",
        "sample": f"{cases} cases of bad input, seed {seed}",
    }
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in header.items())
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
