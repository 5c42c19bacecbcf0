"""Runs over many images: rows, parts, resuming, and what is refused."""

import errno
import io
import json
import os
import pickle
import tarfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from noise_pictures import picture

import foveate as fv
from foveate import files
from foveate.data import DataError, open_data
from foveate.scale import write_predictions
from foveate.scale.batches import MOST_ON_CPU, fitting_batch
from foveate.scale.manifest import MANIFEST
from foveate.scale.parts import Parts, part_size
from foveate.scale.tables import file_name
from foveate_cli.main import main


def rows(folder):
    return pq.read_table(folder).to_pylist()


def write(toy, data, out, **options):
    settings = {"processes": 1, "part_images": 4, **options}
    return write_predictions(fv.Predictor(toy, batch_size=3), data, out, **settings)


@pytest.fixture(scope="session")
def whole(toy, photos, tmp_path_factory):
    """The output of a run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    write(toy, photos, out)
    return out


def test_every_image_is_one_row_in_order_with_what_a_plain_loop_predicts(toy, photos, whole):
    data = open_data(photos, "all", labels=False)
    keys = [data.pictures.name(index) for index in range(len(data))]
    found = rows(whole)
    assert [row["key"] for row in found] == keys
    predictor = fv.Predictor(toy)
    for row in found:
        alone = predictor({"image": [row["key"]]})
        if alone["error"][0]:
            assert row["error"] == alone["error"][0]
            assert row["classes"] is None
            assert row["probabilities"] is None
        else:
            assert row["error"] is None
            assert row["classes"] == alone["classes"][0].tolist()
            assert np.allclose(row["probabilities"], alone["probabilities"][0], atol=1e-6)
    assert sum(row["error"] is not None for row in found) == 1


def test_the_manifest_says_what_was_done(whole, photos, toy):
    manifest = json.loads((whole / MANIFEST).read_text())
    assert manifest["complete"] is True
    assert manifest["counts"] == {"images": 25, "predicted": 24, "broken": 1, "files": 7}
    (failure,) = manifest["failures"]
    assert failure["key"].endswith("07.png")
    assert "does not recognize" in failure["error"]
    job = manifest["job"]
    assert (job["model"], job["data"], job["output"], job["images"]) == (str(toy), str(photos), "classes", 25)


def test_embeddings_are_lists_of_one_length(toy, photos, tmp_path):
    predictor = fv.Predictor(toy, output="embedding", dtype="float16", reduction="tome --remove 3")
    write_predictions(predictor, photos, tmp_path / "out", processes=1)
    table = pq.read_table(tmp_path / "out")
    assert table.schema.field("embedding").type == pa.list_(pa.float16(), 16)
    assert table["embedding"].null_count == 1
    reduction = json.loads((tmp_path / "out" / MANIFEST).read_text())["job"]["reduction"]
    assert fv.Reduction.from_dict(reduction) == fv.Reduction("tome", fv.RemovePerBlock(3))


def test_progress_has_images_speed_and_time_left(toy, photos, tmp_path):
    seen = []
    summary = write(toy, photos, tmp_path / "out", progress=lambda *report: seen.append(report))
    assert (summary.images, summary.broken, summary.files, summary.written) == (25, 1, 7, 25)
    assert seen[-1][:3] == ("images", 25, 25)
    assert "img/s" in seen[-1][3]
    assert seen[-1][3].endswith("0 s left")


class Interrupted(Exception):
    pass


def stopped_after(parts, toy, photos, out, monkeypatch):
    """A run that ends by an exception after some parts."""
    real, done = files.replacing_all, []

    def replacing_all(paths):
        if paths[-1].suffix == ".parquet":
            done.append(paths)
            if len(done) > parts:
                raise Interrupted
        return real(paths)

    with monkeypatch.context() as patch:
        patch.setattr(files, "replacing_all", replacing_all)
        with pytest.raises(Interrupted):
            write(toy, photos, out)


def test_a_resumed_run_adds_what_is_missing_and_keeps_what_is_there(toy, photos, whole, tmp_path, monkeypatch):
    out = tmp_path / "out"
    stopped_after(3, toy, photos, out, monkeypatch)
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert len(kept) == 3
    summary = write(toy, photos, out, resume=True, part_images=None)
    assert (summary.images, summary.written) == (25, 13)
    assert rows(out) == rows(whole)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert write(toy, photos, out, resume=True).written == 0
    assert rows(out) == rows(whole)


def test_damaged_parts_are_written_again(toy, photos, whole, tmp_path):
    out = tmp_path / "out"
    write(toy, photos, out)
    for part, content in ((1, b"PAR1"), (2, b"")):
        (out / file_name(part)).write_bytes(content)
    assert write(toy, photos, out, resume=True).written == 8
    assert rows(out) == rows(whole)


@pytest.fixture
def served(tmp_path):
    """A folder behind a URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    (tmp_path / "served").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path / "served", f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def write_shard(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def test_streamed_shards_become_one_file_each_also_without_images(toy, served, tmp_path):
    folder, url = served
    write_shard(folder / "s-0.tar", [("0.png", picture(0)), ("0.cls", b"7"), ("1.png", b"no")])
    write_shard(folder / "s-1.tar", [("notes.txt", b"x")])
    write_shard(folder / "s-2.tar", [("2.png", picture(2))])
    source, out = f"wds:{url}/s-{{0..2}}.tar", tmp_path / "out"
    summary = write(toy, source, out, part_images=None)
    assert (summary.images, summary.broken, summary.files) == (3, 1, 3)
    assert [row["key"] for row in rows(out)] == [f"{url}/s-0.tar/0.png", f"{url}/s-0.tar/1.png", f"{url}/s-2.tar/2.png"]
    assert write(toy, source, out, part_images=None, resume=True).written == 0
    write_shard(folder / "s-1.tar", [("3.png", picture(3)), ("notes", b"x"), ("3.png", picture(4))])
    (out / file_name(1)).unlink()
    with pytest.raises(DataError, match=r"The key .*s-1.tar/3.png repeats"):
        write(toy, source, out, part_images=None, resume=True)
    with pytest.raises(DataError, match="is a stream, of which no images are drawn"):
        write(toy, source, tmp_path / "other", limit=1)


def test_a_folder_of_another_run_is_refused_and_left_alone(toy, photos, whole, tmp_path):
    def content():
        return {path.name: path.read_bytes() for path in whole.iterdir()}

    before = content()
    with pytest.raises(ValueError, match=r"holds the predictions of .*model for .*photos. Go on with --resume"):
        write(toy, photos, whole)
    with pytest.raises(ValueError, match=r"holds another run: its top_k is 5, and 2 was given"):
        write_predictions(fv.Predictor(toy, top_k=2), photos, whole, resume=True)
    with pytest.raises(ValueError, match=r"its data is .*photos', and '.*album0' was given"):
        write(toy, photos / "album0", whole, resume=True)
    with pytest.raises(ValueError, match="its part_images is 4, and 5 was given"):
        write(toy, photos, whole, resume=True, part_images=5)
    assert content() == before
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"holds other files, such as notes.txt"):
        write(toy, photos, tmp_path)


