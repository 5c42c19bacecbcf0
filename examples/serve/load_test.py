"""A bounded load test of the server on this machine: so many requests, so many at a time, then figures.

    python examples/serve/load_test.py [--model FOLDER] [--requests 300] [--clients 1 4 16] [--seconds 60] [--csv FILE]

Starts the server on a free loopback port, sends one picture again and again, prints requests per second and latencies
as the clients see them, and stops the server. Without --model it exports the built-in demonstration model to OpenVINO.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from PIL import Image

import foveate as fv

HERE = Path(__file__).parent
START_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=60, help="most for each number of clients")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = args.model or demonstration(Path(place) / "fast")
        with server(folder) as address:
            rows = [measured(address, args.requests, clients, args.seconds) for clients in args.clients]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def demonstration(folder: Path) -> Path:
    from foveate.models.demo import demo_classes, demo_model

    model = fv.reduce_(demo_model(), "ToMe", 0.5)
    return fv.export(model, folder, "openvino", classes=list(demo_classes()))


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server that runs as long as the context, and then ends as a service manager ends it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "app:app", "--port", str(port)]
    quiet = ["--log-level", "warning", "--timeout-graceful-shutdown", "10"]
    process = subprocess.Popen([*command, *quiet], env=os.environ | {"FOVEATE_MODEL": str(folder)})
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=1).read()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("The server did not start.")


def measured(address: str, requests: int, clients: int, seconds: float) -> dict[str, str | int]:
    """Send ``requests`` pictures from ``clients`` at a time, for ``seconds`` at most."""
    picture, deadline = jpeg(), time.monotonic() + seconds

    def ask(_: int) -> float | None:
        if time.monotonic() > deadline:
            return None
        start = time.perf_counter()
        urllib.request.urlopen(f"{address}/predict", picture, timeout=seconds).read()
        return time.perf_counter() - start

    for _ in range(3):
        ask(0)
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        took = [found for found in pool.map(ask, range(requests)) if found is not None]
    whole = time.perf_counter() - start
    return {
        "clients": clients,
        "requests": len(took),
        "per second": f"{len(took) / whole:.1f}",
        "median ms": f"{1000 * median(took):.1f}",
        "p95 ms": f"{1000 * quantiles(took, n=20)[-1]:.1f}",
    }


def jpeg() -> bytes:
    """A photograph-sized picture of smooth noise."""
    small = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC).save(held, "JPEG", quality=90)
    return held.getvalue()


if __name__ == "__main__":
    main()
