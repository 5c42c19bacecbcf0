"""Good files, spoiled: cut off, with flipped bits, emptied, replaced, or altered in their structure at any depth."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from foveate.files import sealed
from foveate.training import checkpoint

from .file_kinds import KINDS
from .judging import OTHER_CONTENT, Case, Wrong, nothing_half_written
from .kind import Kind
from .materials import Materials
from .values import DEEP

AREA = "files"
ALTERED: dict[str, Any] = {
    "null": None,
    "true": True,
    "0": 0,
    "-1": -1,
    "1e20": 1e20,
    "10**20": 10**20,
    "0.5": 0.5,
    "''": "",
    "'abc'": "abc",
    "'../x'": "../x",
    "x * 100000": "x" * 100_000,
    "[]": [],
    "[[1]]": [[1]],
    "{}": {},
    "{'a': {}}": {"a": {}},
}
DEEPLY = "nested 2,000 deep"
MARK = "altered-here"


def draw(number: random.Random, materials: Materials) -> Case:
    """One file, spoiled at random."""
    kind = number.choices(KINDS, [kind.weight for kind in KINDS])[0]
    seed = number.randrange(2**32)
    ways = ["cut", "bit", "bits", "empty", "garbage", "folder", "loop", "missing"]
    weights = [16, 22, 6, 3, 3, 3, 3, 3]
    if kind.structure:
        ways, weights = [*ways, "altered", "removed", "renamed", DEEPLY], [*weights, 46, 14, 10, 5]
    return case_of(kind, number.choices(ways, weights)[0], seed, materials)


def case_of(kind: Kind, way: str, seed: int, materials: Materials) -> Case:
    if way not in STRUCTURAL:
        return _case(kind, f"{way} (seed {seed})", lambda path: SPOILERS[way](path, random.Random(seed)), materials)
    number, data = random.Random(seed), _data_of(kind, materials)
    path = number.choice(list(_paths(data)))
    value = number.choice([name for name in ALTERED if kind.structure != "toml" or name != "null"])
    return _structural_case(kind, _change(kind, data, path, way, value), materials)


def changed_case(kind: Kind, words: str, materials: Materials) -> Case:
    """The case whose text ends in ``words``: ``model.library = []``, ``model removed``, or a way to spoil bytes."""
    if words in SPOILERS:
        return case_of(kind, words, 0, materials)
    data = _data_of(kind, materials)
    by_text = {".".join(map(str, path)): path for path in _paths(data)}
    where = max((text for text in by_text if words.startswith(f"{text} ")), key=len)
    path, rest = by_text[where], words.removeprefix(where).strip()
    way = rest if rest in STRUCTURAL else "altered"
    return _structural_case(kind, _change(kind, data, path, way, rest.removeprefix("= ")), materials)


def _structural_case(kind: Kind, change: Change, materials: Materials) -> Case:
    def spoil(path: Path) -> None:
        WRITERS.get(kind.structure, _write_text)(path, change.text)

    return _case(kind, change.words, spoil, materials, change.may_differ)


def _case(kind: Kind, what: str, spoil: Callable[[Path], Any], materials: Materials, may_differ: bool = False) -> Case:

    def run(folder: Path) -> None:
        path = kind.place(materials, folder)
        expected = _expected(kind, materials)
        spoil(path)
        with nothing_half_written(folder):
            found = kind.read(path, materials)
            if kind.exact and not _same(found, expected) and not may_differ:
                raise Wrong(OTHER_CONTENT)

    return Case(AREA, kind.name, f"{kind.name}: {what}", run)


# -- bytes


def _cut(path: Path, number: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: number.randrange(path.stat().st_size)])


def _flip(path: Path, number: random.Random, times: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(times):
        place = number.randrange(len(data) if number.random() < 0.6 else min(len(data), 300))
        data[place] ^= 1 << number.randrange(8)
    path.write_bytes(bytes(data))


def _replaced_by_folder(path: Path, number: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _replaced_by_loop(path: Path, number: random.Random) -> None:
    path.unlink()
    path.symlink_to(path)


SPOILERS: dict[str, Callable[[Path, random.Random], Any]] = {
    "cut": _cut,
    "bit": _flip,
    "bits": lambda path, number: _flip(path, number, 20),
    "empty": lambda path, number: path.write_bytes(b""),
    "garbage": lambda path, number: path.write_bytes(number.randbytes(2000)),
    "folder": _replaced_by_folder,
    "loop": _replaced_by_loop,
    "missing": lambda path, number: path.unlink(),
}
STRUCTURAL = ("altered", "removed", "renamed", DEEPLY)


# -- structure


@dataclass(frozen=True)
class Change:
    text: str
    words: str
    may_differ: bool
    """Whether the altered file may be a good one that says something else."""


def _data_of(kind: Kind, materials: Materials) -> Any:
    """The good file as plain data, read anew."""
    folder = materials.root / ".texts" / kind.name.replace(" ", "-")
    if not folder.exists():
        folder.mkdir(parents=True)
        shutil.copy(kind.place(materials, folder), folder / "good")
    if kind.structure == "checkpoint":
        with safe_open(folder / "good", "pt") as file:
            return json.loads(file.metadata()["values"])
    text = (folder / "good").read_text(encoding="utf-8")
    if kind.structure == "toml":
        return tomllib.loads(text)
    data = json.loads(text)
    if kind.structure == "sealed":
        data.pop("checksum")
    return data


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_sealed(path: Path, text: str) -> None:
    with contextlib.suppress(RecursionError):  # nobody can seal it
        text = json.dumps(sealed(json.loads(text)))
    _write_text(path, text)


def _write_checkpoint(path: Path, text: str) -> None:
    with safe_open(path, "pt") as file:
        header, names = file.metadata(), file.keys()
        tensors = {name: file.get_tensor(name) for name in names}
    save_file(tensors, path, header | {"values": text, "checksum": checkpoint.checksum_of(tensors, text)})


WRITERS: dict[str, Callable[[Path, str], None]] = {"sealed": _write_sealed, "checkpoint": _write_checkpoint}
"""How altered text is written where a checksum must fit it."""


def _change(kind: Kind, data: Any, path: tuple[Any, ...], way: str, value: str) -> Change:
    """Alter ``data`` at ``path``; ``value`` names one of ``ALTERED``."""
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    where, old = ".".join(map(str, path)), holder[path[-1]]
    if way == DEEPLY:
        holder[path[-1]] = MARK
        deep = "[" * DEEP + "]" * DEEP
        return Change(_written(kind, data).replace(f'"{MARK}"', deep), f"{where} {DEEPLY}", False)
    if way == "altered":
        holder[path[-1]] = ALTERED[value]
        similar = _sort(ALTERED[value]) == _sort(old) or old is None
        return Change(_written(kind, data), f"{where} = {value}", similar)
    kept = holder.pop(path[-1])
    if way == "renamed" and isinstance(holder, dict):
        holder["nonsense"] = kept
    return Change(_written(kind, data), f"{where} {way}", True)


def _sort(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _paths(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in plain data, at any depth."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from _paths(value, (*before, key))


def _written(kind: Kind, data: Any) -> str:
    return _toml(data) if kind.structure == "toml" else json.dumps(data)


def _toml(data: dict[str, Any]) -> str:
    """Plain data as TOML, all of it in inline tables."""
    return "\n".join(f"{json.dumps(key)} = {_toml_value(value)}" for key, value in data.items()) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value)


# -- what a good file reads as


_EXPECTED: dict[tuple[str, str], Any] = {}


def _expected(kind: Kind, materials: Materials) -> Any:
    """What the good file reads as, read once."""
    key = (str(materials.root), kind.name)
    if kind.exact and key not in _EXPECTED:
        folder = materials.root / ".good" / kind.name.replace(" ", "-")
        folder.mkdir(parents=True)
        _EXPECTED[key] = kind.read(kind.place(materials, folder), materials)
    return _EXPECTED.get(key)


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, torch.Tensor):
        return isinstance(expected, torch.Tensor) and torch.equal(found, expected)
    return bool(found == expected)
