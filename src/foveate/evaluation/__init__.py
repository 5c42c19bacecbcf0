"""Evaluation of models: one pass over images, one timer, one memory probe, one list of columns."""

from foveate.evaluation.environment import Environment, describe_environment
from foveate.evaluation.memory import peak_memory
from foveate.evaluation.progress import Progress
from foveate.evaluation.side_by_side import Evaluation, evaluate
from foveate.evaluation.speed import SpeedResult, measure_speed

__all__ = [
    "Environment",
    "Evaluation",
    "Progress",
    "SpeedResult",
    "describe_environment",
    "evaluate",
    "measure_speed",
    "peak_memory",
]
