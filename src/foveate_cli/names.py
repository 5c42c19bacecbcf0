"""Names for tab completion, read from files: a key press must not wait for torch.

Each function takes what has been typed and returns candidates, as argcomplete's completers do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

TIMM_MODULES = (
    *("beit", "deepseek_vit", "deit", "eva", "gemma4_vit", "naflexvit", "qwen3_vit", "vision_transformer"),
    *("vision_transformer_hybrid", "vision_transformer_relpos"),
)
"""Modules of timm whose models can be reduced."""
REGISTERED_MODEL = re.compile(r"^@register_model\ndef (\w+)\(", re.MULTILINE)
MODEL_PREFIXES = ("hf:", "torchvision:")
DATA_PREFIXES = ("hf:", "parquet:", "wds:", "torchvision:", "scenes:", "scenes:objects")


def methods(prefix: str = "", **_: object) -> list[str]:
    """Methods; behind a name and a colon, the options of that method: ``EViT:fuse=``."""
    name, colon, options = prefix.partition(":")
    if not colon:
        return sorted({*_method_options(), *(entry.name for entry in entry_points(group="foveate.methods"))})
    written = prefix[: len(prefix) - len(options.rpartition(",")[2])]
    return [f"{written}{option}=" for option in _method_options().get(name, ())]


def recipes(**_: object) -> list[str]:
    """The built-in recipes."""
    return sorted(path.stem for path in _package("foveate").glob("training/recipes/*.toml"))


def recipes_and_files(prefix: str = "", **_: object) -> list[str]:
    """The built-in recipes, and TOML files and folders that begin with ``prefix``."""
    return [*recipes(), *_paths(prefix, (".toml",))]


def models(prefix: str = "", **_: object) -> list[str]:
    """Vision transformers of timm, ClusTR, prefixes of other libraries, and folders."""
    timm = [_package("timm") / "models" / f"{name}.py" for name in TIMM_MODULES]
    files = [*timm, *_package("foveate").glob("models/*.py")]
    names = {name for file in files if file.is_file() for name in REGISTERED_MODEL.findall(file.read_text("utf-8"))}
    return [*sorted(names), *MODEL_PREFIXES, *_paths(prefix, ())]


def data(prefix: str = "", **_: object) -> list[str]:
    """Kinds of image data, folders and tables."""
    return [*DATA_PREFIXES, *_paths(prefix, (".csv", ".json", ".parquet"))]


def tasks(**_: object) -> list[str]:
    return sorted(_registered("tasks", "register"))


def tables(**_: object) -> list[str]:
    return sorted(_registered("tables", "table"))


def pictures(**_: object) -> list[str]:
    return sorted(_registered("drawing", "picture") | _registered("tasks", "picture"))


def settings(**_: object) -> list[str]:
    """Values of a training run, as ``--set`` takes them: ``optimizer.lr=``."""
    files = [_package("foveate") / name for name in ("training/config.py", "tasks/augmentation.py")]
    classes = {node.name: node for file in files for node in _classes(file)}
    sections = {name: kind for name, kind in _annotations(classes["TrainConfig"]).items() if kind in classes}
    return [f"{section}.{name}=" for section, kind in sections.items() for name in _annotations(classes[kind])]


def _method_options() -> dict[str, list[str]]:
    """Registered methods with their options, inherited ones included."""
    classes = {node.name: node for file in _package("foveate").glob("methods/*.py") for node in _classes(file)}
    return {
        name: [option for owner in _lineage(node, classes) for option in _annotations(owner)]
        for name, node in classes.items()
        if any(isinstance(one, ast.Name) and one.id == "register" for one in node.decorator_list)
    }


def _lineage(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _lineage(classes[base.id], classes)
    yield node


def _annotations(node: ast.ClassDef) -> dict[str, str]:
    """Fields of a dataclass and their types, without class variables."""
    fields = [line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
    typed = {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}
    return {name: kind for name, kind in typed.items() if not kind.startswith("ClassVar")}


def _classes(file: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]


def _registered(folder: str, decorator: str) -> set[str]:
    """First arguments of ``@decorator("name")`` in the files of a folder of foveate."""
    found = re.compile(rf'^@{decorator}\("([\w-]+)"', re.MULTILINE)
    return {name for file in _package("foveate").glob(f"{folder}/*.py") for name in found.findall(file.read_text())}


def _paths(prefix: str, endings: Iterable[str]) -> list[str]:
    """Folders, and files with one of ``endings``, that begin with ``prefix``."""
    folder, _, start = prefix.rpartition("/")
    place = Path(folder or ("/" if prefix.startswith("/") else "."))
    if not place.is_dir():
        return []
    below = [entry for entry in place.iterdir() if entry.name.startswith(start) and (start or entry.name[0] != ".")]
    written = prefix[: len(prefix) - len(start)]
    folders = [f"{written}{entry.name}/" for entry in below if entry.is_dir()]
    return folders + [f"{written}{entry.name}" for entry in below if entry.suffix in tuple(endings)]


def _package(name: str) -> Path:
    """The folder of a package, which is found without importing it."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()
