"""Files that are whole or not there: full disks, killed writers, and locks between processes."""

import ast
import errno
import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest

import foveate
from foveate import files
from foveate.files import LOCK, CannotWrite, FolderInUse, exclusive_lock, replacing, write_text, write_texts

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
STEPS = {
    "folder": (files.Path, "mkdir"),
    "open": (files.Path, "open"),
    "lock": (files.os, "open"),
    "flush": (files.os, "fsync"),
    "rename": (files.Path, "replace"),
}
FORK = multiprocessing.get_context("fork")


def full_once(patch, place, name):
    """Let the first call fail as on a full disk."""
    real, calls = getattr(place, name), []

    def fail(*args, **named):
        calls.append(name)
        if len(calls) == 1:
            raise FULL
        return real(*args, **named)

    patch.setattr(place, name, fail)


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_at_any_step_leaves_all_files_as_they_were(tmp_path, monkeypatch, step):
    texts = {tmp_path / name: name for name in ("page", "table", "results")}
    write_texts(texts)
    with monkeypatch.context() as patch:
        full_once(patch, *STEPS[step])
        with pytest.raises(CannotWrite, match=r"results cannot be written: No space left on device\. Free some space"):
            write_texts(dict.fromkeys(texts, "new"))
    assert {path: path.read_text() for path in tmp_path.iterdir()} == texts


def test_other_reasons_are_named_without_advice_about_space(tmp_path):
    with pytest.raises(CannotWrite, match=r"^\S*nowhere/x cannot be written: No such file or directory\.$"):
        write_text(tmp_path / "nowhere" / "x", "")


def _write_and_wait(path, begun, go_on):
    with replacing(path) as temporary:
        temporary.write_text("theirs")
        (temporary.parent / ".tmpAbCdEf").touch()  # as safetensors does
        begun.set()
        go_on.wait()


@pytest.fixture
def writer(tmp_path):
    """A process that is about to write ``tmp_path / "x"`` and waits."""
    begun, go_on = FORK.Event(), FORK.Event()
    process = FORK.Process(target=_write_and_wait, args=(tmp_path / "x", begun, go_on))
    process.start()
    assert begun.wait(60)
    yield process, go_on
    process.kill()
    process.join()


def test_a_writer_at_work_is_left_alone(tmp_path, writer):
    write_text(tmp_path / "x", "ours")
    process, go_on = writer
    go_on.set()
    process.join()
    assert process.exitcode == 0
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "theirs")]


def test_what_a_killed_writer_left_is_removed_by_the_next_success(tmp_path, writer):
    process, _ = writer
    process.kill()
    process.join()
    assert [path.name for path in tmp_path.iterdir()] != []
    (tmp_path / ".x-0123abcd.tmp").touch()  # as earlier versions left it
    (tmp_path / ".y-0123abcd.tmp").touch()  # of another file
    write_text(tmp_path / "x", "ours")
    assert {path.name for path in tmp_path.iterdir()} == {"x", ".y-0123abcd.tmp"}


def _hold(folder, begun):
    with exclusive_lock(folder, "foveate train"):
        child = os.fork()
        if not child:  # like a data worker, which outlives its run for some seconds
            os.setsid()
            signal.pause()
        begun.put(child)
        signal.pause()


def test_a_second_process_is_refused_until_the_first_one_ends_however_that_is(tmp_path):
    begun = FORK.Queue()
    holder = FORK.Process(target=_hold, args=(tmp_path, begun))
    holder.start()
    worker = begun.get(timeout=60)
    try:
        with pytest.raises(FolderInUse, match=rf"foveate train, process {holder.pid} on {files.socket.gethostname()}"):
            exclusive_lock(tmp_path, "foveate train").__enter__()
        holder.kill()
        holder.join()
        assert (tmp_path / LOCK).exists(), "its file is still there"
        with exclusive_lock(tmp_path, "foveate train"):
            assert f"process {os.getpid()} on" in (tmp_path / LOCK).read_text()
    finally:
        os.kill(worker, signal.SIGKILL)


WRITERS = {"write_text", "write_bytes", "save_file", "savefig", "touch"}
"""Calls that write a file wherever they occur; ``open`` and ``save`` are looked at below."""


MODE = re.compile(r"[wax][bt]?\+?[bt]?|r[bt]?\+[bt]?")


def writing_calls(tree):
    """Calls that write to a file that is not a temporary one of ``replacing``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        words = [arg.value for arg in ast.walk(node) if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        first = ast.unparse(node.args[0]) if node.args else ""
        writes = name in WRITERS or (name == "open" and any(map(MODE.fullmatch, words)))
        own = isinstance(node.func, ast.Name) and name in ("write_text", "write_texts")  # those of files.py
        if writes and not own and first not in ("temporary", "held"):
            yield f"{node.lineno}: {ast.unparse(node)[:60]}"


def test_nothing_is_written_but_by_files_py():
    root = Path(foveate.__file__).parent
    found = {
        f"{path.relative_to(root)}:{call}"
        for path in sorted(root.rglob("*.py"))
        if path.name != "files.py"
        for call in writing_calls(ast.parse(path.read_text(encoding="utf-8")))
    }
    allowed = {call for call in found if call.startswith("report/compare/saving.py") and "probe.touch" in call}
    assert found - allowed == set()
