"""The server of ``examples/serve``: answers, limits, batching, and a shutdown that loses no request."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from zoo import images, make

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "serve"))
app = pytest.importorskip("app", reason="the extra serve is not installed")

NAMES = [f"class {number}" for number in range(7)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = fv.reduce_(make("timm-cls", 2), fv.ToMe(), fv.KeepRate(0.6, blocks=(0,)))
    return str(fv.export(model, tmp_path_factory.mktemp("out") / "fast", "onnx", data=images(3), classes=NAMES))


def picture(kind="JPEG", size=(40, 30)):
    held = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(held, kind)
    return held.getvalue()


def ask(folder, requests, **limits):
    """The answers, each (status, text), to requests that arrive at the same time: (method, path, body)."""

    async def all_of_them():
        served = app.create_app(folder, app.Limits(**limits))
        async with served.router.lifespan_context(served):
            return await asyncio.gather(*(one(served, *request) for request in requests))

    return asyncio.run(all_of_them())


async def one(served, method, path, body=b""):
    sent = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "http_version": "1.1"}
    await served(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_picture_gets_its_classes(folder, kind):
    ((status, text),) = ask(folder, [("POST", "/predict", picture(kind))])
    found = json.loads(text)["predictions"]
    assert status == 200
    assert len(found) == 5
    assert {one["class"] for one in found} < set(NAMES)
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)


def test_requests_at_the_same_time_share_batches_and_get_their_own_answers(folder):
    bodies = [picture(size=(40 + number, 30)) for number in range(6)]
    alone = [ask(folder, [("POST", "/predict", body)])[0] for body in bodies[:2]]
    answers = ask(folder, [("POST", "/predict", body) for body in bodies], max_batch=4, wait_ms=500)
    assert [status for status, _ in answers] == [200] * 6
    assert answers[:2] == alone


@pytest.mark.parametrize(
    ("body", "limits", "status", "words"),
    [
        (b"no picture", {}, 415, "not a readable image of JPEG, PNG, WEBP"),
        (b"", {}, 415, "not a readable image"),
        (picture()[:300], {}, 415, "not a readable image"),
        (picture("BMP"), {}, 415, "not a readable image"),
        (picture(), {"max_bytes": 100}, 413, "larger than 100 bytes"),
        (picture(), {"max_pixels": 100}, 413, "The image has 40 x 30 pixels; 100 are the most."),
    ],
)
def test_bad_input_is_refused_in_words(folder, body, limits, status, words):
    ((found, text),) = ask(folder, [("POST", "/predict", body)], **limits)
    assert found == status
    assert words in text


def test_too_many_waiting_requests_are_refused_at_once(folder):
    answers = ask(folder, [("POST", "/predict", picture())] * 6, max_waiting=0)
    assert {status for status, _ in answers} == {503}


def test_health_and_metrics(folder):
    (health, metrics) = ask(folder, [("GET", "/health"), ("GET", "/metrics")])
    assert json.loads(health[1])["status"] == "ok"
    assert "# TYPE foveate_requests_total counter\nfoveate_requests_total 0\n" in metrics[1]


def test_what_is_waiting_at_shutdown_is_answered():
    async def stopped():
        batcher = app.Batcher(lambda images: images.flatten(1), app.Limits(max_batch=2), app.Metrics())
        asked = [asyncio.create_task(batcher.predict(torch.full((3,), float(n)))) for n in range(5)]
        await asyncio.sleep(0)
        await batcher.drain()
        return [await answer for answer in asked], batcher.metrics

    answers, metrics = asyncio.run(stopped())
    assert [float(answer[0]) for answer in answers] == [0, 1, 2, 3, 4]
    assert (metrics.batches, metrics.images) == (3, 5)


def test_a_model_that_fails_answers_every_request():
    def fails(_):
        raise RuntimeError("secret")

    async def failed():
        batcher = app.Batcher(fails, app.Limits(), app.Metrics())
        asked = asyncio.create_task(batcher.predict(torch.zeros(3)))
        await asyncio.sleep(0)
        await batcher.drain()
        return await asked

    with pytest.raises(app.HTTPException) as found:
        asyncio.run(failed())
    assert found.value.status_code == 500
    assert "secret" not in found.value.detail
