"""A small server around an exported model: batching, limits, health, metrics, graceful shutdown.

    foveate export vit_tiny_patch16_224 --weights vit.safetensors --method ToMe --budget 0.5 --to openvino --out fast
    FOVEATE_MODEL=fast uvicorn --app-dir examples/serve app:app --timeout-graceful-shutdown 10

    curl --data-binary @cat.jpg http://127.0.0.1:8000/predict

Copy it and change what you need. ``pip install 'foveate[serve]'`` installs what it imports.
"""

from __future__ import annotations

import asyncio
import io
import os
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Request, Response
from PIL import Image
from torch import Tensor

import foveate as fv
from foveate.data.preprocessing import Preprocessing
from foveate.deploy import ExportedModel

FORMATS = ("JPEG", "PNG", "WEBP")


@dataclass(frozen=True)
class Limits:
    """What a request may cost; each can be set by an environment variable, such as ``FOVEATE_MAX_BATCH=32``."""

    max_batch: int = 8
    wait_ms: int = 2
    """How long the first image of a batch waits for others."""
    max_waiting: int = 64
    """Requests beyond this get 503 at once instead of a late answer."""
    max_bytes: int = 10_000_000
    max_pixels: int = 25_000_000
    """Checked before an image is decoded: a few kilobytes can hold gigabytes of pixels."""

    @staticmethod
    def from_environment() -> Limits:
        names = Limits.__dataclass_fields__
        given = {name: os.environ.get(f"FOVEATE_{name.upper()}") for name in names}
        return Limits(**{name: int(value) for name, value in given.items() if value is not None})


@dataclass
class Metrics:
    """Counters in the text format of Prometheus."""

    requests: int = 0
    refused: int = 0
    batches: int = 0
    images: int = 0
    seconds: float = 0.0

    def text(self, waiting: int) -> str:
        values = {
            "requests_total": self.requests,
            "refused_total": self.refused,
            "batches_total": self.batches,
            "images_total": self.images,
            "model_seconds_total": round(self.seconds, 6),
            "waiting": waiting,
        }
        kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in values}
        return "".join(f"# TYPE foveate_{name} {kinds[name]}\nfoveate_{name} {values[name]}\n" for name in values)


@dataclass
class Batcher:
    """Collects images of concurrent requests and runs them together, in one thread of its own."""

    run: Callable[[Tensor], Tensor]
    limits: Limits
    metrics: Metrics
    waiting: asyncio.Queue[tuple[Tensor, asyncio.Future[Tensor]]] = field(default_factory=asyncio.Queue)

    async def predict(self, image: Tensor) -> Tensor:
        if self.waiting.qsize() >= self.limits.max_waiting:
            raise HTTPException(503, "Too many requests are waiting. Try again later.", {"Retry-After": "1"})
        answer: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((image, answer))
        return await answer

    async def work(self) -> None:
        """Answer batches until cancelled; what is waiting then is answered first."""
        while True:
            batch = [await self.waiting.get()]
            deadline = time.monotonic() + self.limits.wait_ms / 1000
            while len(batch) < self.limits.max_batch and (left := deadline - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    batch.append(await asyncio.wait_for(self.waiting.get(), left))
            await self._answer(batch)

    async def drain(self) -> None:
        while not self.waiting.empty():
            count = min(self.limits.max_batch, self.waiting.qsize())
            await self._answer([self.waiting.get_nowait() for _ in range(count)])

    async def _answer(self, batch: list[tuple[Tensor, asyncio.Future[Tensor]]]) -> None:
        images, start = torch.stack([image for image, _ in batch]), time.perf_counter()
        try:
            outputs = await asyncio.shield(asyncio.to_thread(self.run, images))
        except Exception as error:  # an answer for every request, whatever the runtime raises
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(HTTPException(500, f"The model failed: {type(error).__name__}."))
            return
        self.metrics.batches += 1
        self.metrics.images += len(batch)
        self.metrics.seconds += time.perf_counter() - start
        for output, (_, answer) in zip(outputs, batch, strict=True):
            if not answer.done():  # the client may have left
                answer.set_result(output)


def decoded(content: bytes, limits: Limits) -> Image.Image:
    """The picture in ``content``; an HTTPException says what is wrong with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is below
            picture = Image.open(io.BytesIO(content), formats=FORMATS)  # reads the header only
        if picture.width * picture.height > limits.max_pixels:
            size = f"{picture.width} x {picture.height}"
            raise HTTPException(413, f"The image has {size} pixels; {limits.max_pixels} are the most.")
        return picture.convert("RGB")
    except HTTPException:
        raise
    except Exception as error:  # PIL raises many kinds for damaged files
        raise HTTPException(415, f"This is not a readable image of {', '.join(FORMATS)}.") from error


async def body_of(request: Request, most: int) -> bytes:
    """The request's body, read only as far as the limit: the length that a client states may be wrong."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HTTPException(413, f"The image is larger than {most} bytes.")
        parts.append(part)
    return b"".join(parts)


def create_app(folder: str, limits: Limits | None = None, threads: int | None = None, top: int = 5) -> FastAPI:
    """The application around the exported model in ``folder``."""
    own, metrics = limits or Limits.from_environment(), Metrics()
    model = fv.load_exported(folder, threads=threads)
    transform = Preprocessing(**model.manifest.preprocessing).evaluation()
    batcher = Batcher(lambda images: _scores(model, images), own, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        model(torch.zeros(1, *model.image_size))  # the first call is slower
        worker = asyncio.create_task(batcher.work())
        yield
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
        await batcher.drain()

    app = FastAPI(title="foveate", lifespan=lifespan)

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, Any]:
        metrics.requests += 1
        try:
            content = await body_of(request, own.max_bytes)
            image = await asyncio.to_thread(lambda: transform(decoded(content, own)))
            scores = (await batcher.predict(image)).softmax(-1)
        except HTTPException:
            metrics.refused += 1
            raise
        best = scores.topk(min(top, len(scores)))
        names = model.classes or [str(number) for number in range(len(scores))]
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return {"predictions": [{"class": names[number], "score": round(score, 4)} for number, score in pairs]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "model": repr(model)}

    @app.get("/metrics")
    async def counters() -> Response:
        return Response(metrics.text(batcher.waiting.qsize()), media_type="text/plain; version=0.0.4")

    return app


def _scores(model: ExportedModel, images: Tensor) -> Tensor:
    output = model(images)
    return output if isinstance(output, Tensor) else next(iter(output.values()))


def __getattr__(name: str) -> FastAPI:
    """``app`` for uvicorn, made when it is asked for, so that tests can import this file without a model."""
    if name == "app":
        return create_app(os.environ.get("FOVEATE_MODEL", "fast"))
    raise AttributeError(name)
