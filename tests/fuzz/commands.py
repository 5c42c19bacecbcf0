"""Every command with wrong options, values, files and folders, run in this process."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import foveate_cli.main as cli

from .judging import Case, Wrong, check_unchanged, contents, fault_of, is_temporary
from .materials import Materials

AREA = "commands"
BAD_INPUT = 2

WORDS = (
    "",
    "abc",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e20",
    "1.5",
    "0x10",
    "None",
    "true",
    "[1,2]",
    "{}",
    "💥",
    "x" * 5000,
    "a b",
)
PLACES = (
    "missing",
    "missing/deeper",
    "empty",
    "garbage",
    "folder",
    "loop",
    "/dev/null",
    "/proc",
    "saved",
    "labels.csv",
    "",
)
NAMES = (
    "abc",
    "",
    "hf:",
    "hf:missing",
    "hf:saved",
    "torchvision:",
    "torchvision:abc",
    "timm:",
    "hf-hub:a/b",
    "💥",
    "vit",
    "resnet18",
    "../..",
)
NUMBERS = tuple(word for word in WORDS if word not in ("1.5"))


@dataclass(frozen=True)
class Option:
    """An option and values that it must refuse."""

    name: str
    bad: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A command that works, and what may be spoiled of it."""

    good: tuple[str, ...]
    """Words; those in braces are files of the materials."""
    options: tuple[Option, ...]
    positions: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Places in ``good`` with words that must be refused there."""
    weight: float = 1.0


def _not(values: tuple[str, ...], *good: str) -> tuple[str, ...]:
    return tuple(value for value in values if value not in good)


_METHODS = (
    "abc",
    "",
    "tome:",
    "tome:r=8",
    "tome:carry",
    "tome:proportional_attention=maybe",
    "evit:fuse=2",
    "token-pooling:iterations=-1",
    "tome,evit",
    ":",
    "ward:rounds=x",
    "x" * 5000,
)
_METHODS = _not(_METHODS, "tome:")
_SHARES = _not(WORDS, "1")
_SCHEDULES = (
    Option("--budget", (*_SHARES, "150%", "0.0001")),
    Option("--keep-rate", (*_SHARES, "70")),
    Option("--keep", (*_not(WORDS, "{}"), "3:1:2", "9:4", "1:-4", "1:4,1:3", "1:99", "1,2")),
    Option("--remove", (*_not(NUMBERS, "0"), "99999999999999999999999999x")),
    Option("--schedule", _not(PLACES)),
)
_MODEL = (
    Option("--image-size", (*_not(WORDS, ""), "17", "0x0", "3x16", "1x16x16", "99999999x99999999", "")),
    Option("--weights", _not(PLACES, "")),
)
_DATA = (
    Option(
        "--data",
        (
            *_not(PLACES, "labels.csv"),
            "hf:missing",
            "wds:missing.tar",
            "wds:{0..}",
            "wds:garbage",
            "torchvision:abc",
            "torchvision:",
            "scenes:abc",
            "http://",
            "ftp://a/b.tar",
        ),
    ),
    Option("--split", (*_not(WORDS, ""), "test")),
    Option("--limit", NUMBERS),
    Option("--workers", _not(NUMBERS, "0")),
    Option("--max-broken", (*_not(WORDS, "0", "1.5"), "1.5", "2")),
    Option("--seed", _not(NUMBERS, "0", "-1")),
    Option("--classes", _not(PLACES, "")),
)
_RUN = (Option("--batch-size", NUMBERS), Option("--device", (*_not(WORDS), "cuda:99", "tpu", "meta")))
_MODELS = (*NAMES, *_not(PLACES, "saved"))
_METHOD = Option("--method", _METHODS)

COMMANDS = {
    "cost": Command(
        ("cost", "{plain}", "--method", "tome", "--keep-rate", "0.6"),
        (*_SCHEDULES, *_MODEL, _METHOD, Option("--blocks", ("abc", "9", "1,1", "2,1", "-1", "1.5"))),
        ((1, _MODELS),),
        3,
    ),
    "speed": Command(
        ("speed", "{plain}", "--method", "tome", "--keep-rate", "0.6", "--batch-size", "1", "--seconds", "0.01"),
        (
            *_SCHEDULES,
            *_MODEL,
            _METHOD,
            *_RUN,
            Option("--threads", NUMBERS),
            Option("--seconds", _not(WORDS, "1.5", "1e20")),
            Option("--dtype", WORDS),
        ),
        ((1, _MODELS),),
        2,
    ),
    "eval": Command(
        ("eval", "{plain}", "--method", "tome", "--keep-rate", "0.6", "--data", "{pictures}", "--workers", "0"),
        (*_SCHEDULES, *_MODEL, _METHOD, *_DATA, *_RUN, Option("--task", (*WORDS, "segmentation"))),
        ((1, _MODELS), (7, ("missing", "empty", "garbage", "loop", "folder"))),
        3,
    ),
    "compare": Command(
        (
            "compare",
            "{plain}",
            "--methods",
            "topk",
            "--budgets",
            "0.7",
            "--data",
            "{pictures}",
            "--workers",
            "0",
            "--seconds",
            "0.001",
            "--limit",
            "2",
            "--out",
            "report",
        ),
        (
            *_MODEL,
            *_DATA,
            *_RUN,
            Option("--methods", _METHODS),
            Option("--budgets", (*_not(_SHARES), "0.0001")),
            Option("--seconds", _not(WORDS, "1.5", "1e20")),
            Option("--checkpoint", (*_not(PLACES, "saved"), "plain")),
            Option("--out", ("empty", "empty/deeper", "/proc/x", "/dev/null")),
        ),
        ((1, _MODELS),),
        1.5,
    ),
    "show": Command(
        ("show", "tokens", "{plain}", "{pictures}/val/dark/1.png", "--method", "tome", "--keep-rate", "0.6"),
        (
            *_SCHEDULES,
            *_MODEL,
            _METHOD,
            Option("--at", (*_not(WORDS, "0", "-1", "1"), "3", "-4")),
            Option("--channels", WORDS),
            Option("--stage", WORDS),
            Option("--out", ("folder", "missing/a.png", "a.txt", "a", "/proc/a.png", "/dev/null", "labels.csv/a.png")),
        ),
        (
            (1, ("abc", "x", "clusters")),
            (2, _MODELS),
            (3, ("missing", "empty", "garbage", "folder", "loop", "labels.csv", "/dev/null")),
        ),
        2,
    ),
    "train": Command(
        ("train", "{recipe}", "--data", "{pictures}", "--out", "out"),
        (
            Option("--data", (*_not(PLACES, "labels.csv"), "hf:missing", "wds:missing.tar", "torchvision:abc")),
            Option("--model", _not(_MODELS, "", "saved")),
            Option("--weights", _not(PLACES, "")),
            Option("--epochs", _not(WORDS, "0", "1e20", "true")),
            Option("--batch-size", _not(WORDS, "1e20", "true")),
            Option("--lr", _not(WORDS, "1.5", "1e20", "true")),
            Option("--workers", _not(WORDS, "0", "1e20")),
            Option("--seed", _not(WORDS, "0", "-1")),
            Option(
                "--set",
                (
                    "abc",
                    "=",
                    "a=b",
                    "optimizer.lr",
                    "optimizer.lr=abc",
                    "optimizer.abc=1",
                    "model.options=3",
                    "reduction.method=abc",
                    "schedule.epochs=-3",
                    "augmentation.scale=[1]",
                    "data.batch_size=1.5",
                    "optimizer.betas=[1,2,3]",
                    "optimizer.name=abc",
                    "objective.kind=abc",
                    "objective.smoothing=nan",
                    "data.task=abc",
                ),
            ),
            Option("--out", ("empty", "empty/deeper", "/proc/x", "/dev/null")),
        ),
        ((1, ("abc", "", "missing.toml", "empty", "folder", "garbage.toml", "empty.toml/x.toml", "💥")),),
        2,
    ),
    "models": Command(("models", "deepseek"), (), ((1, ("abc", "", "💥", "x" * 5000)),), 0.2),
    "methods": Command(("methods", "EViT"), (), ((1, ("abc", "", "💥", "x" * 5000)),), 0.4),
    "tables": Command(("tables", "hvt"), (Option("--seconds", WORDS),), ((1, ("abc", "", "💥", "x" * 5000)),), 0.4),
    "recipes": Command(
        ("recipes", "deit"), (), ((1, ("abc", "", "missing.toml", "garbage.toml", "folder", "💥")),), 0.6
    ),
}


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
    if kind == "missing" and len(words) > 1 and words[0] in ("cost", "speed", "eval", "show", "train"):
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
    schedules = [o.name for o in _SCHEDULES]
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
        known = {"plain": "plain", "pictures": str(materials.pictures), "recipe": "recipe.toml"}
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
