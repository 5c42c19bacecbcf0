"""Runs one case in a folder of its own and judges what came of it.

A case passes if it ends in a correct result or in one error of our own: raised by a line of foveate that names what is
wrong, by Python's own check of a call's arguments, or by the operating system with the name of a file. After an error
the folder holds what it held before, and the model is as it was and works.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import signal
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 20.0
"""Seconds that a case may take; the slowest takes two or three on a free machine."""
OURS = ("/foveate/", "/foveate_cli/")
OWN_KINDS = (ValueError, TypeError, IndexError, OSError)
"""PlanError, DataError and UnsupportedModel are among them."""
CLEAR = re.compile(
    r"expected str, bytes or os.PathLike object, not |got an unexpected keyword argument 'nonsense'|embedded null byte"
    r"|dropout probability has to be between 0 and 1|argument should be a str object or an os.PathLike object"
)
"""Messages of Python's that name what is wrong, wherever they arise."""
OTHER_CONTENT, MODEL_CHANGED = "read as something else, without a word", "the given model is changed after an error"
CHECKED_BY_CALLER = ("BrokenMethod",)
"""``check_method`` raises it, an AssertionError, for a law that is broken."""


class Hung(BaseException):
    """A case that took too long. Not an Exception, so that nothing but the judge catches it."""


class Wrong(Exception):
    """A fault that a case found itself; the message is its cause."""


@dataclass(frozen=True)
class Case:
    """One call with bad input."""

    area: str
    target: str
    """The function, command or kind of file."""
    text: str
    """The exact call, for people."""
    run: Callable[[Path], None]
    """Runs in the folder that it is given. Returns if all is well, and raises ``Wrong`` or what the call raises."""


@dataclass(frozen=True)
class Verdict:
    case: Case
    cause: str = ""
    """Empty if the case passed."""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.cause)


def judge(case: Case) -> Verdict:
    """Run ``case`` in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, chdir(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        try:
            with _time_limit(LIMIT):
                case.run(folder)
        except Wrong as fault:
            return Verdict(case, str(fault))
        except Hung:
            return Verdict(case, f"hangs: more than {LIMIT:g} s")
        except Exception as error:
            return Verdict(case, fault_of(error), _detail(error))
    return Verdict(case)


def fault_of(error: BaseException) -> str:
    """What is wrong with an error, as the cause under which it is counted; empty if it is one of ours."""
    if type(error).__name__ in CHECKED_BY_CALLER:
        return ""
    place = _place(error)
    if not isinstance(error, OWN_KINDS):
        return f"raw {type(error).__name__} at {place}"
    if not str(error).strip():
        return f"empty {type(error).__name__} at {place}"
    if _is_deliberate(error):
        return ""
    return f"raw {type(error).__name__} at {place}"


def _is_deliberate(error: BaseException) -> bool:
    """Whether a line of ours raised it, Python refused the arguments of the call itself, or a file is named."""
    if isinstance(error, OSError) and error.filename is not None:
        return True
    if CLEAR.search(str(error)):
        return True
    frames = list(_frames(error))
    last = frames[-1]
    if not any(map(_is_ours, frames)):  # the call did not even begin
        return isinstance(error, TypeError)
    if not _is_ours(last):
        return False
    line = linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno).strip()
    return line.startswith(("raise ", "raise_"))


def _place(error: BaseException) -> str:
    """The last line of ours on the way to the error."""
    ours = [frame for frame in _frames(error) if _is_ours(frame)]
    if not ours:
        return "the call"
    code = ours[-1].tb_frame.f_code
    file = code.co_filename.replace(os.sep, "/")
    return f"{file[file.rindex('/foveate') + 1 :]}:{code.co_qualname.removesuffix('.<locals>')}"


def _frames(error: BaseException) -> Iterator[types.TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(frame: types.TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename.replace(os.sep, "/")
    return "site-packages" not in file and "/src/" in file and any(part in file for part in OURS)


def _detail(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def contents(folder: Path) -> dict[str, str]:
    """What a folder holds: every name in it, with a digest of files."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place) / name
            readable = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = hashlib.md5(path.read_bytes()).hexdigest() if readable else "-"
    return found


@contextmanager
def nothing_half_written(folder: Path) -> Iterator[None]:
    """Raise ``Wrong`` where an error leaves other files than there were, or a success leaves temporary ones."""
    before = contents(folder)
    try:
        yield
    except Wrong:
        raise
    except Exception as error:
        if fault := fault_of(error):
            raise Wrong(f"{fault}\n{_detail(error)}") from error
        check_unchanged(before, folder)
        raise
    left = [name for name in contents(folder).keys() - before.keys() if is_temporary(name)]
    if left:
        raise Wrong(f"a temporary file is left after a success\n{left[0]}")


def check_unchanged(before: dict[str, str], folder: Path) -> None:
    after = contents(folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise Wrong(f"files are changed after an error\n{', '.join(changed[:4])}")


def is_temporary(name: str) -> bool:
    last = Path(name).name
    return last.endswith(".tmp") or (last.startswith(".") and "foveate" in last)
