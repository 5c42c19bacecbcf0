"""Files that are whole or not there: writes in one step, checksums, and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

FORMAT = 1
LOCK = ".foveate.lock"
LARGEST_JSON = 64 * 2**20
"""Bytes; every JSON file of ours is far smaller."""
TEMPORARY = re.compile(r"\..+-[0-9a-f]{8}\.tmp")
"""Names of files that are being written, or that a killed process left behind."""


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no file of a user has."""
    return path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to a temporary file, which then becomes ``path`` in one step; on any error nothing is left.

    Raises:
        OSError: if it cannot be written, for example because the disk is full. ``path`` is then as before.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        force_to_disk(temporary)
        temporary.replace(path)
    except SafetensorError as error:  # which hides the error of the system in its text
        full = "No space left" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, f"{path} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: all of it or nothing, also when the machine goes down."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
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


def read_json(path: Path, formats: Sequence[int] = (FORMAT,)) -> dict[str, Any]:
    """The content of a file of ours.

    Raises:
        ValueError: if it is too large, not JSON, nested too deeply, or of another format.
    """
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; files of foveate have {LARGEST_JSON} at most.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path} is not valid JSON: {reason}.") from error
    found = data.get("format") if isinstance(data, dict) else None
    if isinstance(found, bool) or found not in formats:
        raise ValueError(f"{path} has format {found!r}; this foveate reads {', '.join(map(str, formats))}.")
    return dict(data)


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
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{job}, process {os.getpid()} on {socket.gethostname()}, since {since}".encode(), 0)
        yield
    finally:
        _give_up(descriptor, path)


def _take_lock(path: Path, wait: bool) -> int | None:
    """The descriptor of a lock file that is held now; None where somebody else holds it and we do not wait.

    Without ``fcntl`` (Windows) there is no lock.
    """
    try:
        import fcntl
    except ImportError:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)  # the holder before removed this file while we waited


def _give_up(descriptor: int, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)  # while it is still held
    os.close(descriptor)


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:200] or "another process"
    except OSError:
        return "another process"
