"""``python -m tests.breaks``: apply every break to a copy of the source, one at a time, and run the tests it names.

Exits with 1 where a break survives, or is stale: its text is no longer in the source, or its test is gone.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
from pathlib import Path

from .copies import ROOT, copy_tree
from .entry import Break
from .recording import record
from .running import CAUGHT, Verdict, judge_all
from .staleness import stale
from .table import BREAKS

HEAVY = ("torch", "timm", "transformers", "torchvision", "hypothesis")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.breaks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the names and what each break changes")
    parser.add_argument("--stale", action="store_true", help="only name entries that no longer fit source or tests")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this break; may be given several times")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="breaks tried at a time; default: 1")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write which test caught which break")
    args = parser.parse_args()
    unknown = set(args.only or ()) - {entry.name for entry in BREAKS}
    if unknown:
        parser.error(f"no such break: {', '.join(sorted(unknown))}")
    chosen = [entry for entry in BREAKS if not args.only or entry.name in args.only]
    if args.list:
        print("\n".join(f"{entry.name}: {entry.file}, {', '.join(entry.fails)}" for entry in chosen))
        return 0
    if args.stale:
        wrong = stale(chosen, ROOT)
        print("\n".join([*wrong, f"{len(chosen)} entries, {len(wrong)} complaints."]))
        return 1 if wrong else 0
    return run_all(chosen, max(1, args.jobs), args.csv)


def run_all(chosen: list[Break], jobs: int, csv_file: Path | None) -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    for name in HEAVY:  # once, for all the children that are forked below
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(number) / "foveate" for number in range(jobs)]
        for copy in copies:
            copy_tree(copy)
        verdicts = judge_all(chosen, copies, tell)
    wrong = {entry.name: verdicts[entry.name].words for entry in chosen if verdicts[entry.name].words != CAUGHT}
    print(f"{len(verdicts) - len(wrong)} of {len(verdicts)} breaks are caught.")
    for name, words in wrong.items():
        print(f"{words}: {name}")
    if csv_file is not None:
        record(csv_file, BREAKS, verdicts)
    return 1 if wrong else 0


def tell(entry: Break, verdict: Verdict) -> None:
    print(f"{verdict.words:9} {verdict.seconds:5.1f} s  {entry.name}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
