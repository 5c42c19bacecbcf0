"""What a reduced model is worth: measured speed, comparisons and pictures."""

from foveate.report.environment import Environment
from foveate.report.speed import SpeedResult, measure_speed

__all__ = ["Environment", "SpeedResult", "measure_speed"]
