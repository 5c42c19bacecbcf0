"""Models that run outside PyTorch's eager mode: export with a parity check, and load by the same call."""

from foveate.deploy.exporting import export
from foveate.deploy.loading import ExportedModel, load_exported
from foveate.deploy.runtimes import Runtime
from foveate.deploy.speed import RuntimeSpeed, measure_runtimes
from foveate.deploy.targets import TARGETS

__all__ = ["TARGETS", "ExportedModel", "Runtime", "RuntimeSpeed", "export", "load_exported", "measure_runtimes"]
