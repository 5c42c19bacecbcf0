"""Data sets of Hugging Face, from disk and, with a stand-in for the Hub, by name."""

import pickle

import pytest
from pictures import encoded, number_of

from foveate.data import BrokenImage, DataError, open_data

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def table(numbers, label=None, **more):
    """Pictures with a column of labels, and other columns as (values, feature)."""
    columns = {"picture": ([{"bytes": encoded(n), "path": None} for n in numbers], datasets.Image())}
    if label is not None:
        columns["label"] = label
    columns |= more
    features = datasets.Features({name: feature for name, (_, feature) in columns.items()})
    return datasets.Dataset.from_dict({name: values for name, (values, _) in columns.items()}, features=features)


def named(*names):
    return datasets.ClassLabel(names=list(names))


@pytest.fixture
def saved(tmp_path):
    def saved(**splits):
        datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
        return f"hf:{tmp_path / 'set'}"

    return saved


def test_columns_are_found_by_their_types(saved):
    spec = saved(
        train=table([1, 2, 3], kind=([0, 1, 1], named("cat", "dog")), width=([5, 5, 5], datasets.Value("int64"))),
        validation=table([4], kind=([1], named("cat", "dog")), width=([5], datasets.Value("int64"))),
    )
    data = open_data(spec, "train")
    assert (len(data), data.classes, data.labeled) == (3, ("cat", "dog"), True)
    assert [(number_of(s.image), s.target) for s in map(data.read, range(3))] == [(1, 0), (2, 1), (3, 1)]
    assert len({data.read(i).name for i in range(3)}) == 3
    val = open_data(spec, "val", classes=("dog", "cat"))
    assert (val.split, val.read(0).target) == ("validation", 0)


def test_open_data_travel_to_worker_processes(saved):
    data = open_data(saved(train=table([1, 2], ([0, 1], named("a", "b")))), "train")
    assert number_of(pickle.loads(pickle.dumps(data)).read(1).image) == 2


def test_labels_may_be_plain_numbers_names_or_missing(saved):
    spec = saved(
        train=table([1, 2], ([1, 0], datasets.Value("int64"))),
        names=table([1, 2], (["dog", "cat"], datasets.Value("string"))),
        none=table([1]),
        test=table([1, 2], ([-1, -1], named("a", "b"))),
    )
    assert open_data(spec, "train").read(0).target == 1
    names = open_data(spec, "names")
    assert (names.classes, names.read(0).target) == (("cat", "dog"), 1)
    assert not open_data(spec, "none").labeled
    assert not open_data(spec, "test").labeled  # published without labels


def test_a_broken_image_is_known_by_its_row(saved):
    rows = [{"bytes": encoded(1), "path": None}, {"bytes": b"not an image", "path": None}]
    bad = datasets.Dataset.from_dict({"picture": rows}, features=datasets.Features(picture=datasets.Image()))
    data = open_data(saved(train=bad), "train")
    assert number_of(data.read(0).image) == 1
    with pytest.raises(BrokenImage, match=r"train\[1\] cannot be read: Pillow does not recognize its image format"):
        data.read(1)


def test_several_columns_of_labels_need_a_word(saved):
    both = {"fine": ([0, 1], named("a", "b")), "coarse": ([0, 0], named("x"))}
    spec = saved(train=table([1, 2], **both))
    with pytest.raises(DataError, match=r"several label columns: fine, coarse\. Choose one with label_column"):
        open_data(spec, "train")
    assert open_data(spec, "train", label_column="fine").classes == ("a", "b")
    with pytest.raises(DataError, match=r"no column 'color'; it has picture, fine, coarse"):
        open_data(spec, "train", label_column="color")


