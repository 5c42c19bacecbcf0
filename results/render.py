"""Make the tables of README.md and docs/ from the figures in results/*.csv.

    python results/render.py            # rewrite every table
    python results/render.py --check    # exit with 1 and name the files that differ

A table stands between two comments in a Markdown file. The first one names the file and what to show of it:

    <!-- table: results/training_free.csv
    column: agreement (top-1), % = {method}
    across: {budget} of the MACs = {agreement_percent} ({top1_percent})
    only: method = ToMe; EViT; Ward
    not: budget = 0.8
    -->
    ... the table ...
    <!-- /table -->

`column` is a title and a template that names columns of the CSV file; `{speedup:.1f}` formats a number. `across` adds
one column for each distinct title, so rows that differ there alone share a line. `only` and `not` filter rows, by
values separated by semicolons. A cell all of whose values are missing is shown as a dash.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- table: (?P<file>\S+)\n(?P<spec>.*?)-->\n)(?P<body>.*?)(<!-- /table -->)", re.DOTALL)
OPENING = re.compile(r"^<!-- table:", re.MULTILINE)


class Value(str):
    """A cell of a CSV file: the text as written, or a number where a format asks for one."""

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec and self else str(self)


@dataclass(frozen=True)
class Spec:
    """What a marker asks for."""

    columns: list[tuple[str, str]] = field(default_factory=list)  # (title, template)
    across: list[tuple[str, str]] = field(default_factory=list)
    only: dict[str, set[str]] = field(default_factory=dict)  # {column: values}
    without: dict[str, set[str]] = field(default_factory=dict)


def read_figures(path: Path) -> tuple[dict[str, list[str]], list[dict[str, Value]]]:
    """Read a results file.

    Returns:
        The header comments as {key: values}, and the rows.

    Raises:
        ValueError: A row has more or fewer cells than there are columns.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    header: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("#"):
            break
        key, _, value = line.removeprefix("#").partition(":")
        header.setdefault(key.strip(), []).append(value.strip())
    titles, *rows = csv.reader(lines[sum(map(len, header.values())) :], strict=True)
    for row in rows:
        if len(row) != len(titles):
            raise ValueError(f"{path.name}: wrong number of cells in {row}, expected {len(titles)}.")
    return header, [dict(zip(titles, map(Value, row), strict=True)) for row in rows]


def parse_spec(text: str) -> Spec:
    """Parse the lines of a marker.

    Raises:
        ValueError: A line is not `column`, `across`, `only` or `not` with a value, or two columns have one title.
    """
    spec = Spec()
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, _, rest = line.partition(": ")
        left, equals, right = rest.rpartition(" = ") if kind in ("column", "across") else rest.partition(" = ")
        if kind not in ("column", "across", "only", "not") or not equals:
            raise ValueError(f"Expected `column|across|only|not: left = right`, got {line!r}.")
        if kind in ("column", "across"):
            (spec.columns if kind == "column" else spec.across).append((left, right))
        else:
            values = {value.strip() for value in right.split(";")}
            (spec.only if kind == "only" else spec.without)[left] = values
    titles = [title for title, _ in spec.columns]
    if twice := {title for title in titles if titles.count(title) > 1}:
        raise ValueError(f"Two columns have the title {', '.join(sorted(twice))}; only one would be shown.")
    return spec


def fill(template: str, row: dict[str, Value]) -> str:
    """Put a row's values into a template; a dash if it has none of them."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    if names and not any(row[name] for name in names):
        return "-"
    return template.format_map(row).replace("|", "\\|")


def as_markdown(spec: Spec, rows: list[dict[str, Value]]) -> str:
    """The table of the rows that pass the filters."""
    for name, values in [*spec.only.items(), *spec.without.items()]:
        if unknown := values - {row[name] for row in rows}:
            raise ValueError(f"No row has {name} = {', '.join(sorted(unknown))}.")
    shown = [
        row
        for row in rows
        if all(row[name] in values for name, values in spec.only.items())
        and not any(row[name] in values for name, values in spec.without.items())
    ]
    if not shown:
        raise ValueError("No row passes the filters.")
    table: dict[tuple[str, ...] | int, dict[str, str]] = {}
    for number, row in enumerate(shown):
        cells = {title: fill(template, row) for title, template in spec.columns}
        line = table.setdefault(tuple(cells.values()) if spec.across else number, cells)
        line |= {fill(title, row): fill(template, row) for title, template in spec.across}
    titles = list(dict.fromkeys(title for line in table.values() for title in line))
    lines = [titles, *([line.get(title, "-") for title in titles] for line in table.values())]
    text = [f"| {' | '.join(cells)} |\n" for cells in lines]
    return "".join([text[0], "|" + "---|" * len(titles) + "\n", *text[1:]])


def render(text: str, root: Path = ROOT) -> str:
    """A Markdown text with all its tables made anew.

    Raises:
        ValueError: A marker is not closed, or asks for what its file does not hold.
    """

    def rebuilt(match: re.Match[str]) -> str:
        try:
            table = as_markdown(parse_spec(match["spec"]), read_figures(root / match["file"])[1])
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(f"Table of {match['file']}: {error!r}") from error
        return f"{match[1]}\n{table}\n{match[5]}"  # some renderers need the blank lines

    found = {len(OPENING.findall(text)), len(TABLE.findall(text)), text.count("<!-- /table -->")}
    if len(found) > 1:
        raise ValueError("A table's comments do not pair up: <!-- table: FILE ... --> and <!-- /table -->.")
    return TABLE.sub(rebuilt, text)


def documents(root: Path = ROOT) -> Iterator[Path]:
    """The Markdown files that may hold tables."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def stale(root: Path = ROOT) -> list[Path]:
    """The documents whose tables differ from the figures."""
    return [path for path in documents(root) if render(path.read_text("utf-8"), root) != path.read_text("utf-8")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a table differs")
    check = parser.parse_args().check
    differing = stale()
    for path in differing:
        print(f"{path.relative_to(ROOT)}: {'differs from results/' if check else 'rewritten'}")
        if not check:
            path.write_text(render(path.read_text("utf-8")), encoding="utf-8")
    return int(check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
