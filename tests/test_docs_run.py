"""Code and commands in the documents are right: blocks compile, names exist, commands parse, and short blocks run."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import foveate as fv
from foveate.training.config import TrainConfig, override, read_config
from foveate.training.recipe import recipe_names
from foveate.training.renamed import RENAMED
from foveate_cli.main import build_parser
from test_layering import ROWS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(foveate [^`]+)`(?!`)")
PARSER = build_parser()
OUR_FOLDERS = {path.name for start in ("", "src", "src/foveate") for path in (ROOT / start).iterdir() if path.is_dir()}
PLACEHOLDERS = ("...", "M SCHEDULE", "--method M ")
"""Parts of commands that are written to be filled in."""
WRITTEN_BY_READERS = {"foveate.Loudest", "foveate.NAME"}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    name = str(page.relative_to(ROOT))
    return [Block(name, text[: m.start(2)].count("\n") + 1, m[1], m[2]) for m in BLOCK.finditer(text)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]


def joined_lines(text: str) -> list[str]:
    """Lines of a shell, those that end in a backslash joined with the next, comments left out."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines()]


class Command(NamedTuple):
    page: str
    text: str
    whole: bool
    """In a block; a sentence may name a command, or one of its options, alone."""

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands_of(page: Path) -> list[Command]:
    """Every command of foveate on a page."""
    shell = [line for block in blocks_of(page) if block.language != "python" for line in joined_lines(block.text)]
    prose = INLINE.findall(re.sub(r"\s+", " ", BLOCK.sub("", page.read_text("utf-8"))))
    found = [(line.partition("-m ")[2] or line, True) for line in shell] + [(text, False) for text in prose]
    made = [Command(page.name, text, whole) for text, whole in found if text.startswith("foveate ")]
    return [command for command in made if not any(part in command.text for part in PLACEHOLDERS)]


COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands_of(page)))


def test_pages_have_what_is_tested() -> None:
    assert len(PYTHON) > 20
    assert len(COMMANDS) > 40


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles_and_its_names_exist(block: Block) -> None:
    tree = ast.parse(block.text, str(block))
    compile(tree, str(block), "exec")
    missing = [name for name in names_of(tree) if not exists(name)]
    assert not missing, f"{block} uses what does not exist: {', '.join(missing)}"


def names_of(tree: ast.AST) -> set[str]:
    """``foveate.X`` for every ``fv.X`` and every import from the package; methods of its classes included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := ast.unparse(node)).startswith("fv."):
            found.add(re.sub(r"[^\w.].*", "", dotted.replace("fv.", "foveate.", 1), flags=re.DOTALL))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("foveate"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def exists(name: str) -> bool:
    """Whether a dotted name leads somewhere; what a call returns is not followed."""
    parts = name.split(".")
    value = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], start=2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(parts[:number]))
            except ImportError:
                return False
        value = getattr(value, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_and_files_in_sentences_exist(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text("utf-8"))
    code = [text for text in re.findall(r"`([^`\n]+)`", prose) if not text.startswith("foveate ")]
    dotted = {name.replace("fv.", "foveate.", 1) for text in code for name in re.findall(r"\bfv\.[\w.]*\w", text)}
    dotted |= {name for text in code for name in re.findall(r"^foveate(?:\.\w+)+", text) if text != "foveate.methods"}
    assert not [name for name in sorted(dotted - WRITTEN_BY_READERS) if not exists(name)]
    files = [name for text in code for name in re.findall(r"^(?:[\w.-]+/)+(?:[\w-]+\.(?:py|toml|md|csv))?$", text)]
    ours = [name for name in files if name.split("/")[0] in OUR_FOLDERS]
    missing = [n for n in ours if not any((ROOT / start / n).exists() for start in ("", "src", "src/foveate"))]
    assert not missing


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_values_can_be_built(block: Block) -> None:
    """Methods, schedules and reductions that a page writes out, with their options."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Call) and isinstance(getattr(fv, called(node), None), type) and is_written_out(node):
            eval(ast.unparse(node), {"fv": fv})


def called(call: ast.Call) -> str:
    """``X`` of a call of ``fv.X``."""
    return ast.unparse(call.func).partition("fv.")[2]


def is_written_out(call: ast.Call) -> bool:
    """Whether a call has no variables, and no dots to be filled in."""
    names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    return names == {"fv"} and "..." not in ast.unparse(call)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_parse(command: Command) -> None:
    words = shlex.split(command.text, comments=True)[1:]
    unknown = [word for word in words if word.startswith("--") and word not in options_of(words[0])]
    assert not unknown, f"foveate {words[0]} has no {', '.join(unknown)}"
    try:
        args = PARSER.parse_args(words)
    except ValueError as error:
        if command.whole or not re.search("are required|expected", str(error)):
            raise
        return
    for method in (m for m in getattr(args, "methods", None) or () if m != "all"):
        name = type(fv.Reduction(method).method).__name__
        assert method.partition(":")[0] == name, f"write {name}, the name of the class"
    if words[0] == "train":
        assert args.recipe in recipe_names() or args.recipe.endswith(".toml")
        override(TrainConfig(), args.changes)


