"""Data that claim too much, never end or point elsewhere: each ends in an error that names the limit."""

import http.server
import itertools
import json
import os
import tarfile
import threading
import time
from pathlib import Path

import pytest
from pictures import encoded, members, plain, write_shard

from foveate.data import DataError, Loader, open_data
from foveate.data.images import BrokenImage
from foveate.data.labels import read_class_names
from foveate.data.limits import as_markdown
from foveate.data.open import open_instances
from foveate.data.shards import expand

HUGE = 60 * 10**9


def header(name, size, kind=tarfile.REGTYPE):
    """The header of a tar member alone."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(records, name="x.jpg"):
    """A member with these records, as anybody may write them."""
    body = b"".join(b"%d %s=%s\n" % (len(k) + len(v) + 3 + 2, k, v) for k, v in records)
    padded = body + bytes(-len(body) % 512)
    return header("pax", len(body), tarfile.XHDTYPE) + padded + header(name, 0)


CLAIMS = {
    "image": (header("x.jpg", HUGE), r"x\.jpg claims 60000000000 bytes; FOVEATE_IMAGE_BYTES="),
    "label": (header("x.cls", HUGE), r"x\.cls claims 60000000000 bytes; FOVEATE_LABEL_BYTES="),
    "name": (
        header("x", HUGE, tarfile.GNUTYPE_LONGNAME),
        "A name in this tar file claims 60000000000 bytes; FOVEATE_LA",
    ),
    "back": (pax([(b"size", b"-1024")]), r"x\.jpg claims -1024 bytes\. The tar file is damaged"),
}


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("streamed", [False, True])
def test_members_that_claim_too_much(tmp_path, serve, kind, streamed):
    content, words = CLAIMS[kind]
    (tmp_path / "x.tar").write_bytes(content + bytes(1024))
    where = serve(lambda reply: reply.write(content + bytes(1024))) if streamed else tmp_path
    with pytest.raises(DataError, match=words):
        open_data(f"wds:{where}/x.tar", "train", num_classes=3, **({"length": 3} if streamed else {}))


def test_a_limit_is_raised_by_its_variable(tmp_path, monkeypatch):
    write_shard(tmp_path / "x.tar", members(range(3)))
    monkeypatch.setenv("FOVEATE_IMAGE_BYTES", "10")
    with pytest.raises(DataError, match=r"FOVEATE_IMAGE_BYTES=10 is the limit\. If that is intended, set"):
        open_data(f"wds:{tmp_path}/x.tar", "train")
    monkeypatch.setenv("FOVEATE_IMAGE_BYTES", "10000")
    assert len(open_data(f"wds:{tmp_path}/x.tar", "train")) == 3
    monkeypatch.setenv("FOVEATE_IMAGE_BYTES", "much")
    with pytest.raises(DataError, match="must be a whole number"):
        open_data(f"wds:{tmp_path}/x.tar", "train")


@pytest.fixture
def serve(monkeypatch):
    """``serve(answer)``: an address where ``answer(file)`` writes what follows the head; it may hang up."""
    monkeypatch.setenv("no_proxy", "*")
    servers = []

    def start(answer, head=b"HTTP/1.0 200 OK\r\n\r\n"):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                try:
                    self.wfile.write(head)
                    answer(self.wfile)
                except OSError:
                    pass  # the reader has left

            def log_message(self, *args): ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def drip(reply):
    for _ in range(500):  # bounded, should the reader never leave
        reply.write(b"x")
        time.sleep(0.02)


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nX: "])
def test_a_server_that_sends_a_byte_now_and_then(serve, monkeypatch, head):
    monkeypatch.setenv("FOVEATE_WAIT_SECONDS", "1")
    with pytest.raises(DataError, match=r"the server sent \d+ bytes in 1 s\. .*FOVEATE_BYTES_PER_SECOND=1000"):
        open_data(f"wds:{serve(drip, head)}/x.tar", "train", length=3)


def test_a_server_that_says_nothing(serve, monkeypatch):
    monkeypatch.setenv("FOVEATE_WAIT_SECONDS", "1")
    silence = threading.Event()
    with pytest.raises(DataError, match="timed out"):
        open_data(f"wds:{serve(lambda reply: silence.wait(60))}/x.tar", "train", length=3)
    silence.set()


def test_a_body_that_never_ends(serve, monkeypatch):
    monkeypatch.setenv("FOVEATE_SHARD_BYTES", "200000")

    def endless(reply):
        for number in itertools.count():
            picture = encoded(number % 9)
            reply.write(header(f"{number}.png", len(picture)) + picture + bytes(-len(picture) % 512))

    data = open_data(f"wds:{serve(endless)}/x.tar", "all")
    loader = Loader(data, plain, 4, seed=0, train=False)
    with pytest.raises(DataError, match=r"bytes for one shard; FOVEATE_SHARD_BYTES=200000 is the limit"):
        for _ in loader.epoch(0):
            pass


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x"])
def test_redirects_to_another_scheme(serve, target):
    address = serve(lambda reply: None, f"HTTP/1.0 302 Found\r\nLocation: {target}\r\n\r\n".encode())
    with pytest.raises(DataError, match=r"redirects from http to|Redirection to url .* is not allowed"):
        open_data(f"wds:{address}/x.tar", "train", length=3)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("x-{0..999999999999}.tar", "stands for 1000000000000 shards; FOVEATE_SHARDS=100000"),
        ("x-{split}-{000..999}{000..999}.tar", "stands for 1000000 shards"),
        ("x" + "{a,b}" * 5000, r"more than 10\*\*18 shards; FOVEATE_SHARDS"),
        ("x" + "{1..1}" * 5000, "5000 braces; at most 30"),
        ("x-{0.." + "9" * 5000 + "}", r"stands for more than 10\*\*18 shards"),
    ],
)
def test_patterns_of_too_many_shards(pattern, words):
    with pytest.raises(DataError, match=words):
        open_data(f"wds:{pattern}", "train")


def test_as_many_shards_as_allowed_are_spelled_out():
    assert len(list(expand("{0..99}-{000..999}"))) == 100_000


@pytest.mark.parametrize("label", [10**12, 10**20, 10**400])
def test_labels_that_would_be_as_many_classes(tmp_path, write, label):
    write(tmp_path / "a.png", 1)
    (tmp_path / "x.csv").write_text(f"file,label\na.png,{label}\n")
    with pytest.raises(DataError, match=r"counted by its largest label; FOVEATE_CLASSES=1000000 is the limit"):
        open_data(tmp_path / "x.csv", "train")
    with pytest.raises(DataError, match=rf"line 2: label {label} is outside 0\.\.6"):
        open_data(tmp_path / "x.csv", "train", num_classes=7)
    with pytest.raises(DataError, match=r"num_classes is 1000000000000; FOVEATE_CLASSES"):
        open_data(tmp_path / "x.csv", "train", num_classes=10**12)


def test_fields_of_a_csv_that_a_forgotten_quote_makes_endless(tmp_path, write):
    write(tmp_path / "a.png", 1)
    (tmp_path / "x.csv").write_text('file,label\n"a.png,1\n' + "a.png,1\n" * 20_000)
    with pytest.raises(DataError, match=r"field larger than field limit \(131072\)\. Look for a quote"):
        open_data(tmp_path / "x.csv", "train")


def test_json_that_is_nested_too_deeply(tmp_path):
    deep = "[" * 100_000
    (tmp_path / "classes.json").write_text(deep)
    with pytest.raises(DataError, match="nested too deeply"):
        read_class_names(tmp_path / "classes.json")
    write_shard(tmp_path / "x.tar", [("0.png", encoded(0)), ("0.json", deep.encode())])
    with pytest.raises(DataError, match="nested too deeply"):
        open_data(f"wds:{tmp_path}/x.tar", "train")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_train.json").write_text(deep)
    with pytest.raises(DataError, match="nested too deeply"):
        open_instances(tmp_path, "train", "instances")


def test_repeats_without_end(tmp_path):
    write_shard(tmp_path / "x.tar", members(range(8)))
    data = open_data(f"wds:{tmp_path}/x.tar", "train")
    with pytest.raises(DataError, match=r"repeats is 1000000000; FOVEATE_REPEATS=1000 is the limit"):
        Loader(data, plain, 4, seed=0, train=True, repeats=10**9)
    batches = list(Loader(data, plain, 4, seed=0, train=True, repeats=1000).epoch(0))
    assert len({name for batch in batches for name in batch.names}) == 1


@pytest.mark.parametrize("name", ["../secret.png", "{above}/secret.png", "b/../../secret.png"])
def test_rows_that_name_files_elsewhere(tmp_path, write, monkeypatch, name):
    write(tmp_path / "secret.png", 1)
    write(tmp_path / "set" / "b" / "own.png", 1)
    row = name.format(above=tmp_path)
    (tmp_path / "set" / "x.csv").write_text(f"file\nb/own.png\n{row}\n")
    image = {"id": 1, "file_name": row, "height": 8, "width": 8}
    content = {"images": [image], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "set" / "x.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"outside .*set.*FOVEATE_FILES_OUTSIDE=1"):
        open_data(tmp_path / "set" / "x.csv", "train")
    with pytest.raises(DataError, match=r"outside .*FOVEATE_FILES_OUTSIDE=1"):
        open_instances(tmp_path / "set" / "x.json", "train", "instances")
    monkeypatch.setenv("FOVEATE_FILES_OUTSIDE", "1")
    assert len(open_data(tmp_path / "set" / "x.csv", "train")) == 2


def test_absolute_names_inside_are_inside(tmp_path, write, monkeypatch):
    write(tmp_path / "set" / "own.png", 1)
    (tmp_path / "set" / "x.csv").write_text(f"file\n{tmp_path}/set/own.png\n")
    monkeypatch.chdir(tmp_path)
    assert len(open_data("set/x.csv", "train")) == 1


def test_rows_of_a_dataset_that_name_files_elsewhere(tmp_path, write, monkeypatch):
    datasets = pytest.importorskip("datasets")
    write(tmp_path / "secret.png", 1)
    rows = datasets.Dataset.from_dict(
        {"image": [{"path": str(tmp_path / "secret.png"), "bytes": None}]},
        features=datasets.Features({"image": datasets.Image()}),
    )
    monkeypatch.setattr(datasets, "load_from_disk", lambda name: rows)  # save_to_disk would store the bytes
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "state.json").touch()
    with pytest.raises(BrokenImage, match=r"secret\.png, which is outside"):
        open_data(f"hf:{tmp_path / 'set'}", "train").read(0)
    monkeypatch.setenv("FOVEATE_FILES_OUTSIDE", "1")
    open_data(f"hf:{tmp_path / 'set'}", "train").read(0)


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_files_that_are_no_images_do_not_hang(tmp_path, write, monkeypatch, kind):
    write(tmp_path / "cats" / "0.png", 1)
    odd = tmp_path / "cats" / "1.png"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        with odd.open("wb") as file:
            file.truncate(10**9)
        monkeypatch.setenv("FOVEATE_IMAGE_BYTES", "100000")
    data = open_data(tmp_path, "train")
    reason = "It has 1000000000 bytes; FOVEATE_IMAGE_BYTES" if kind == "large" else "not a regular file"
    with pytest.raises(BrokenImage, match=reason):
        data.read(1)


def test_trees_of_links_end(tmp_path, write):
    """Loops, links to oneself and to folders above: each folder is walked once, however many ways lead there."""
    root = tmp_path / "set"
    for name in "abc":
        write(root / "cats" / name / f"{name}.png", 1)
    targets = ("../a", "../b", "../c", ".", "..", "../..", "../../..")
    for name, (number, target) in itertools.product("abc", enumerate(targets)):
        (root / "cats" / name / f"to-{number}").symlink_to(target)
    (root / "cats" / "self").symlink_to("self")
    (root / "cats" / "self.png").symlink_to("self.png")
    (root / "cats" / "ping").symlink_to("pong")
    (root / "cats" / "pong").symlink_to("ping")
    data = open_data(root, "train")
    names = sorted(Path(data.pictures.name(index)).name for index in range(len(data)))
    assert names == ["a.png", "b.png", "c.png", "self.png"]
    with pytest.raises(BrokenImage, match="symbolic link"):
        data.read(3)


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="this system has no /proc")
def test_links_into_the_kernels_view_end(tmp_path, write):
    """``/proc`` has links to every folder of every process, so that walking it would not end."""
    write(tmp_path / "cats" / "1.png", 1)
    (tmp_path / "cats" / "processes").symlink_to("/proc")
    assert len(open_data(tmp_path, "train")) == 1


def test_the_documented_table_is_current():
    assert as_markdown() in (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
