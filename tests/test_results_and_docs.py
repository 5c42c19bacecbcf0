"""Figures live in results/*.csv with a command that exists; documents show them unchanged, and their links work."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from foveate.methods.registry import all_methods

ROOT = Path(__file__).resolve().parent.parent
FIGURES = sorted((ROOT / "results").glob("*.csv"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")])
SHARED = (
    "imagenette",
    "photographs",
    "recording",
    "segmentation",
    "dense_runs",
    "small_pictures",
)  # imported by benchmarks, not run
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in SHARED)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def load_render() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_render", ROOT / "results" / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


render = load_render()


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_tables_show_the_recorded_figures() -> None:
    assert [short(path) for path in render.stale()] == []


def test_an_altered_figure_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    figures = tmp_path / "results" / "defaults_and_searched.csv"
    text = figures.read_text("utf-8")
    figures.write_text(text.replace("ToMe,0.5,both,86.3,", "ToMe,0.5,both,98.3,"), "utf-8")
    assert figures.read_text("utf-8") != text
    assert tmp_path / "README.md" in render.stale(tmp_path)


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_figures_name_their_command_and_machine(path: Path) -> None:
    header, rows = render.read_figures(path)
    assert not {"command", "machine", "date", "versions", "sample"} - header.keys()
    assert all(value for values in header.values() for value in values)
    assert re.match(r"\d{4}-\d{2}-\d{2}", header["date"][0])
    assert rows


NOT_METHODS = ("unreduced", "Unreduced", "Exact last block", "mean of the four")


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_methods_have_the_name_of_their_class(path: Path) -> None:
    """One name in every table; options and settings may follow it."""
    _, rows = render.read_figures(path)
    named = {str(row["method"]) for row in rows if "method" in row and str(row["method"]) not in NOT_METHODS}
    assert sorted(name for name in named if re.split(r"[ ,:]", name)[0] not in all_methods()) == []


@pytest.mark.parametrize("row", ["1", "1,2,3"])
def test_a_row_of_another_length_is_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "figures.csv").write_text(f"# command: x\na,b\n1,2\n{row}\n")
    with pytest.raises(ValueError, match="number of cells"):
        render.read_figures(tmp_path / "figures.csv")


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_the_index_lists_every_file_with_its_command(path: Path) -> None:
    header, _ = render.read_figures(path)
    command = header["command" if not header["command"][0].startswith("none") else "measure again"][0]
    lines = [
        line for line in (ROOT / "results" / "README.md").read_text("utf-8").splitlines() if f"({path.name})" in line
    ]
    assert len(lines) == 1
    assert command in lines[0]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    assert callable(importlib.import_module(name).main)


def test_commands_of_results_exist() -> None:
    scripts = {m for path in FIGURES for m in re.findall(r"benchmarks/(\w+)\.py", path.read_text("utf-8"))}
    assert scripts
    assert sorted(scripts - set(BENCHMARKS)) == []


@pytest.mark.parametrize("path", PAGES, ids=short)
def test_links_and_results_files_exist(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    targets = [a or b for a, b in LINK.findall(text)]
    missing = [t for t in targets if not t.startswith(("http://", "https://")) and not leads_somewhere(path, t)]
    assert missing == []
    named = re.findall(r"results/\w+\.csv", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in headings(target))


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("<!-- table: results/none.csv\ncolumn: a = {a}\n-->\n<!-- /table -->", "none.csv"),
        ("<!-- table: results/training_free.csv\ncolumn: a = {nothing}\n-->\n<!-- /table -->", "nothing"),
        ("<!-- table: results/training_free.csv\ncolumns: a\n-->\n<!-- /table -->", "columns: a"),
        ("<!-- table: results/training_free.csv\nonly: method = Tome\n-->\n<!-- /table -->", "Tome"),
        ("<!-- table: results/training_free.csv\ncolumn: a = {method}\n-->\n", "pair up"),
    ],
)
def test_a_wrong_marker_is_refused(marker: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render.render(marker)


def test_two_columns_of_one_title_are_refused():
    with pytest.raises(ValueError, match="Two columns have the title a; only one would be shown"):
        render.parse_spec("column: a = {x}\ncolumn: a = {y}")


def test_a_table_is_made_as_the_marker_asks() -> None:
    rows = [
        {"m": render.Value(m), "b": render.Value(b), "x": render.Value(x)}
        for m, b, x in [("A", "0.8", "97.25"), ("A", "0.5", ""), ("B", "0.8", "96"), ("C", "0.8", "1")]
    ]
    spec = render.parse_spec("column: name = {m}\nacross: at {b} = {x:.1f} %\nnot: m = C")
    expected = "| name | at 0.8 | at 0.5 |\n|---|---|---|\n| A | 97.2 % | - |\n| B | 96.0 % | - |\n"
    assert render.as_markdown(spec, rows) == expected
