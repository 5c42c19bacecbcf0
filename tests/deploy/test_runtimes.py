"""Models in runtimes: which there are, how fast they are, and what a comparison says of them."""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib.util
import multiprocessing
import os
import signal
import threading

import pytest
import torch

import foveate as fv
from comparing import QUICK
from foveate.cli.runtime_speed import as_json
from foveate.deploy.runtimes import Ready, Runtime, prepare, read_runtimes
from foveate.deploy.speed import Variant, summarized
from foveate.report.compare import Comparison
from foveate.report.compare.served import InRuntime, fastest_by_tier, python, sentence
from foveate.report.page import render
from zoo import images, make

TOME = fv.Reduction(fv.ToMe(), fv.KeepRate(0.6, blocks=(0,)))


def test_pairs_that_do_not_exist_are_named():
    found, notes = read_runtimes(["eager", "onnxruntime"], ["fp32", "bf16", "int8"])
    assert Runtime("onnxruntime", "int8") in found
    assert Runtime("onnxruntime", "bf16") not in found
    assert any(note.startswith("Not measured: ONNX Runtime bf16. It offers fp32 and int8.") for note in notes)


@pytest.mark.parametrize(
    ("names", "precisions", "words"),
    [
        (["tensorrt"], ["fp32"], "runtime must be of eager, compile, onnxruntime, openvino, all; got 'tensorrt'"),
        (["eager"], ["int4"], "precision must be of bf16, fp32, int8; got 'int4'"),
        ([], ["fp32"], "runtime must be of"),
        (["eager"], ["int8"], "Not measured: PyTorch eager int8. It offers fp32 and bf16."),
    ],
)
def test_runtimes_that_cannot_be_read(names, precisions, words):
    with pytest.raises(ValueError, match=words):
        read_runtimes(names, precisions)


def test_a_runtime_that_is_not_installed_names_the_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else real(name))
    with pytest.raises(ValueError, match=r"openvino, which is not installed.*foveate\[export\]"):
        read_runtimes(["openvino"])
    assert "openvino" not in {runtime.name for runtime in read_runtimes(["all"])[0]}


@pytest.mark.parametrize("runtime", [Runtime("eager"), Runtime("onnxruntime"), Runtime("openvino")], ids=str)
def test_every_runtime_computes_the_model(runtime):
    model = TOME.apply_(make("timm-cls", 2))
    ready = prepare(model, runtime, images(3))
    with torch.no_grad():
        torch.testing.assert_close(ready.run(images(2)), model(images(2)), rtol=1e-4, atol=1e-5)
    assert ready.load_seconds > 0


def runs_then_takes_a_signal():
    """Answer a signal on the stack for signals after another thread dropped the last model."""
    faulthandler.enable()  # asks for such a stack, as pytest does
    signal.signal(signal.SIGUSR1, lambda *_: None)
    ready = [prepare(make("timm-cls", 2), Runtime("openvino"), images(2))]
    thread = threading.Thread(target=ready.clear)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_signal_after_openvino_does_not_end_the_process():
    process = multiprocessing.get_context("spawn").Process(target=runs_then_takes_a_signal)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_every_reduction_is_measured_in_every_runtime_beside_its_free_slice():
    rows = fv.measure_runtimes(
        make("timm-cls", 2), [TOME], runtimes=["openvino"], batch_sizes=(1, 2), rounds=3, threads=1
    )
    assert [(row.reduction, row.runtime.title, row.batch_size) for row in rows] == [
        (reduction, "OpenVINO", batch) for batch in (1, 2) for reduction in (fv.Reduction(), TOME)
    ]
    assert [row.efficiency is None for row in rows] == [True, False] * 2
    assert rows[0].speed_up_within == 1
    assert all(row.rounds == 3 and row.threads == 1 and row.export_seconds > 0 for row in rows)
    assert as_json(rows[1])["runtime"] == "openvino"