def test_a_part_of_another_run_is_refused(toy, photos, whole, tmp_path):
    out = tmp_path / "out"
    write_predictions(fv.Predictor(toy, batch_size=3, top_k=2), photos, out, processes=1, part_images=4)
    (out / file_name(2)).write_bytes((whole / file_name(2)).read_bytes())
    with pytest.raises(ValueError, match=r"part-000002.parquet belongs to another run"):
        write_predictions(fv.Predictor(toy, batch_size=3, top_k=2), photos, out, processes=1, resume=True)


def test_other_weights_are_another_run(toy, photos, tmp_path):
    model = fv.load(toy).eval()
    write_predictions(fv.Predictor(model), photos, tmp_path / "out", processes=1)
    model.head.bias.data.add_(1)
    with pytest.raises(ValueError, match="holds another run: its weights is"):
        write_predictions(fv.Predictor(model), photos, tmp_path / "out", processes=1, resume=True)


def test_a_full_disk_leaves_earlier_parts(toy, photos, whole, tmp_path, monkeypatch, capsys):
    out, real, flushes = tmp_path / "out", os.fsync, []

    def fsync(descriptor):
        flushes.append(descriptor)
        if len(flushes) == 4:  # the manifest and two parts are written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    command = ["predict", str(toy), "--data", str(photos), "--out", str(out), "--processes", "1", "--part-images", "4"]
    command += ["--batch-size", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", fsync)
        assert main(command) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == [MANIFEST, file_name(0), file_name(1)]
    assert main([*command, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 17
    assert rows(out) == rows(whole)


def test_keys_that_repeat_are_named(toy, photos, tmp_path):
    names = [path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.png"))]
    table = photos.parent / "twice.csv"
    table.write_text("\n".join(["file", *(f"photos/{name}" for name in [*names, names[3]])]))
    with pytest.raises(DataError, match=r"1 keys of these images repeat: .*09.png\. Each image needs"):
        write(toy, table, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    parquet = tmp_path / "images.parquet"
    pq.write_table(pa.table({"image": [picture(1), picture(2)], "id": ["x", "x"]}), parquet)
    with pytest.raises(DataError, match="1 keys of these images repeat: x"):
        write(toy, parquet, tmp_path / "out", key_column="id")
    assert write(toy, parquet, tmp_path / "out").images == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "spark"}, "engine must be one of local, ray"),
        ({"address": "head:6379"}, r"is of a Ray cluster. Set engine='ray'"),
        ({"engine": "ray", "address": "head"}, "A Ray address is HOST:PORT"),
        ({"engine": "ray", "address": "127.0.0.1:9"}, "No Ray cluster answers at 127.0.0.1:9"),
        ({"processes": 0}, "processes must be an integer of at least 1"),
        ({"split": "val"}, "is not divided into splits"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_written(toy, photos, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        write(toy, photos, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_two_runs_do_not_share_a_folder(toy, photos, tmp_path):
    with files.exclusive_lock(tmp_path / "out", "foveate predict"), pytest.raises(files.FolderInUse, match="in use"):
        write(toy, photos, tmp_path / "out")


def test_the_division_covers_every_image_once(photos):
    data = open_data(photos, "all", labels=False)
    for size in (1, 4, 25, 40):
        parts = Parts(pickle.loads(pickle.dumps(data)), size)
        keys = [key for part in range(len(parts)) for key, _ in parts.read(part)]
        assert keys == [data.pictures.name(index) for index in range(25)]
        assert sum(parts.count(part) for part in range(len(parts))) == 25


def test_sizes_of_parts_and_batches(toy):
    assert part_size(None, 2, 16) == 1000
    assert part_size(100, 2, 16) == 16
    assert part_size(20_000, 2, 32) == 1024
    assert part_size(10**9, 64, 32) == 100_000
    runnable = fv.Predictor(toy).runnable
    sizes = [fitting_batch(runnable, True, memory) for memory in (0, 2**18, 2**30)]
    assert sizes[0] == 1
    assert 1 < sizes[1] < MOST_ON_CPU
    assert sizes[2] == MOST_ON_CPU
    assert fitting_batch(runnable, False, 0) == 64


def test_the_commands(toy, photos, tmp_path, capsys):
    out = str(tmp_path / "vectors")
    assert main(["embed", str(toy), "--data", str(photos), "--out", out, "--processes", "1", "--limit", "10"]) == 0
    printed = capsys.readouterr().out
    assert "10 images in" in printed
    assert "img/s" in printed
    assert len(rows(out)[0]["embedding"]) == 16
    assert main(["embed", str(toy), "--data", str(photos), "--out", out, "--limit", "10"]) == 2
    assert "Go on with --resume" in capsys.readouterr().err
