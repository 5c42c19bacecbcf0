"""What a target is, how it is learned and how a prediction is judged: one file per task.

Every file and folder here is imported, so that a new task registers itself.
"""

from foveate.registries import import_modules
from foveate.tasks.augmentation import Augmentation
from foveate.tasks.base import Metrics, Task, find_task, register, task_names, task_of
from foveate.tasks.classification import Classification, ClassificationMetrics
from foveate.tasks.detection import Detection, InstanceSegmentation
from foveate.tasks.embedding import Embedding, EmbeddingMetrics
from foveate.tasks.options import read_options
from foveate.tasks.pose import Pose, WholeBodyPose
from foveate.tasks.segmentation import Segmentation, SegmentationMetrics

import_modules(__name__)

__all__ = [
    "Augmentation",
    "Classification",
    "ClassificationMetrics",
    "Detection",
    "Embedding",
    "EmbeddingMetrics",
    "InstanceSegmentation",
    "Metrics",
    "Pose",
    "Segmentation",
    "SegmentationMetrics",
    "Task",
    "WholeBodyPose",
    "find_task",
    "read_options",
    "register",
    "task_names",
    "task_of",
]