def test_ratios_are_paired_within_rounds():
    eager, fast = Runtime("eager"), Runtime("openvino")
    variants = [Variant(0, eager), Variant(0, fast), Variant(1, fast), Variant(1, fast, sliced=True)]
    ready = dict.fromkeys(variants, Ready(lambda x: x, 1.0, 2.0))
    timed = [
        dict(zip(variants, (slow * t for t in (8.0, 4.0, 2.0, 1.5)), strict=True)) for slow in (0.001, 0.002, 0.01)
    ]
    row = next(r for r in summarized([fv.Reduction(), TOME], ready, timed, 4, 2) if r.reduction is TOME)
    assert (row.speed_up, row.speed_up_within, row.efficiency) == pytest.approx((4, 2, 0.75))
    assert row.milliseconds == pytest.approx(4)
    assert row.images_per_second == pytest.approx(1000)


def in_runtime(entry=0, agreement=100.0, speed_up=2.0, runtime="openvino", precision="fp32", batch=4):
    return InRuntime(entry, runtime, precision, batch, 5.0, 800.0, speed_up, (1.0, 3.0), 1.5, 0.9, agreement, 3.0, 0.5)


def test_the_fastest_is_named_once_for_each_share_of_decisions():
    slow, fast, baseline = in_runtime(), in_runtime(1, 96.0, 4.1, precision="int8"), in_runtime(2, 99.5, 9.0)
    other_batch = in_runtime(3, 100.0, 20.0, batch=1)
    assert fastest_by_tier([slow, fast, baseline, other_batch], 4, baselines=[2]) == [(99.0, slow), (95.0, fast)]
    assert fastest_by_tier([in_runtime(speed_up=0.9)], 4) == []
    assert sentence(fast, "Ward at 0.5") == (
        "4.10x as fast as PyTorch eager at batch 4: Ward at 0.5, OpenVINO int8, 96.0 % of decisions unchanged."
    )


def test_the_lines_that_load_it():
    lines = python(in_runtime(precision="int8"), "import foveate as fv\nfv.reduce_(model, fv.Ward(), fv.Budget(0.5))")
    assert lines.splitlines()[2:] == [
        'fv.export(model, "fast", to="openvino", quantize="int8", data="CALIBRATION")',
        'fast = fv.load_exported("fast")',
    ]
    assert python(in_runtime(precision="bf16"), "").endswith('fv.load_exported("fast", precision="bf16")')
    for precision in ("fp32", "bf16", "int8"):
        compile(python(in_runtime(runtime="compile", precision=precision), ""), "lines", "exec")


@pytest.fixture(scope="module")
def compared():
    settings = QUICK | {"methods": ("tome",), "budgets": (0.5,)}
    return fv.compare(make("timm-cls", 4), images(8), runtimes=["onnxruntime"], **settings)


def test_a_comparison_measures_decisions_and_speed_in_runtimes(compared):
    assert [(one.entry, one.batch_size) for one in compared.runtimes] == [
        (entry, batch) for entry in range(len(compared.entries)) for batch in (1, 4)
    ]
    assert compared.runtimes[0].agreement == 100
    for one in compared.runtimes:
        assert one.agreement == pytest.approx(compared.entries[one.entry].agreement)
    assert Comparison.from_dict(compared.as_dict()).runtimes == compared.runtimes
    older = {key: value for key, value in compared.as_dict().items() if key != "runtimes"}
    assert Comparison.from_dict(older).runtimes == ()


def test_results_with_runtimes_that_do_not_exist_are_refused(compared):
    for change in ({"entry": 99}, {"runtime": "abacus"}):
        broken = compared.as_dict()
        broken["runtimes"][0] |= change
        with pytest.raises(ValueError, match="not the results of a comparison"):
            Comparison.from_dict(broken)


def test_the_page_shows_runtimes_only_where_they_were_measured(compared):
    page = render(dataclasses.replace(compared, runtimes=(in_runtime(), in_runtime(1, 97.9, 4.1, precision="int8"))))
    assert "In other runtimes" in page
    assert "OpenVINO int8" in page
    assert "fv.load_exported(&quot;fast&quot;)" in page
    assert "In other runtimes" not in render(dataclasses.replace(compared, runtimes=()))


def test_int8_in_a_comparison_needs_other_images():
    with pytest.raises(ValueError, match=r"calibrated on images that do not judge it.*--calibration"):
        fv.compare(make("timm-cls", 2), images(8), runtimes=["openvino"], precisions=["int8"], **QUICK)
