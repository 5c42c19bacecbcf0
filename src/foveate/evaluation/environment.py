"""The machine and versions behind a measurement: a timing means nothing without them."""

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
    """Where the model ran, with the name of an accelerator."""
    dtype: str
    torch: str
    timm: str
    foveate: str

    def __str__(self) -> str:
        machine = f"{self.cpu}, {_count_text(self.cores, 'core')}, {_count_text(self.threads, 'thread')}"
        versions = f"torch {self.torch}, timm {self.timm}, foveate {self.foveate}"
        return f"{machine}; {self.dtype} on {self.device}; {versions}"


def describe_environment(device: torch.device, dtype: torch.dtype) -> Environment:
    """Describe the current environment, including torch's number of threads."""
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
    """Return the processor's name from the operating system, or the architecture if it has none."""
    named = {"Linux": _linux_cpu_name, "Darwin": _mac_cpu_name}.get(platform.system(), platform.processor)()
    return named or platform.processor() or platform.machine() or "unknown processor"


def computes_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies in bfloat16 by itself; emulated, it would be slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(able.get("avx512_bf16") or able.get("bf16"))


def available_cores() -> int:
    """Return the number of cores this process may use, which can be fewer than the machine has."""
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


def _count_text(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