@pytest.mark.parametrize(
    ("split", "options", "message"),
    [
        ("val", {}, r"has no split 'val'; it has few, gap, none, train, wrong"),
        ("train", {"classes": ("a", "c")}, r"other classes than expected: it lacks c and adds b"),
        ("gap", {}, r"row 1: the column 'label' is empty"),
        ("wrong", {}, r"image 1: label -1 is outside 0\.\.1"),
        ("none", {"classes": ("a", "b")}, r"none has no labels, but 2 classes were expected"),
    ],
)
def test_what_is_wrong_is_said_before_training(saved, split, options, message):
    ab = named("a", "b")
    spec = saved(
        train=table([1, 2], ([0, 1], ab)),
        gap=table([1, 2], ([0, None], ab)),
        wrong=table([1, 2], ([0, -1], ab)),
        none=table([1]),
        few=table([1], ([0], ab)),
    )
    with pytest.raises(DataError, match=message):
        open_data(spec, split, **options)


def test_one_hot_labels_are_not_taken_for_names(saved):
    one_hot = ([[1, 0], [0, 1]], datasets.Sequence(datasets.Value("int64")))
    with pytest.raises(DataError, match=r"row 0: the label \[1, 0\] is neither an integer nor a name. Of a one-hot"):
        open_data(saved(train=table([1, 2], one_hot)), "train")


def test_a_class_without_images_is_an_error_in_training(saved):
    spec = saved(train=table([1], ([0], named("a", "b"))), test=table([1], ([0], named("a", "b"))))
    with pytest.raises(DataError, match=r"no image of 1 of its 2 classes: b"):
        open_data(spec, "train")
    assert open_data(spec, "test").num_classes == 2


def test_a_table_without_splits_is_training_data(tmp_path):
    table([1, 2]).save_to_disk(tmp_path / "flat")
    assert len(open_data(f"hf:{tmp_path / 'flat'}", "train")) == 2
    with pytest.raises(DataError, match="not divided into splits"):
        open_data(f"hf:{tmp_path / 'flat'}", "val")


def test_without_an_image_column_the_columns_are_named(tmp_path):
    datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": ["a"]})).save_to_disk(tmp_path / "text")
    with pytest.raises(DataError, match=r"has no image column; its columns are text"):
        open_data(f"hf:{tmp_path / 'text'}", "train")


def test_a_folder_of_parquet_files_opens_like_a_set_of_the_hub(tmp_path):
    for name, numbers in (("train", [1, 2]), ("validation", [3])):
        table(numbers, ([0] * len(numbers), named("a"))).to_parquet(tmp_path / "set" / f"{name}-00000.parquet")
    data = open_data(f"hf:{tmp_path / 'set'}", "val")
    assert (data.split, number_of(data.read(0).image), data.classes) == ("validation", 3, ("a",))


def test_a_name_is_looked_for_on_the_hub_and_only_the_split_is_fetched(monkeypatch):
    fetched = []

    def load(name, **options):
        fetched.append((name, options))
        return table([1], ([0], named("a")))

    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name: ["train", "test"])
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert open_data("hf:someone/pets", "val").split == "test"
    assert fetched == [("someone/pets", {"split": "test"})]  # no trust_remote_code


def test_a_folder_with_a_script_is_not_run(tmp_path):
    marker = tmp_path / "it_ran"
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(DataError, match="cannot be loaded"):
        open_data(f"hf:{tmp_path / 'evil'}", "train")
    assert not marker.exists()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package 'datasets': pip install foveate\[data\]"):
        open_data("hf:x", "train")


@pytest.mark.parametrize(
    ("file", "content"),
    [(file, content) for file in ("state.json", "dataset_info.json") for content in ("", "null", "[" * 100_000)]
    + [("state.json", "{}"), ("state.json", '{"_data_files": 1}')],
)
def test_a_damaged_folder_is_refused_in_words(tmp_path, file, content):
    table(range(2)).save_to_disk(tmp_path / "set")
    (tmp_path / "set" / file).write_text(content)
    with pytest.raises(DataError, match=r"hf:.*cannot be loaded"):
        open_data(f"hf:{tmp_path / 'set'}", "train")
