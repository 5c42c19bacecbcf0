"""Files that are whole or not there: writes in one step, checksums, and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
LOCK = ".foveate.lock"
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
LARGEST_JSON = 64 * 2**20
"""Bytes; every JSON file of ours is far smaller."""
TEMPORARY = re.compile(r"\..+-[0-9a-f]{8}\.tmp")
"""Names of what is being written, or of what a killed process left behind."""


class CannotWrite(OSError):
    """A file could not be written, for example because the disk is full. What was there before is unchanged."""

    def __str__(self) -> str:
        return str(self.strerror)


def _cannot_write(path: Path, error: OSError | SafetensorError) -> CannotWrite:
    # safetensors hides the number of the system's error in its text
    full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
    number = errno.ENOSPC if full else getattr(error, "errno", None) or errno.EIO
    way_out = " Free some space, or choose another place." if full else ""
    reason = os.strerror(number) if full else getattr(error, "strerror", None) or error
    return CannotWrite(number, f"{path} cannot be written: {reason}.{way_out}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write one file in one step: ``replacing_all`` for a single path."""
    with replacing_all([path]) as (temporary,):
        yield temporary


@contextlib.contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Write files of one folder under other names, which become ``paths`` when all of them are on the disk.

    They are written into a folder of their own beside ``paths``, because libraries put temporary files there as well.
    On any error nothing is left. What killed writers of the same files left behind is removed after a success.

    Yields:
        Where to write, in the order of ``paths``.

    Raises:
        CannotWrite: if the system refuses it. All of ``paths`` are then as before.
    """
    last = paths[-1]
    if not last.name:
        raise ValueError(f"{str(last)!r} does not name a file. Write, for example, schedule.json.")
    try:
        with _workplace(last) as folder:
            temporaries = [folder / path.name for path in paths]
            yield temporaries
            for temporary in temporaries:
                force_to_disk(temporary)
            for temporary, path in zip(temporaries, paths, strict=True):
                temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise _cannot_write(last, error) from error
    remove_left_over(last.parent, re.escape(last.name))


@contextlib.contextmanager
def _workplace(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path``; its lock tells others that its writer is alive."""
    folder, descriptor = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp"), None
    try:
        while descriptor is None:
            folder.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # somebody took it for left over before it was locked
                descriptor = _take_lock(folder / LOCK, wait=False)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            _close(descriptor)


def remove_left_over(folder: Path, name: str = ".+") -> None:
    """Remove temporary files of killed writers, for files whose name matches ``name``; those in use stay."""
    pattern = re.compile(rf"\.{name}-[0-9a-f]{{8}}\.tmp")
    for path in [entry for entry in folder.iterdir() if pattern.fullmatch(entry.name)]:
        with contextlib.suppress(OSError):
            if not path.is_dir():  # of an earlier version
                path.unlink()
            elif (descriptor := _take_lock(path / LOCK, wait=False)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                _close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: all of it or nothing, also when the machine goes down."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write several files of one folder: all of them or none."""
    with replacing_all(list(texts)) as temporaries:
        for temporary, text in zip(temporaries, texts.values(), strict=True):
            with temporary.open("w", encoding="utf-8", newline="") as file:
                file.write(text)


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> str:
    """Write a safetensors file in one step, with the usual rights of a new file; returns its checksum."""
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, header)  # leaves a file that nobody else may read
        temporary.chmod(mode)
    return checksum(path)


def force_to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)


