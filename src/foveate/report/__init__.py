"""Reports on reduced models: measured speed, comparisons and the page."""

from foveate.evaluation import Environment, SpeedResult, measure_speed

__all__ = ["Environment", "SpeedResult", "measure_speed"]
