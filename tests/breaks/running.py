"""Try breaks: each in a copy of the source, by pytest in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

import pytest

from .copies import ROOT
from .entry import Break
from .staleness import reasons

CAUGHT, SURVIVED, STALE = "caught", "survived", "stale"
PATIENCE = 600
"""Seconds until a break that leads to an endless loop is given up."""
FORK = multiprocessing.get_context("fork")  # children inherit the libraries that are imported already


class Verdict(NamedTuple):
    """Whether the tests notice a break."""

    words: str
    test: str = ""  # the first one that failed
    seconds: float = 0.0


@dataclass
class Trial:
    """A break that is being tried."""

    entry: Break
    copy: Path
    original: str
    process: ForkProcess
    answer: Connection
    begun: float = field(default_factory=time.monotonic)

    @property
    def overdue(self) -> bool:
        return time.monotonic() - self.begun > PATIENCE


def judge_all(
    entries: Sequence[Break], copies: Sequence[Path], tell: Callable[[Break, Verdict], None]
) -> dict[str, Verdict]:
    """Try every break, one at a time in each copy."""
    verdicts: dict[str, Verdict] = {}
    waiting, free, running = list(entries), list(copies), list[Trial]()

    def note(entry: Break, verdict: Verdict) -> None:
        verdicts[entry.name] = verdict
        tell(entry, verdict)

    while waiting or running:
        while waiting and free:
            entry = waiting.pop(0)
            if found := reasons(entry, ROOT):
                note(entry, Verdict(f"{STALE} ({'; '.join(found)})"))
            else:
                running.append(begin(entry, free.pop()))
        wait([trial.process.sentinel for trial in running], timeout=5)
        for trial in [trial for trial in running if trial.overdue or not trial.process.is_alive()]:
            running.remove(trial)
            free.append(trial.copy)
            note(trial.entry, end(trial))
    return verdicts


def begin(entry: Break, copy: Path) -> Trial:
    """Break the copy and start the tests."""
    path = copy / "src" / entry.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(entry.old, entry.new), encoding="utf-8")
    answer, asked = FORK.Pipe(duplex=False)
    process = FORK.Process(target=run_tests, args=(entry, copy, asked))
    process.start()
    asked.close()
    return Trial(entry, copy, original, process, answer)


def end(trial: Trial) -> Verdict:
    """Mend the copy; returns what the tests said."""
    late = trial.process.is_alive()
    if late:
        trial.process.kill()
    trial.process.join()
    (trial.copy / "src" / trial.entry.file).write_text(trial.original, encoding="utf-8")
    test = trial.answer.recv() if trial.answer.poll() else ""
    code, words = trial.process.exitcode, {pytest.ExitCode.OK: SURVIVED, pytest.ExitCode.TESTS_FAILED: CAUGHT}
    found = f"no answer in {PATIENCE} s" if late else words.get(code, f"{STALE} (pytest ended with {code})")
    return Verdict(found, test, time.monotonic() - trial.begun)


class FirstFailure:
    """A plugin of pytest that remembers the first test that failed."""

    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.test = self.test or report.nodeid.removeprefix("tests/")


def run_tests(entry: Break, copy: Path, answer: Connection) -> None:
    """In the child: run pytest on the copy alone."""
    use_only(copy)
    first = FirstFailure()
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *(f"tests/{test}" for test in entry.fails)]
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main([*arguments, *(["-k", entry.only] if entry.only else [])], plugins=[first])
    answer.send(first.test)
    sys.exit(int(code))


def use_only(copy: Path) -> None:
    """Put the copy first on the path, and keep nothing that is compiled from it."""
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    ours = {ROOT, ROOT / "src", ROOT / "tests"}
    others = [place for place in sys.path if place and Path(place).resolve() not in ours]
    sys.path = [str(copy / "src"), *others]
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "foveate", "foveate_cli")]:
        del sys.modules[name]
    for package in ("foveate", "foveate_cli"):
        spec = importlib.util.find_spec(package)
        if spec is None or copy not in Path(spec.origin or "").parents:
            raise RuntimeError(f"{package} would be imported from {spec and spec.origin}, not from the copy.")