def checksum(path: Path) -> str:
    """BLAKE2b of a file's bytes, about 1 GB/s."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """``data`` with a checksum of itself, for a JSON file; ``unsealed`` is the inverse."""
    return {**data, "checksum": _data_checksum(data)}


def unsealed(data: dict[str, Any], path: Path, way_out: str) -> dict[str, Any]:
    """What was sealed.

    Raises:
        ValueError: if anything in it has changed since.
    """
    content = {key: value for key, value in data.items() if key != "checksum"}
    if data.get("checksum") != _data_checksum(content):
        raise ValueError(f"{path} is damaged or was edited: its checksum does not fit its content. {way_out}")
    return content


def _data_checksum(data: dict[str, Any]) -> str:
    plain = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(plain.encode(), digest_size=16).hexdigest()


def check_file(path: Path, expected: str | None, way_out: str) -> None:
    """Refuse a file whose bytes are not those that were written; None where nothing was noted.

    Raises:
        ValueError: if the checksum differs.
    """
    if expected is not None and (found := checksum(path)) != expected:
        raise ValueError(f"{path} is damaged: its checksum is {found}, {expected} was written. {way_out}")


def parse_json(text: str | bytes, where: object) -> Any:
    """The value of a JSON text of anybody.

    Raises:
        ValueError: if it is not JSON, not UTF-8, or nested too deeply; it names ``where``.
    """
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:  # besides JSON's own: wrong bytes, and numbers of thousands of digits
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{where} is not valid JSON: {reason}.") from error


def read_json(path: Path, formats: Sequence[int] = (FORMAT,)) -> dict[str, Any]:
    """The content of a file of ours.

    Raises:
        ValueError: if it is too large, not JSON, nested too deeply, or of another format.
    """
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; files of foveate have {LARGEST_JSON} at most.")
    data = parse_json(path.read_bytes(), path)
    found = data.get("format") if isinstance(data, dict) else None
    if isinstance(found, bool) or found not in formats:
        raise ValueError(f"{path} has format {found!r}; this foveate reads {', '.join(map(str, formats))}.")
    return dict(data)


def check_writable(folder: Path) -> None:
    """Raise a ValueError before the work if ``folder`` cannot be written; leaves nothing behind."""
    missing: list[Path] = []
    probe = folder / f".foveate-{secrets.token_hex(4)}"
    try:
        missing += [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise ValueError(f"Cannot write to the folder {folder}: {error.strerror}. Choose another one.") from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
            for place in missing:
                place.rmdir()


@contextlib.contextmanager
def created_folder(folder: Path) -> Iterator[None]:
    """Create ``folder`` for what is written inside; after an error the new folders are removed, if they are empty."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


class FolderInUse(ValueError):
    """Another process works in this folder."""


@contextlib.contextmanager
def waiting_lock(folder: Path) -> Iterator[None]:
    """Let one writer at a time work in ``folder``; others wait. It ends with the process, however that ends."""
    descriptor = _take_lock(folder / LOCK, wait=True)
    assert descriptor is not None
    try:
        yield
    finally:
        _give_up(descriptor, folder / LOCK)


@contextlib.contextmanager
def exclusive_lock(folder: Path, job: str) -> Iterator[None]:
    """Hold ``folder`` for a long job; a second holder is refused, with the host and process of the first.

    Raises:
        FolderInUse: if another process holds it. The lock of a process that ended is not in the way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    descriptor = _take_lock(path, wait=False)
    if descriptor is None:
        raise FolderInUse(f"{folder} is in use by {_holder(path)}. Wait until it ends, or name another folder.")
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = f"{job}, process {os.getpid()} on {socket.gethostname()}, since {since}"
        with contextlib.suppress(OSError):  # a full disk; the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        _give_up(descriptor, path)


def _take_lock(path: Path, wait: bool) -> int | None:
    """The descriptor of a lock file that is held now; None where somebody else holds it and we do not wait.

    Where there are no locks (Windows, some network disks), everybody gets one.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _HELD.add(descriptor)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            _close(descriptor)
            return None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                _close(descriptor)
                raise
        with contextlib.suppress(FileNotFoundError):
            if fcntl is None or os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        _close(descriptor)  # the holder before removed this file while we waited


def _give_up(descriptor: int, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)  # while it is still held
    _close(descriptor)


def _close(descriptor: int) -> None:
    _HELD.discard(descriptor)
    os.close(descriptor)


def _close_inherited() -> None:
    """In a new process: a data worker that outlives its run for some seconds must not hold the run's folder."""
    while _HELD:
        os.close(_HELD.pop())


_HELD: set[int] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:200] or "another process"
    except OSError:
        return "another process"
