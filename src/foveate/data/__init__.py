"""Image data for training and evaluation: sources of images, and the loader that makes batches."""

from foveate.data.images import BrokenImage, DataError, Sample
from foveate.data.loader import Loader
from foveate.data.open import open_data
from foveate.data.reading import Batch
from foveate.data.source import ImageData
from foveate.data.stream import StreamedData

__all__ = ["Batch", "BrokenImage", "DataError", "ImageData", "Loader", "Sample", "StreamedData", "open_data"]
