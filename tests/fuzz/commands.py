"""Every command with wrong options, values, files and folders, run in this process."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import foveate_cli.main as cli

from .command_table import COMMANDS, SCHEDULES, Command
from .judging import Case, Wrong, check_unchanged, contents, fault_of, is_temporary
from .materials import Materials

AREA = "commands"
BAD_INPUT = 2


def draw(number: random.Random, materials: Materials) -> Case:
    """One command line, spoiled at random."""
    command = number.choices(list(COMMANDS.values()), [c.weight for c in COMMANDS.values()])[0]
    return case_of(command.good[0], _spoil(command, number), materials)


def _spoil(command: Command, number: random.Random) -> list[str]:
    words = list(command.good)
    kind = number.choices(("option", "position", "unknown", "missing", "empty", "twice"), (62, 18, 6, 6, 4, 4))[0]
    if kind == "option" and command.options:
        option = number.choice(command.options)
        return _with(words, option.name, number.choice(option.bad))
    if (
        kind == "missing"
        and len(words) > 1
        and words[0] in ("cost", "speed", "eval", "show", "train", "search", "export")
    ):
        return [words[0], *words[2:]] if words[0] != "show" else words[:2]
    if kind == "empty" and len(words) > 2:
        options = [i for i, word in enumerate(words) if word.startswith("--") and word not in ("--batch-size",)]
        return words[: number.choice(options) + 1]
    if kind == "twice" and "--keep-rate" in words:
        return [*words, "--budget", "0.5"]
    if kind == "position" and command.positions:
        place, bad = number.choice(command.positions)
        words[place] = number.choice(bad)
        return words
    return [*words, number.choice(("--nonsense", "--nonsense=1", "-z", "--Method", "--")), "extra"]


def _with(words: list[str], option: str, value: str) -> list[str]:
    """The words with another value of an option."""
    schedules = [o.name for o in SCHEDULES]
    if option in schedules and "--keep-rate" in words:
        place = words.index("--keep-rate")
        words = words[:place] + words[place + 2 :]
    if option in words:
        place = words.index(option)
        return [*words[: place + 1], value, *words[place + 2 :]]
    return [*words, option, value]


def case_of(name: str, words: list[str], materials: Materials) -> Case:
    def run(folder: Path) -> None:
        materials.copied_to(folder)
        spoiled_places(folder)
        known = {"plain": "plain", "saved": "saved", "pictures": str(materials.pictures), "recipe": "recipe.toml"}
        argv = [_filled(word, known) for word in words]
        before = contents(folder)
        code, output, error = run_command(argv)
        if error is not None and (fault := fault_of(error)):
            raise Wrong(f"{fault}\n{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        _judge_output(code, output, before, folder)

    shown = " ".join(word if word and " " not in word else repr(word) for word in words)
    return Case(AREA, name, f"foveate {shown}"[:400], run)


def _filled(word: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def spoiled_places(folder: Path) -> None:
    """The places that ``PLACES`` names."""
    (folder / "empty").touch()
    (folder / "empty.toml").touch()
    for name in ("garbage", "garbage.toml"):
        (folder / name).write_bytes(bytes(range(256)) * 4)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")


def run_command(argv: list[str]) -> tuple[int | None, str, Exception | None]:
    """The exit code, stderr, and the exception behind an error."""
    seen: list[Exception] = []

    def watched(error: Exception, judged: Any = cli._is_user_error) -> bool:
        seen.append(error)
        return judged(error)

    errors = io.StringIO()
    with _quiet(errors), mock.patch.object(cli, "_is_user_error", watched):
        try:
            code = cli.main(argv)
        except Exception as error:
            return None, errors.getvalue(), error
    return code, errors.getvalue(), seen[0] if seen else None


@contextlib.contextmanager
def _quiet(errors: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        yield


def _judge_output(code: int | None, output: str, before: dict[str, str], folder: Path) -> None:
    lines = [line for line in output.splitlines() if line.strip()]
    if "Traceback" in output:
        raise Wrong("a traceback is printed")
    if code == 0:
        raise Wrong("accepted without a word")
    if code != BAD_INPUT:
        raise Wrong(f"exit code {code}")
    if len(lines) != 1 or not lines[0].startswith("foveate: "):
        raise Wrong(f"stderr has other lines than the error\n{' | '.join(lines)[:200]}")
    if len(lines[0]) > 2000:
        raise Wrong("a message of more than 2,000 characters")
    check_unchanged(before, folder)
    assert not any(map(is_temporary, contents(folder).keys() - before.keys()))
