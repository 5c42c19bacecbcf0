"""Every command that works, and the values that each of its options must refuse."""

from __future__ import annotations

from dataclasses import dataclass

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
SCHEDULES = (
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
        (*SCHEDULES, *_MODEL, _METHOD, Option("--blocks", ("abc", "9", "1,1", "2,1", "-1", "1.5"))),
        ((1, _MODELS),),
        3,
    ),
    "speed": Command(
        ("speed", "{plain}", "--method", "tome", "--keep-rate", "0.6", "--batch-size", "1", "--seconds", "0.01"),
        (
            *SCHEDULES,
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
        (*SCHEDULES, *_MODEL, _METHOD, *_DATA, *_RUN, Option("--task", (*WORDS, "segmentation"))),
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
            *SCHEDULES,
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
    "search": Command(
        (
            *("search", "{plain}", "--for", "macs<=0.7", "--method", "topk", "--data", "{pictures}", "--workers", "0"),
            *("--split", "all", "--trials", "1", "--seconds", "0.01", "--out", "found.json"),
        ),
        (
            *_MODEL,
            *_DATA,
            *_RUN,
            _METHOD,
            Option("--optimize", (*WORDS, "latency", "memory")),
            Option("--for", (*WORDS, "macs<=0", "macs>=0.5", "agreement>=2", "cosine>=0.9", "latency<=1", "speed>=2")),
            Option("--trials", NUMBERS),
            Option("--seconds", _not(WORDS, "1.5", "1e20")),
            Option("--out", ("folder", "empty/a.json", "/proc/x", "/dev/null/x")),
        ),
        ((1, _MODELS),),
        1.2,
    ),
    "export": Command(
        ("export", "{plain}", "--method", "tome", "--keep-rate", "0.6", "--to", "onnx", "--out", "fast"),
        (
            *SCHEDULES,
            *_MODEL,
            _METHOD,
            Option("--to", (*WORDS, "onnx,openvino", "tensorrt")),
            Option("--quantize", (*WORDS, "int4")),
            Option("--with-preprocessing", (*WORDS, "0x0", "1x1x1x1")),
            Option("--data", (*_not(PLACES, "labels.csv"), "hf:missing", "wds:missing.tar", "scenes:abc", "http://")),
            Option("--limit", NUMBERS),
            Option("--tolerance", _not(WORDS, "1.5", "1e20")),
            Option("--classes", _not(PLACES, "")),
            Option("--out", ("empty", "empty/deeper", "/proc/x", "/dev/null", "saved")),
        ),
        ((1, _MODELS),),
        1.2,
    ),
    **{
        name: Command(
            (name, "{plain}", "--data", "{pictures}", "--out", "new", "--processes", "1"),
            (
                *SCHEDULES,
                *_MODEL,
                _METHOD,
                *_RUN,
                *(option for option in _DATA if option.name in ("--data", "--split", "--limit", "--seed")),
                Option("--engine", WORDS),
                Option("--processes", NUMBERS),
                Option("--part-images", NUMBERS),
                Option("--out", ("empty", "empty/deeper", "/proc/x", "/dev/null", "saved")),
            ),
            ((1, _MODELS),),
            0.6,
        )
        for name in ("predict", "embed")
    },
    "recover": Command(
        ("recover", "{saved}", "--data", "{pictures}", "--steps", "1", "--workers", "0", "--out", "new"),
        (
            *_DATA,
            Option("--steps", NUMBERS),
            Option("--minutes", _not(WORDS, "1.5", "1e20")),
            Option("--lr", ("x", "-1")),
        ),
        ((1, _MODELS),),
        0.4,
    ),
    "completion": Command(("completion", "bash"), (), ((1, ("abc", "", "💥")),), 0.1),
    "models": Command(("models", "deepseek"), (), ((1, ("abc", "", "💥", "x" * 5000)),), 0.2),
    "methods": Command(("methods", "EViT"), (), ((1, ("abc", "", "💥", "x" * 5000)),), 0.4),
    "tables": Command(("tables", "hvt"), (Option("--seconds", WORDS),), ((1, ("abc", "", "💥", "x" * 5000)),), 0.4),
    "recipes": Command(
        ("recipes", "deit"), (), ((1, ("abc", "", "missing.toml", "garbage.toml", "folder", "💥")),), 0.6
    ),
}
