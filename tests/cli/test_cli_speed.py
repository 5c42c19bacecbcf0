"""``foveate speed``: what it prints; never how fast anything is."""

import json
import re

import pytest
import timm

import foveate as fv
from foveate.cli import output
from foveate.cli import speed as command
from foveate_cli import speed as words
from foveate_cli.main import main

QUICK = ("test_vit", "--remove", "8", "--seconds", "0.01")


def test_json_has_a_row_for_each_method_and_batch_size(capsys):
    code = main(["speed", *QUICK, "--method", "tome", "--method", "topk", "--batch-size", "1", "2", "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    document = json.loads(out)
    rows = document["rows"]
    assert [(row["reduction"]["method"]["name"], row["batch_size"]) for row in rows] == [
        ("ToMe", 1),
        ("ToMe", 2),
        ("TopK", 1),
        ("TopK", 2),
    ]
    assert all(row["realized"] == row["speed_up"] / row["mac_ratio"] for row in rows)
    assert set(document["environment"]) == {"cpu", "cores", "threads", "device", "dtype", "torch", "timm", "foveate"}
    for key in ("model", "environment", *rows[0]):
        assert key in words.EPILOG, f"--help does not document {key}"


def test_the_table_ends_with_the_machine(capsys):
    assert main(["speed", *QUICK, "--method", "tome", "--threads", "1", "--exact-last-block"]) == 0
    out = capsys.readouterr().out
    for word in ("remove 8, exact last block", "slice", "realized", "efficiency", "ToMe", "1 thread;", "foveate "):
        assert word in out


def test_a_saved_model_is_measured_as_it_was_saved(capsys, tmp_path):
    fv.save(fv.reduce_(timm.create_model("test_vit"), fv.EViT(), fv.Keep({1: 80}), exact_last_block=True), tmp_path)
    assert main(["speed", str(tmp_path), "--seconds", "0.01", "--batch-size", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    reduction = fv.Reduction.from_dict(row["reduction"])
    assert (reduction.method, type(reduction.schedule), reduction.exact_last_block) == (fv.EViT(), fv.Keep, True)


def test_rounds_that_disagree_are_called_noisy(monkeypatch, capsys):
    measure = command.measure_speed

    def shaky(*args, **options):
        result = measure(*args, **options)
        object.__setattr__(result, "speed_up_quartiles", (0.5 * result.speed_up, 2 * result.speed_up))
        return result

    monkeypatch.setattr(command, "measure_speed", shaky)
    assert main(["speed", *QUICK, "--method", "tome"]) == 0
    assert "Noisy: ToMe at batch 1" in capsys.readouterr().out


def test_progress_goes_to_a_terminal_s_stderr_only(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["speed", *QUICK, "--method", "tome", "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_progress_without_a_terminal_is_a_line_a_minute(monkeypatch, capsys):
    assert main(["speed", *QUICK, "--method", "tome"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "EVERY_SECONDS", 0.0)
    assert main(["speed", *QUICK, "--method", "tome"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"^foveate: ToMe.*, batch 1: 1 of \d+$", captured.err, re.MULTILINE)
    assert "batch 1: 1 of" not in captured.out


def test_lines_of_progress_are_a_minute_apart_over_all_phases(monkeypatch, capsys):
    now = iter([0.0, 59.0, 60.0, 60.0, 119.0, 121.0, 121.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    lines = output.ProgressLines()
    for phase, done, total in [("a", 1, 9), ("a", 2, None), ("b", 1, 9), ("c", 3, 9)]:
        lines.advance(phase, done, total)
    assert capsys.readouterr().err == "foveate: a: 2\nfoveate: c: 3 of 9\n"


def test_several_sizes_with_memory_and_a_report(capsys, tmp_path):
    report = tmp_path / "new" / "speed.html"
    sizes = ["--image-size", "96", "128x160", "--batch-size", "1", "--rounds", "2", "--memory", "--report", str(report)]
    assert main(["speed", "test_vit+linear", "--budget", "0.6", "--methods", "tome", "ward", *sizes]) == 0
    out = capsys.readouterr().out
    assert out.count("128x160") == 4  # two methods in two tables
    for word in ("ns/px", "MiB", f"Report: {report}"):
        assert word in out
    page = report.read_text(encoding="utf-8")
    assert page.count("<svg") == 4  # time and memory of two methods
    assert "{{" not in page


def test_json_has_time_per_pixel_and_memory(capsys):
    assert main(["speed", *QUICK, "--method", "tome", "--batch-size", "1", "--rounds", "2", "--memory", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    three = ["unreduced", "reduced", "free slice"]
    assert (list(row["ns_per_pixel"]), list(row["peak_mib"]), row["rounds"]) == (three, three, 2)
    assert row["ns_per_pixel"]["reduced"] == pytest.approx(1e9 / row["reduced_per_second"] / 160**2)
    assert 0 < row["peak_mib"]["reduced"] < row["peak_mib"]["unreduced"]


def test_nothing_is_measured_if_a_later_size_cannot_be(monkeypatch, capsys):
    monkeypatch.setattr(command, "measure_speed", lambda *_, **__: pytest.fail("measured"))
    assert main(["speed", "test_vit", "--method", "tome", "--remove", "8", "--image-size", "160", "7"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["test_vit"], "speed needs --method"),
        ([*QUICK, "--method", "tome", "--report", "."], "--report: . is a folder"),
        ([*QUICK, "--method", "tome", "--rounds", "0"], "--rounds: must be a whole number of at least 1"),
        ([*QUICK, "--method", "tome", "--device", "abacus"], "Device 'abacus' is not available"),
        ([*QUICK, "--method", "tome", "--batch-size", "0"], "--batch-size: must be a whole number of at least 1"),
        ([*QUICK, "--method", "tome", "--threads", "many"], "--threads: must be a whole number of at least 1"),
        ([*QUICK, "--method", "tome", "--seconds", "-1"], "--seconds: must be a number above 0"),
        ([*QUICK, "--method", "tome", "--seconds", "nan"], "--seconds: must be a number above 0"),
        ([*QUICK, "--method", "tome", "--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
    ],
)
def test_wrong_input(argv, words, capsys):
    assert main(["speed", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("foveate: ")
    assert words in err
    assert err.count("\n") == 1
