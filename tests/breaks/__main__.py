"""``python -m tests.breaks``: apply every break to a copy of the source, one at a time, and run the tests it names.

Exits with 1 where a break survives, or is stale: its text is no longer in the source, or its test is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.breaks.table import BREAKS, Break

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml")
HEAVY = ("torch", "timm", "transformers", "torchvision", "hypothesis")
CAUGHT, SURVIVED, STALE = "caught", "survived", "stale"
PATIENCE = 600


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.breaks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the names and what each break changes")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this break; may be given several times")
    args = parser.parse_args()
    unknown = set(args.only or ()) - {entry.name for entry in BREAKS}
    if unknown:
        parser.error(f"no such break: {', '.join(sorted(unknown))}")
    chosen = [entry for entry in BREAKS if not args.only or entry.name in args.only]
    if args.list:
        print("\n".join(f"{entry.name}: {entry.file}, {', '.join(entry.fails)}" for entry in chosen))
        return 0
    return run_all(chosen)


def run_all(chosen: list[Break]) -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    for name in HEAVY:  # once, for all the children that are forked below
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "foveate"
        copy_tree(copy)
        verdicts = {entry.name: tell(entry, judge(entry, copy)) for entry in chosen}
    wrong = {name: verdict for name, verdict in verdicts.items() if verdict != CAUGHT}
    print(f"{len(verdicts) - len(wrong)} of {len(verdicts)} breaks are caught.")
    for name, verdict in wrong.items():
        print(f"{verdict}: {name}")
    return 1 if wrong else 0


def copy_tree(target: Path) -> None:
    """The working tree without what was compiled from it."""
    target.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, target / name)


def judge(entry: Break, copy: Path) -> tuple[str, float]:
    """Whether the tests notice, and after how many seconds."""
    path, begun = copy / "src" / "foveate" / entry.file, time.monotonic()
    original = path.read_text(encoding="utf-8") if path.is_file() else ""
    if original.count(entry.old) != 1:
        return f"{STALE} (its text occurs {original.count(entry.old)} times in {entry.file})", 0.0
    path.write_text(original.replace(entry.old, entry.new), encoding="utf-8")
    try:
        code = in_child(entry, copy)
    finally:
        path.write_text(original, encoding="utf-8")
    words = {pytest.ExitCode.OK: SURVIVED, pytest.ExitCode.TESTS_FAILED: CAUGHT, None: f"no answer in {PATIENCE} s"}
    return words.get(code, f"{STALE} (pytest ended with {code})"), time.monotonic() - begun


def in_child(entry: Break, copy: Path) -> int | None:
    """The exit code of pytest in a process of its own, None where it did not end in time."""
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(entry, copy))
    child.start()
    child.join(PATIENCE)
    if child.is_alive():
        child.kill()
        child.join()
        return None
    return child.exitcode


def run_tests(entry: Break, copy: Path) -> None:
    """In the child: the copy comes first on the path, and nothing compiled is kept of it."""
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path = [str(copy / "src"), *(place for place in sys.path if place not in ("", str(ROOT), str(ROOT / "src")))]
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(
            ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *(f"tests/{t}" for t in entry.fails)]
        )
    sys.exit(int(code))


def tell(entry: Break, judged: tuple[str, float]) -> str:
    verdict, seconds = judged
    print(f"{verdict:9} {seconds:5.1f} s  {entry.name}", flush=True)
    return verdict


if __name__ == "__main__":
    raise SystemExit(main())
