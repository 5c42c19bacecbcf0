"""What a reduced model is worth: measured speed, comparisons and pictures."""

from foveate.evaluation import Environment, SpeedResult, measure_speed

__all__ = ["Environment", "SpeedResult", "measure_speed"]
