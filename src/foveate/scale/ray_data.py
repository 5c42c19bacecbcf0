"""The engine ``ray``: parts are rows of a Ray dataset, and actors of its pool write them.

Ray schedules, restarts actors that died and gives their parts to others. A part is written whole or not at all, and
always with the same rows, so a part that runs twice does no harm.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from foveate.scale.tables import Written
from foveate.scale.writing import PartWriter

SECONDS = 5.0
"""To wait for the head of a cluster."""
QUIET = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # foveate reports progress itself
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment of a local Ray, unless it is set already."""


def library() -> Any:
    """The package ray."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ValueError("The engine 'ray' needs the package 'ray': pip install foveate[scale]") from error


def check_ray(address: str | None) -> None:
    """Raise a ValueError if Ray is not installed or nobody answers at ``address``."""
    library()
    if address in (None, "auto"):
        return
    host, _, port = str(address).removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"A Ray address is HOST:PORT, ray://HOST:PORT or auto; got {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"No Ray cluster answers at {address}: {error}. Start one with `ray start --head`, or leave out --address "
            "for a local one."
        ) from error


def run_ray(writer: PartWriter, parts: list[int], actors: int, report: Callable[[int], None]) -> Iterator[Written]:
    """Write parts on ``actors`` actors of the connected cluster; yields each when it is finished.

    ``report`` gets the images of finished parts.

    Raises:
        ValueError: if Ray gives up.
    """
    ray = library()
    data = importlib.import_module("ray.data")
    kept = ray.put(writer)  # by this process, for actors that are restarted; sent once to each machine
    dataset = data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
    results = dataset.map_batches(
        _Actor,
        fn_constructor_args=([kept],),
        batch_size=1,
        compute=data.ActorPoolStrategy(size=min(actors, len(parts))),  # which restarts actors and retries their parts
        num_cpus=writer.predictor.threads or 1,
        num_gpus=0 if writer.predictor.device.startswith("cpu") else 1,
    )
    images = 0
    with _own_errors(ray):
        for row in results.iter_rows():
            written = Written(int(row["part"]), int(row["rows"]), int(row["broken"]))
            images += written.rows
            report(images)
            yield written


class _Actor:
    """Lives in a process of Ray."""

    def __init__(self, kept: list[Any]) -> None:
        self.writer: PartWriter = library().get(kept[0])

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[int]]:
        written = [self.writer(int(part)) for part in batch["part"]]
        return {name: [getattr(one, name) for one in written] for name in Written._fields}


class Cluster(NamedTuple):
    """What a cluster has."""

    cores: int
    memory: int
    """Bytes."""


@contextmanager
def connected(address: str | None, actors: int | None) -> Iterator[Cluster]:
    """A connection to a cluster, or a local one that ends with the work; one that the caller has stays."""
    ray = library()
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address, actors)
    try:
        importlib.import_module("ray.data").DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        found = ray.cluster_resources()
        yield Cluster(int(found.get("CPU", 1)), int(found.get("memory", 2**32)))
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str | None, actors: int | None) -> None:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {"address": "local", "num_cpus": actors, "include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        where = f"at {address} does not answer" if address is not None else "cannot be started on this machine"
        raise ValueError(f"Ray {where}: {error}") from error


@contextmanager
def _own_errors(ray: Any) -> Iterator[None]:
    """Raise an actor's own error instead of Ray's, which wraps it in tracebacks."""
    try:
        yield
    except ray.exceptions.RayError as error:
        cause: Any = error
        while (inner := getattr(cause, "cause", None) or cause.__cause__) is not None:
            cause = inner
        if isinstance(cause, ValueError | OSError) and not isinstance(cause, ray.exceptions.RayError):
            raise cause from error
        raise ValueError(
            f"Ray could not finish the work: {str(cause).strip().splitlines()[-1]} Go on with --resume."
        ) from error
