"""results.json: other content than was written is noticed, and files of earlier versions are still read."""

import json

import pytest

from comparing import QUICK
from foveate.files import sealed
from foveate.report.compare import compare, load_results
from zoo import images, make

pytestmark = pytest.mark.usefixtures("no_clock_and_no_gallery")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    compare(make("timm-cls"), images(2), **QUICK).save(folder)
    return (folder / "results.json").read_text()


def written(folder, text):
    (folder / "results.json").write_text(text)
    return folder


def test_it_reads_what_was_written(tmp_path, stored):
    data = json.loads(stored)
    assert data["format"] == 2
    assert load_results(written(tmp_path, stored)).entries[0].macs == data["entries"][0]["macs"]


@pytest.mark.parametrize("change", [("agreement", 12.5), ("macs", 7), ("label", "Other")])
def test_an_edited_figure_is_noticed(tmp_path, stored, change):
    data = json.loads(stored)
    data["entries"][-1][change[0]] = change[1]
    with pytest.raises(ValueError, match=r"results.json is damaged or was edited.* Repeat the comparison"):
        load_results(written(tmp_path, json.dumps(data)))


def test_results_without_a_checksum_are_read(tmp_path, stored):
    data = json.loads(stored) | {"format": 1}
    del data["checksum"]
    assert load_results(written(tmp_path, json.dumps(data))).entries


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("entries", 0, "macs"), "abc", "An entry.macs takes a whole number; got 'abc'"),
        (("entries", 0, "counts"), [1.5], "An entry.counts takes a whole number; got 1.5"),
        (("entries", 0, "speed_up_quartiles"), [1, 2, 3], "speed_up_quartiles takes a list"),
        (("data", "note"), 3, "data.note takes text; got 3"),
        (("environment", "cpu"), None, "environment.cpu takes text"),
        (("recommendation", "entry"), 99, "recommendation.entry is 99"),
        (("recommendation", "nonsense"), 1, "recommendation has no 'nonsense'"),
    ],
)
def test_wrong_values_are_refused_in_words(tmp_path, stored, path, value, words):
    data = json.loads(stored)
    data.pop("checksum")
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(ValueError, match=words):
        load_results(written(tmp_path, json.dumps(sealed(data))))