def options_of(command: str) -> set[str]:
    (commands,) = [action for action in PARSER._actions if isinstance(action, argparse._SubParsersAction)]
    assert command in commands.choices, f"there is no foveate {command}"
    return set(commands.choices[command]._option_string_actions)


def options_of_scripts() -> set[str]:
    """Those of benchmarks and of this suite's own programs, which experiments name too."""
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tests" / "breaks").glob("*.py")]
    return {
        f"--{found}" for path in scripts for found in re.findall(r'"(?:--)?([a-z][\w-]*)"', path.read_text("utf-8"))
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_sentences_exist(page: Path) -> None:
    (commands,) = [action for action in PARSER._actions if isinstance(action, argparse._SubParsersAction)]
    known = set().union(*map(options_of, commands.choices))
    known |= options_of_scripts() if page.parent.name == "experiments" else set()
    prose = BLOCK.sub("", page.read_text("utf-8"))
    alone = [text for text in re.findall(r"`([^`]+)`", prose) if text.startswith("--")]
    named = {option for text in alone for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}
    assert not named - known


def test_the_layers_are_those_that_are_tested() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("## How the package reads")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)/?` \|", table, flags=re.MULTILINE)
    assert tuple(row.removesuffix(".py") for row in rows) == ROWS


def block_with(page: str, text: str) -> str:
    (found,) = [block.text for block in PYTHON if block.page == page and text in block.text]
    return found


@pytest.fixture
def small() -> VisionTransformer:
    """Deep enough for the blocks that the pages name, and with as many patches as a DeiT has."""
    torch.manual_seed(0)
    return VisionTransformer(56, 4, embed_dim=16, depth=12, num_heads=2, num_classes=5).eval()


def test_every_reduction_of_the_readme_applies(small: VisionTransformer) -> None:
    images = torch.zeros(1, 3, 56, 56)
    code = block_with("README.md", "with fv.reduced")
    lines, _, rest = code.partition("\nwith ")
    for line in filter(None, lines.splitlines()):
        exec(line, {"fv": fv, "model": small})
        assert fv.is_reduced(small), line
        fv.restore_(small)
    exec(f"with {rest}", {"fv": fv, "model": small, "images": images})
    assert fv.list_methods("*pool*") == ["HVTPool", "TokenPooling"]


def test_the_readme_looks_at_a_model(small: VisionTransformer) -> None:
    lines = block_with("README.md", "fv.trace(").replace("224, 224", "56, 56").splitlines()
    for line in lines:
        if "measure_speed" not in line:  # it takes its seconds
            exec(line, {"fv": fv, "model": small, "images": torch.zeros(1, 3, 56, 56)})


def test_the_readme_keeps_a_reduction(
    small: VisionTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = block_with("README.md", "reduction.to_dict()").replace('fv.load("fast-deit")', "model")
    with pytest.warns(UserWarning, match="cannot be rebuilt from plain data"):  # it is not of timm's registry
        exec(code, scope := {"fv": fv, "model": small})
    reduction = scope["reduction"]
    assert fv.inspect(small).reduction == reduction
    assert f"'{reduction.text}'" in code
    assert fv.load_schedule("counts.json") == fv.Keep({4: 100, 8: 50})


RUN_AS_A_WHOLE = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), ROOT / "docs" / "embeddings.md"]


@pytest.mark.parametrize("page", RUN_AS_A_WHOLE, ids=lambda page: page.stem)
def test_tutorials_run_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need neither a hub nor files; other pages show blocks for the reader's own model and images."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("tutorial")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for block in blocks_of(page):
        if block.language == "python":
            exec(compile(block.text, str(block), "exec", dont_inherit=True), module.__dict__)


def test_the_page_on_scenes_runs() -> None:
    exec(block_with("docs/scenes.md", "= scene(3"), scope := {})
    assert scope["KINDS"][scope["picture"].label] == "disc"
    assert scope["data"].pictures.mask(3).shape == (96, 96)
    exec(block_with("docs/scenes.md", "objects_scene(3"), scope := {})
    assert scope["picture"].semantic.shape == (320, 320)
    assert len(scope["data"]) == 500


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_values_of_recipes_that_pages_name_exist(page: Path) -> None:
    """``section.name`` and ``section.name=value`` in code are values of a training run."""
    sections = "|".join(name for name in TrainConfig().as_dict() if name not in ("source", "description"))
    text = page.read_text("utf-8")
    config = TrainConfig().as_dict()
    for section, name in re.findall(rf"[ `\"]({sections})\.(\w+)(?=[=`\"])", text):
        attribute = section in ("data", "model", "schedule") and name not in config[section]  # of an object so called
        if not attribute and f"{section}.{name}" not in RENAMED:
            assert name in config[section], f"{page.name} names {section}.{name}"


def test_a_configuration_of_the_docs_reads() -> None:
    code = block_with("docs/training.md", "fv.train(")
    (call,) = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call) and called(n) == "train"]
    (changes,) = [ast.literal_eval(k.value) for k in call.keywords if k.arg == "overrides"]
    read_config({"schedule": {name.partition(".")[2]: value for name, value in changes.items()}})
