"""Predictions and embeddings of many images: one callable, and engines that run it on processes or on Ray."""

from foveate.scale.predictor import Predictor
from foveate.scale.run import Summary, write_predictions

__all__ = ["Predictor", "Summary", "write_predictions"]
