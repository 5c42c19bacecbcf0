"""Dense models: an encoder and a head that predicts something for each place of an image.

Every file here is imported, so that a new head registers itself.
"""

from foveate.models.dense.head import Head, Levels, find_head, head_names, register_head
from foveate.models.dense.model import DenseModel, dense_model
from foveate.registries import import_modules

import_modules(__name__)

__all__ = ["DenseModel", "Head", "Levels", "dense_model", "find_head", "head_names", "register_head"]
