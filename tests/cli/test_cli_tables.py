"""``foveate tables``: which tables are measured, how columns are headed, and what the document holds."""

import json
from contextlib import nullcontext

import pytest

from foveate.cli import output
from foveate.cli import tables as command
from foveate.tables import Row, Table, table
from foveate.tables.registry import SpeedOptions
from foveate_cli import tables as words
from foveate_cli.main import main


@pytest.fixture
def measured(monkeypatch):
    """Two tables, ``timed`` with speeds and ``plain`` without; what the first was asked to measure."""
    table.all()  # imported first, or what registers itself now would be lost with the stand-in
    monkeypatch.setattr(table, "by_name", {})
    asked = []

    @table("timed")
    def timed(speed: SpeedOptions | None = None) -> Table:
        """A table with speeds."""
        asked.append(speed)
        rates = Table("Rates", ("who", "images a second"), (Row(("me", 12345.678)),), "On a machine.")
        return Table("Timed", ("who", "printed"), (Row(("me", 1.0), True),), speed=rates if speed else None)

    @table("plain")
    def plain() -> Table:
        """A table without."""
        return Table("Plain", ("who", "printed"), (Row(("you", 2.0), True),))

    return asked


def test_speeds_are_measured_on_request_only(measured, capsys):
    assert main(["tables", "timed"]) == 0
    assert measured == [None]
    assert "Rates" not in capsys.readouterr().out
    assert main(["tables", "timed", "--speed"]) == 0
    assert measured[1:] == [SpeedOptions(20.0, output.progress_bar)]
    out = capsys.readouterr().out
    assert out.index("Timed") < out.index("Rates") < out.index("12345.7") < out.index("On a machine.")
    assert out.count("holds") == 1  # rates are not judged


def test_all_measures_what_can_be(measured, capsys):
    assert main(["tables", "--all", "--speed", "--seconds", "2.5", "--json"]) == 0
    assert [options.seconds for options in measured] == [2.5]
    timed, plain = json.loads(capsys.readouterr().out)
    assert timed["speed"] == {
        "title": "Rates",
        "columns": ["who", "images a second"],
        "rows": [{"cells": ["me", 12345.678]}],
        "note": "On a machine.",
    }
    assert (plain["name"], plain["speed"]) == ("plain", None)
    for key in timed:
        assert key in words.EPILOG, f"--help does not document {key}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plain --speed", "The table 'plain' has no speeds to measure; leave out --speed. Tables with speeds"),
        ("timed plain --speed", "The table 'plain' has no speeds to measure"),
        ("--speed", "--speed needs the name of a table, or --all. Tables with speeds to measure: timed."),
        ("timed --seconds 3", "--seconds needs --speed"),
        ("timed --speed --seconds 0", "--seconds: must be a number above 0, got '0'"),
        ("nothing --speed", "There is no table 'nothing'"),
    ],
)
def test_wrong_requests(measured, capsys, line, words):
    assert main(["tables", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert measured == []


def test_the_help_of_speed(capsys):
    assert main(["tables", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--seconds S with --speed: seconds for each pruned model" in text
    assert "default: 20" in text


def test_a_failing_table_fails_whatever_was_measured(monkeypatch, capsys):
    rates = Table("Rates", ("who",), (Row(("me",)),))
    wrong = Table("Wrong", ("who",), (Row(("me",), False),), speed=rates)
    monkeypatch.setattr(command, "all_tables", lambda: {"wrong": lambda speed=None: wrong})
    assert main(["tables", "wrong", "--speed"]) == 1
    assert "NO" in capsys.readouterr().out


def test_a_table_is_measured_silently_by_default():
    with SpeedOptions().progress("anything") as progress:
        assert progress is None
    assert isinstance(SpeedOptions().progress(""), nullcontext)


@pytest.mark.parametrize(
    ("name", "cells", "lines"),
    [
        ("off by", ["0.03"], "off\nby"),
        ("off by", ["-0.0031"], "off by"),
        ("MACs as paper", ["81043.8"], "MACs as\npaper"),
        ("speed-up here", ["1.5"], "speed-up\nhere"),
        ("our speed-up", ["1234567890"], "our\nspeed-up"),
        ("model", [], "model"),
    ],
)
def test_a_header_is_no_wider_than_it_must_be(name, cells, lines):
    assert command.header(name, cells) == lines


@pytest.mark.parametrize(
    ("value", "text"),
    [(81043.825664, "81043.8"), (999.96, "1000"), (304.36864, "304.4"), (0.0, "0"), (-2345.67, "-2345.7"), (7, "7")],
)
def test_numbers_are_never_written_with_an_exponent(value, text):
    assert command.cell_text(value) == text
