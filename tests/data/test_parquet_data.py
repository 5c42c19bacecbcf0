"""Parquet files: bytes or paths, rows across files and row groups, keys and labels."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encoded, number_of

from foveate.data import BrokenImage, DataError, open_data


def numbers(data):
    return [number_of(data.read(index).image) for index in range(len(data))]


def test_rows_of_several_files_and_row_groups_are_read_in_any_order(tmp_path):
    for name, first, count in (("a", 0, 5), ("b", 5, 4)):
        table = pa.table({"image": [encoded(n) for n in range(first, first + count)]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
    for spec in (f"parquet:{tmp_path}/*.parquet", f"parquet:{tmp_path}", f"parquet:{tmp_path}/{{a,b}}.parquet"):
        data = pickle.loads(pickle.dumps(open_data(spec, "all")))
        assert numbers(data) == list(range(9))
    assert [number_of(data.read(i).image) for i in (8, 0, 6, 3)] == [8, 0, 6, 3]
    assert data.read(6).name == f"{tmp_path}/b.parquet[1]"
    assert not data.labeled


def test_columns_are_found_by_their_types(tmp_path, write):
    write(tmp_path / "pictures" / "3.png", 3)
    path = tmp_path / "images.parquet"
    pq.write_table(pa.table({"path": ["pictures/3.png"], "id": ["x"], "label": [0]}), path)
    data = open_data(path, "all", key_column="id")
    assert (numbers(data), data.read(0).name, data.read(0).target, data.num_classes) == ([3], "x", 0, 1)
    rows = [{"bytes": encoded(4), "path": None}, {"bytes": None, "path": "pictures/3.png"}]
    pq.write_table(pa.table({"photo": rows, "label": ["cat", "dog"]}), path)
    data = open_data(path, "all")
    assert (numbers(data), data.classes) == ([4, 3], ("cat", "dog"))
    assert open_data(path, "all", labels=False).labels is None
    pq.write_table(pa.table({"one": [encoded(1)], "two": [encoded(2)]}), path)
    with pytest.raises(DataError, match=r"several columns of bytes \(one, two\).*--image-column"):
        open_data(path, "all")
    assert numbers(open_data(path, "all", image_column="two")) == [2]


def test_a_row_that_cannot_be_read_is_broken_by_its_key(tmp_path):
    path = tmp_path / "images.parquet"
    pq.write_table(pa.table({"image": pa.array([encoded(1), None, b"no"], pa.binary())}), path)
    data = open_data(path, "all")
    for index, reason in ((1, "the column 'image' is empty"), (2, "does not recognize")):
        with pytest.raises(BrokenImage, match=reason) as caught:
            data.read(index)
        assert caught.value.name == f"{path}[{index}]"
    pq.write_table(pa.table({"path": ["../outside.png"]}), path)
    with pytest.raises(BrokenImage, match="which is outside"):
        open_data(path, "all").read(0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_column": "id"}, "the column 'id' is not bytes or text"),
        ({"image_column": "photo"}, "the column 'photo' does not exist; its columns are image, id"),
        ({"key_column": "name"}, "has no column 'name' for the key; it has image, id"),
        ({"label_column": "class"}, "has no column 'class' for the label"),
        ({"classes": ["cat"]}, "has no labels, but 1 classes were expected"),
        ({"root": "x"}, "does not take root, which is for torchvision: data"),
    ],
)
def test_wrong_columns_are_named(tmp_path, options, words):
    path = tmp_path / "images.parquet"
    pq.write_table(pa.table({"image": [encoded(1)], "id": [1]}), path)
    with pytest.raises(DataError, match=words):
        open_data(path, "all", **options)


def test_files_that_cannot_be_used_are_named(tmp_path):
    path = tmp_path / "images.parquet"
    with pytest.raises(DataError, match=r"images.parquet: there is no such file"):
        open_data(path, "all")
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        open_data(path, "all")
    pq.write_table(pa.table({"id": [1]}), path)
    with pytest.raises(DataError, match="has no column of bytes, nor image, path"):
        open_data(path, "all")
    pq.write_table(pa.table({"image": pa.array([], pa.binary())}), path)
    with pytest.raises(DataError, match="has no images"):
        open_data(path, "all")
    with pytest.raises(DataError, match="is not divided into splits"):
        open_data(path, "val")


def test_without_labels_a_folder_has_images_at_any_depth(tmp_path, write):
    for number, name in enumerate(["a.png", "train/b.png", "train/cat/c.png", "val/cat/d.png"]):
        write(tmp_path / name, number)
    assert numbers(open_data(tmp_path, "all", labels=False)) == [0, 1, 2, 3]
    assert numbers(open_data(tmp_path, "train", labels=False)) == [1, 2]
