"""WebDataset shards on disk: found by patterns, scanned once, read in any order."""

import pickle
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import encoded, members, number_of, write_shard

from foveate.data import BrokenImage, DataError, open_data
from foveate.data.shards import expand


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{0..2}.tar", ["a-0.tar", "a-1.tar", "a-2.tar"]),
        ("a-{008..010}.tar", ["a-008.tar", "a-009.tar", "a-010.tar"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("{x}-{3..3}", ["{x}-3"]),
        ("a-{2..1}", []),
    ],
)
def test_braces_are_spelt_out(pattern, expected):
    assert list(expand(pattern)) == expected


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 4))
def test_a_range_names_each_number_once_with_its_zeros(first, count, zeros):
    width = max(2, zeros)
    names = list(expand(f"{{{first:0{width}}..{first + count:0{width}}}}"))
    assert [int(name) for name in names] == list(range(first, first + count + 1))
    if first < 10:
        assert {len(name) for name in names} <= {width, len(str(first + count))}


@pytest.fixture
def shards(tmp_path):
    write_shard(tmp_path / "pets-train-0.tar", members(range(4)))
    write_shard(tmp_path / "pets-train-1.tar", members(range(4, 6)))
    write_shard(tmp_path / "pets-val-0.tar", members(range(6, 9)))
    return tmp_path


def test_shards_are_read_in_any_order(shards):
    data = open_data(f"wds:{shards}/pets-train-{{0..1}}.tar", "train")
    assert (len(data), data.num_classes, data.classes, data.labeled) == (6, 3, None, True)
    for i in (5, 0, 3):
        sample = data.read(i)
        assert (number_of(sample.image), sample.target) == (i, i % 3)
    assert data.read(4).name == str(shards / "pets-train-1.tar" / "0004.png")
    assert number_of(pickle.loads(pickle.dumps(data)).read(2).image) == 2


def test_globs_and_splits_in_the_pattern(shards):
    assert len(open_data(f"wds:{shards}/pets-train-*.tar", "train")) == 6
    val = open_data(f"wds:{shards}/pets-{{split}}-*.tar", "validation")
    assert (val.split, len(val)) == ("val", 3)
    assert len(open_data(f"wds:{shards}/pets-val-0.tar", "val")) == 3
    with pytest.raises(DataError, match=r"has no split 'test'; it has train, val"):
        open_data(f"wds:{shards}/pets-{{split}}-*.tar", "test")
    with pytest.raises(DataError, match="not divided into splits"):
        open_data(f"wds:{shards}/pets-train-*.tar", "val")


def test_a_name_ends_at_its_first_dot(tmp_path):
    content = [
        ("notes.txt", b"hello"),
        ("a.b/001.seg.png", encoded(99)),
        ("a.b/001.JPG", encoded(1, "JPEG")),
        ("a.b/001.json", b'{"label": "dog", "width": 4}'),
        ("a.b/002.json", b'{"label": "cat"}'),
        ("a.b/002.webp", encoded(2, "WEBP")),
    ]
    data = open_data(f"wds:{write_shard(tmp_path / 's.tar', content)}", "train")
    assert (len(data), data.classes) == (2, ("cat", "dog"))
    assert [data.read(i).target for i in (0, 1)] == [1, 0]
    assert data.read(0).name.endswith("s.tar/a.b/001.JPG")


def test_shards_without_labels_are_unlabeled(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.png", encoded(1)), ("b.png", encoded(2)), ("b.json", b"{}")])
    data = open_data(f"wds:{path}", "train")
    assert (data.labeled, data.read(1).target) == (False, -1)


def test_a_broken_image_in_a_shard_is_known_by_name(tmp_path):
    path = write_shard(tmp_path / "s.tar", [("a.png", b"no image"), ("b.png", encoded(2))])
    data = open_data(f"wds:{path}", "train")
    with pytest.raises(BrokenImage, match=r"s\.tar/a\.png cannot be read"):
        data.read(0)
    assert number_of(data.read(1).image) == 2


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ([("a.txt", b"x")], {}, r"has no images"),
        ([("a.png", encoded(1)), ("a.cls", b"0"), ("b.png", encoded(2))], {}, r"b\.png has no label, but 1 other"),
        ([("a.png", encoded(1)), ("a.jpg", encoded(1))], {}, r"two images called a\."),
        ([("a.png", encoded(1)), ("a.json", b"[1]")], {}, r"a\.json does not hold a label"),
        ([("a.png", encoded(1)), ("a.json", b"{")], {}, r"a\.json does not hold a label"),
        ([("a.png", encoded(1)), ("a.json", b'{"label": [0, 1]}')], {}, r"a\.json: the label \[0, 1\] is neither an"),
        ([("a.png", encoded(1)), ("a.cls", b"7")], {"num_classes": 5}, r"a\.png: label 7 is outside 0\.\.4"),
        ([("a.png", encoded(1))], {"classes": ("x",)}, r"has no labels, but 1 classes were expected"),
        ([("a.png", encoded(1))], {"length": 5}, r"on disk, so its images are counted"),
    ],
)
def test_wrong_shards_say_what_is_wrong(tmp_path, content, options, message):
    path = write_shard(tmp_path / "s.tar", content)
    with pytest.raises(DataError, match=message):
        open_data(f"wds:{path}", "train", **options)


@pytest.mark.parametrize("length", [550, 1024, 1500, 2048])
def test_a_shard_that_is_cut_off_is_an_error(tmp_path, shards, length):
    """Inside an image, between an image and its label, inside a header, between two images."""
    whole = (shards / "pets-train-0.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:length])
    with pytest.raises(DataError, match=r"cut\.tar is not a complete, uncompressed tar file"):
        open_data(f"wds:{tmp_path}/cut.tar", "train")


def test_a_compressed_shard_is_an_error(tmp_path, shards):
    with tarfile.open(tmp_path / "small.tar", "w:gz") as archive:
        archive.add(shards / "pets-train-0.tar")
    with pytest.raises(DataError, match=r"small\.tar is not a complete, uncompressed tar file"):
        open_data(f"wds:{tmp_path}/small.tar", "train")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("pipe:touch it_ran", r"'pipe' is not supported\. Use a path, http:// or https://"),
        ("gs://bucket/x.tar", r"'gs' is not supported"),
        ("file:///x.tar", r"'file' is not supported"),
        ("none-{0..1}.tar", r"there is no shard none-0\.tar"),
        ("none-{2..1}.tar", r"matches no shards"),
    ],
)
def test_other_ways_to_shards_are_refused_and_nothing_runs(tmp_path, monkeypatch, pattern, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        open_data(f"wds:{pattern}", "train")
    assert not (tmp_path / "it_ran").exists()
