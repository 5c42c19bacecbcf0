"""What a target is, how it is learned and how a prediction is judged: one file per task.

Every file and folder here is imported, so that a new task registers itself.
"""

import importlib
import pkgutil

from foveate.tasks.augmentation import Augmentation
from foveate.tasks.base import Metrics, Task, find_task, register, task_names
from foveate.tasks.classification import Classification, ClassificationMetrics

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = [
    "Augmentation",
    "Classification",
    "ClassificationMetrics",
    "Metrics",
    "Task",
    "find_task",
    "register",
    "task_names",
]
