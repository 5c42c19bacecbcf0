"""Comparison of every method at every budget, measured side by side on one model."""

from foveate.report.compare.comparison import Comparison, Entry, Recommendation, Refused
from foveate.report.compare.run import compare
from foveate.report.compare.saving import load_results

__all__ = ["Comparison", "Entry", "Recommendation", "Refused", "compare", "load_results"]
