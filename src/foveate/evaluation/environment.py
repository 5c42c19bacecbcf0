"""Where a number was measured. A timing means nothing without its machine."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

import foveate


@dataclass(frozen=True)
class Environment:
    """The machine, the versions and the settings behind a timing."""

    cpu: str
    """Name of the processor."""
    cores: int
    """Cores this process may use."""
    threads: int
    """Threads torch uses inside one operation."""
    device: str
    """Where the model ran; an accelerator is named."""
    dtype: str
    torch: str
    timm: str
    foveate: str

    def __str__(self) -> str:
        machine = f"{self.cpu}, {_counted(self.cores, 'core')}, {_counted(self.threads, 'thread')}"
        versions = f"torch {self.torch}, timm {self.timm}, foveate {self.foveate}"
        return f"{machine}; {self.dtype} on {self.device}; {versions}"


def describe_environment(device: torch.device, dtype: torch.dtype) -> Environment:
    """The environment as it is now, thread setting included."""
    return Environment(
        cpu=cpu_name(),
        cores=available_cores(),
        threads=torch.get_num_threads(),
        device=_device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        torch=torch.__version__,
        timm=version("timm"),
        foveate=foveate.__version__,
    )


def cpu_name() -> str:
    """The processor's name as the system gives it; the bare architecture where it gives none."""
    named = {"Linux": _linux_cpu_name, "Darwin": _mac_cpu_name}.get(platform.system(), platform.processor)()
    return named or platform.processor() or platform.machine() or "unknown processor"


def available_cores() -> int:
    """Cores this process may run on, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _linux_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    names = [value for key, _, value in (line.partition(":") for line in lines) if key.strip() == "model name"]
    return " ".join(names[0].split()) if names else ""


def _mac_cpu_name() -> str:
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
