"""Training and distillation: one loop, and recipes that configure it."""

from foveate.training.config import TrainConfig
from foveate.training.entry import train
from foveate.training.state import Diverged, Outcome

__all__ = ["Diverged", "Outcome", "TrainConfig", "train"]
