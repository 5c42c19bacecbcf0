"""One list of columns, and one way to round: the terminal, CSV, JSON, page and docs all follow it."""

import csv
import dataclasses
import io
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from browser.example_report import comparison
from foveate.evaluation import columns, numbers
from foveate.evaluation.columns import BY_NAME, COLUMNS, Column
from foveate.report.compare import Comparison, Entry
from foveate.report.compare.saving import as_csv
from foveate.report.page import render
from foveate.tasks import find_task, task_names

DOCS = Path(__file__).parents[2] / "docs" / "compare.md"


def test_every_field_of_an_entry_has_a_column():
    fields = {field.name for field in dataclasses.fields(Entry)} - {"metrics"}
    figures = {name for task in task_names() for name in find_task(task).figures}
    made = {column.name for column in COLUMNS if column.value is not None}
    assert fields <= set(BY_NAME)
    assert set(BY_NAME) <= fields | figures | made
    assert len(BY_NAME) == len(COLUMNS)
    assert all(column.meaning for column in COLUMNS)


def test_the_table_in_the_docs_is_made_from_the_columns():
    table = columns.as_markdown()
    assert table in DOCS.read_text(), f"write this to docs/compare.md:\n{table}"


@pytest.fixture
def one_more(monkeypatch):
    """A column that nobody knew of, made of others."""
    new = Column(
        "milliseconds",
        "time of one image",
        "Time",
        "time",
        "1000 over images per second",
        numbers.factor,
        "ms",
        value=lambda row: None if row["images_per_second"] is None else 1000 / row["images_per_second"],
    )
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, new))
    monkeypatch.setattr("foveate.report.page.table.COLUMNS", (*COLUMNS, new))
    monkeypatch.setattr("foveate.report.compare.comparison.COLUMNS", (*COLUMNS, new))
    return new


def test_a_new_column_is_one_entry(one_more):
    compared = comparison()
    assert compared.as_dict()["entries"][2]["milliseconds"] == 1000 / 118
    (row,) = list(csv.DictReader(io.StringIO(as_csv(compared))))[2:3]
    assert float(row["milliseconds"]) == 1000 / 118
    page = render(compared)
    assert 'data-field="milliseconds"' in page
    assert "8.47\N{NARROW NO-BREAK SPACE}ms" in page
    assert "| time ms | 1000 over images per second |" in columns.as_markdown()
    assert Comparison.from_dict(compared.as_dict()) == compared


def test_the_csv_file_has_every_column():
    measured = comparison().as_dict()["entries"][0]  # a task has its own figures among the columns
    names = [name for column in COLUMNS if column.name in measured for name in column.parts or (column.name,)]
    assert next(csv.reader(io.StringIO(as_csv(comparison())))) == [*names, "recommended"]


def test_what_another_task_measures_is_kept():
    compared = comparison()
    entries = tuple(dataclasses.replace(entry, metrics={"miou": 71.5}) for entry in compared.entries)
    changed = dataclasses.replace(compared, entries=entries)
    assert changed.as_dict()["entries"][0]["miou"] == 71.5
    assert Comparison.from_dict(changed.as_dict()) == changed


def test_52_of_60_is_one_number_everywhere():
    share = 100 * 52 / 60
    entries = [dataclasses.replace(entry, agreement=share, top1=share) for entry in comparison().entries]
    page = render(comparison(entries=tuple(entries)))
    assert {BY_NAME[name].terminal_text(share) for name in ("agreement", "top1", "top5")} == {"86.7"}
    shown = re.findall(r'data-value="86\.66\d*">(.*?)</td>', page)
    assert len(shown) == 2 * len(entries)
    assert set(shown) == {"86.7\N{NARROW NO-BREAK SPACE}%"}
    assert "86.7\N{NARROW NO-BREAK SPACE}% agreement" in page


@example((9_999, 10_000))
@example((1, 10_000))
@given(st.integers(1, 10_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_only_all_is_100_and_only_none_is_0(counts):
    part, total = counts
    shown = numbers.percent(100 * part / total)
    assert (shown == "100.0") == (part == total)
    assert (shown == "0.0") == (part == 0)
    assert abs(float(shown) - 100 * part / total) <= 0.1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.25, "12.2"),
        (12.75, "12.8"),
        (99.95, "99.9"),
        (99.97, "99.9"),
        (0.01, "0.1"),
        (86.6667, "86.7"),
        (50, "50.0"),
    ],
)
def test_halves_go_to_even(value, text):
    assert numbers.percent(value) == text


def test_what_is_not_known_is_a_dash():
    assert [BY_NAME["speed_up"].terminal_text(value) for value in (1.5, None, float("nan"))] == ["1.50x", "-", "-"]
