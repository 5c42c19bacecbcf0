"""A comparison that is interrupted keeps what it has measured, and goes on."""

import json

import pytest

from comparing import QUICK, pretended, untimed, write_picture
from foveate.report.compare import compare, run
from foveate.report.compare.saving import PARTIAL
from foveate.tasks import Classification
from zoo import CLASSES, images, make

pytestmark = pytest.mark.usefixtures("no_clock_and_no_gallery")


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C at a call of one's choice: ``interrupted(module, name, call)``."""

    def arrange(module, name, call):
        real, calls = getattr(module, name), []

        def sometimes(*given, **named):
            calls.append(1)
            if len(calls) == call:
                raise KeyboardInterrupt
            return real(*given, **named)

        monkeypatch.setattr(module, name, sometimes)

    return arrange


@pytest.mark.parametrize(("place", "call"), [("decisions", 14), ("decisions", 25), ("speed", 1), ("speed", 3)])
def test_a_resumed_run_equals_one_that_was_not_interrupted(folder, tmp_path, interrupted, monkeypatch, place, call):
    model = make("timm-cls")
    whole = compare(model, folder, **QUICK)
    monkeypatch.setattr(run, "SECONDS_BETWEEN_STORES", 0)
    module, name = (Classification, "predict") if place == "decisions" else (run, "measure_candidate")
    interrupted(module, name, call)
    part = compare(model, folder, **QUICK, store=tmp_path)
    assert not part.complete
    assert part.data["images"] == {14: 8, 25: 16}.get(call, 20)
    assert sum(entry.speed_up is not None for entry in part.entries) == (call if call == 3 else 0)
    stored = json.loads((tmp_path / PARTIAL).read_text())["measured"]
    again = []
    monkeypatch.setattr(run, "measure_candidate", lambda *given: again.append(given[1].key) or pretended(*given))
    rest = compare(model, folder, **QUICK, store=tmp_path, resume=True)
    assert rest.complete
    assert untimed(rest) == untimed(whole)
    assert len(again) == len(rest.entries) - 1 - len(stored["speeds"])
    assert not set(again) & set(stored["speeds"])


def test_a_corrupt_image_before_the_interruption_is_still_counted_after_it(tmp_path, interrupted):
    photos = tmp_path / "photos"
    for number in range(8):
        write_picture(photos / f"{number}.png", number)
    (photos / "0.png").write_bytes(b"no picture")
    options = QUICK | {"max_broken": 0.2, "store": tmp_path / "report"}
    interrupted(run, "measure_candidate", 1)
    with pytest.warns(UserWarning, match=r"0.png cannot be read"):
        compare(make("timm-cls"), photos, **options)
    found = compare(make("timm-cls"), photos, **options, resume=True)
    assert (found.complete, found.data["images"], found.data["broken"]) == (True, 7, 1)


def test_a_batch_whose_images_were_all_broken_is_passed_over_once(tmp_path, interrupted, monkeypatch):
    photos = tmp_path / "photos"
    for number in range(8):
        write_picture(photos / f"{number}.png", number)
    (photos / "0.png").write_bytes(b"no picture")
    options = QUICK | {"max_broken": 0.2, "store": tmp_path / "report", "batch_size": 1}
    monkeypatch.setattr(run, "SECONDS_BETWEEN_STORES", 0)
    interrupted(Classification, "predict", 20)  # in the fourth batch that there is
    with pytest.warns(UserWarning, match=r"0.png cannot be read"):
        part = compare(make("timm-cls"), photos, **options)
    assert (part.complete, part.data["images"], part.data["broken"]) == (False, 3, 1)
    found = compare(make("timm-cls"), photos, **options, resume=True)
    assert (found.complete, found.data["images"], found.data["broken"]) == (True, 7, 1)


def test_other_labels_or_checkpoints_are_another_run(folder, tmp_path, interrupted):
    interrupted(run, "measure_candidate", 2)
    compare(make("timm-cls"), folder, **QUICK, store=tmp_path)
    names = [f"kind{number}" for number in (1, 0, *range(2, CLASSES))]
    with pytest.raises(ValueError, match="belongs to another comparison: data was"):
        compare(make("timm-cls"), folder, **QUICK, store=tmp_path, resume=True, classes=names)


def test_images_given_as_tensors_cannot_be_told_apart_so_that_no_run_goes_on(tmp_path):
    with pytest.raises(ValueError, match="run on tensors or batches cannot be resumed"):
        compare(make("timm-cls"), images(2), **QUICK, store=tmp_path, resume=True)


def test_ctrl_c_before_anything_is_measured_is_just_that(folder, tmp_path, interrupted):
    interrupted(Classification, "predict", 2)
    with pytest.raises(KeyboardInterrupt):
        compare(make("timm-cls"), folder, **QUICK, store=tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budgets": (0.7,)}, r"budgets was \[0.7, 0.5\], now \[0.7\]"),
        ({"batch_size": 5}, "batch_size was 4, now 5"),
        ({"limit": 7}, "limit was None, now 7"),
        ({"seed": 3}, "seed was 0, now 3"),
        ({"name": "another"}, "model was .*'name': 'VisionTransformer'"),
    ],
)
def test_a_run_with_other_options_does_not_go_on(folder, tmp_path, interrupted, change, words):
    interrupted(run, "measure_candidate", 2)
    compare(make("timm-cls"), folder, **QUICK, store=tmp_path)
    with pytest.raises(ValueError, match=words):
        compare(make("timm-cls"), folder, **(QUICK | change), store=tmp_path, resume=True)


def test_a_run_with_other_weights_does_not_go_on(folder, tmp_path, interrupted):
    interrupted(run, "measure_candidate", 2)
    compare(make("timm-cls"), folder, **QUICK, store=tmp_path)
    other = make("timm-cls")
    other.head.bias.data[0] += 1
    with pytest.raises(ValueError, match="belongs to another comparison: model was"):
        compare(other, folder, **QUICK, store=tmp_path, resume=True)


def test_a_partial_file_that_is_none_is_refused(folder, tmp_path):
    (tmp_path / PARTIAL).write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        compare(make("timm-cls"), folder, **QUICK, store=tmp_path, resume=True)
