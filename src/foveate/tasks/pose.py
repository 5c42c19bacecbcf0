"""Top-down pose estimation: the keypoints of one person in a crop around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as together

from foveate.adapters import inspect
from foveate.data import DataError, ImageData, Sample, StreamedData
from foveate.data.coco import Kind
from foveate.data.instances import UNLABELED, Instances, KeypointNames
from foveate.data.keypoints import PARTS, PERSON, WHOLEBODY, named_keypoints
from foveate.data.open import open_instances, split_for_evaluation
from foveate.data.persons import PersonData, people_of
from foveate.data.preprocessing import Preprocessing
from foveate.drawing.objects import draw_skeleton
from foveate.models.dense.pose import STRIDE
from foveate.tasks.augmentation import Augmentation
from foveate.tasks.base import Metrics, Opened, Task, register, task_of
from foveate.tasks.detection import UNUSED
from foveate.tasks.heatmaps import Crop, decode, encode, mirrored_heatmaps, person_crop
from foveate.tasks.pose_metrics import PersonTruth, PoseMetrics

SHOWN = 0.2
"""Least height of a heatmap whose keypoint is drawn."""
KNOWN = {len(names): names for names in (PERSON, WHOLEBODY)}


@dataclass(frozen=True)
class Evaluation:
    """The crop around a person."""

    preprocessing: Preprocessing

    def __call__(self, image: Image.Image, person: Instances) -> tuple[Tensor, PersonTruth]:
        crop = person_crop(person.boxes[0], (self.preprocessing.height, self.preprocessing.width))
        return _input(self.preprocessing, crop.cut(image)), PersonTruth(crop, person)


@dataclass(frozen=True)
class Training:
    """A crop with random size, angle and side; heatmaps, and which of them count."""

    preprocessing: Preprocessing
    mirror: tuple[int, ...]
    flip: float = 0.0
    zoom: float = 0.0
    turn: float = 0.0

    def __call__(self, image: Image.Image, person: Instances) -> tuple[Tensor, dict[str, Tensor]]:
        size = (self.preprocessing.height, self.preprocessing.width)
        zoom, turn = (2 * float(torch.rand(())) - 1 for _ in range(2))
        crop = person_crop(person.boxes[0], size, 1 + self.zoom * zoom, self.turn * turn)
        pixels, points = crop.cut(image), crop_points(crop, person)
        if float(torch.rand(())) < self.flip:
            pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            points = flipped_points(points, size[1], self.mirror)
        heatmaps = encode(points[:, :2], size, STRIDE)
        inside = (points[:, :2] >= 0).all(dim=1) & (points[:, 0] < size[1]) & (points[:, 1] < size[0])
        weights = ((points[:, 2] != UNLABELED) & inside).float()
        return _input(self.preprocessing, pixels), {"heatmaps": heatmaps, "weights": weights}


def crop_points(crop: Crop, person: Instances) -> Tensor:
    """The keypoints (K, 3) of a person in its crop."""
    assert person.keypoints is not None
    places = crop.from_image(person.keypoints[0, :, :2])
    return torch.from_numpy(np.concatenate([places, person.keypoints[0, :, 2:]], axis=1)).float()


def flipped_points(points: Tensor, width: int, mirror: Sequence[int]) -> Tensor:
    """The keypoints (K, 3) of the mirrored crop: a left wrist becomes a right one."""
    moved = torch.stack([width - points[:, 0], points[:, 1], points[:, 2]], dim=1)
    return moved[list(mirror)]


@register("pose")
@dataclass(frozen=True)
class Pose(Task):
    """Targets are keypoints of one person; predictions are a heatmap for each. Boxes come from the annotations."""

    keypoints: KeypointNames = PERSON
    zoom: float = 0.35
    """Training: largest change of a person's size, as a share of it."""
    turn: float = 40.0
    """Training: largest angle, in degrees."""
    flip_test: bool = True
    """Evaluation: average with the prediction for the mirrored image."""

    monitor = "pose_ap"
    figures: ClassVar[tuple[str, ...]] = ("pose_ap", "pose_ap50", "pose_ap75", "pose_ar")
    kind: ClassVar[Kind] = "keypoints"

    def __post_init__(self) -> None:
        if not 0 <= self.zoom < 1:
            raise ValueError(f"zoom is a share of a person's size, at least 0 and below 1; got {self.zoom}.")
        if not 0 <= self.turn <= 180:
            raise ValueError(f"turn is an angle in degrees, from 0 to 180; got {self.turn}.")

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        return len(self.keypoints)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.keypoints.names

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Return the options of its own by name, with their types."""
        return {name: get_type_hints(cls)[name] for name in ("zoom", "turn", "flip_test")}

    @classmethod
    def for_data(cls, data: ImageData | StreamedData, smoothing: float = 0.0, **options: Any) -> Pose:
        if smoothing:
            raise ValueError(f"{cls.name} has no label smoothing. Set objective.smoothing=0.")
        return cls(_keypoints_of(data), **options)

    @classmethod
    def for_model(cls, model: nn.Module, **options: Any) -> Pose:
        task = task_of(model)
        if task != "pose":
            raise ValueError(
                f"This {type(model).__name__} is for {task}, not for pose. Give its encoder a head: ENCODER+heatmaps."
            )
        count = int(inspect(model).num_classes or 0)
        return cls(KNOWN.get(count) or named_keypoints([str(i) for i in range(count)]), **options)

    # -- data

    @classmethod
    def open(cls, source: str, split: str, own: Mapping[str, Any] | None = None, **options: Any) -> PersonData:
        names, count = options.pop("classes", None), options.pop("num_classes", None)
        data = people_of(open_instances(source, split, cls.kind, **options), drawn=str(source).startswith("scenes:"))
        if names is not None and tuple(names) != data.classes:
            raise DataError(f"{source} has other keypoints than expected: {len(data.classes or ())}, not {len(names)}.")
        if count not in (None, data.num_classes):
            raise DataError(
                f"{source} has {data.num_classes} keypoints, but data.num_classes={count}. "
                f"Train for those of the data: --set data.num_classes={data.num_classes}."
            )
        return data

    def open_matching(
        self,
        source: str,
        split: str | None = None,
        names: Sequence[str] | None = None,
        own: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Opened:
        data = split_for_evaluation(self.open, source, split, classes=names, **options)
        keypoints = _keypoints_of(data)
        why = ""
        if len(keypoints) != len(self.keypoints):
            why = f"{source} has {len(keypoints)} keypoints, but the model predicts {len(self.keypoints)}."
        return Opened(data, dataclasses.replace(self, keypoints=keypoints), why)

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        if not isinstance(sample.target, Instances) or sample.target.keypoints is None:
            raise DataError(f"{sample.name} has no keypoints; {self.name} takes COCO's keypoints or scenes:objects.")
        return transform(sample.image, sample.target)

    def collate(self, targets: Sequence[Any]) -> Any:
        if isinstance(targets[0], PersonTruth):
            return list(targets)
        return {name: torch.stack([target[name] for target in targets]) for name in targets[0]}

    def evaluation_transform(self, preprocessing: Preprocessing) -> Evaluation:
        return Evaluation(preprocessing)

    def training_transform(self, preprocessing: Preprocessing, options: Augmentation) -> Training:
        default = Augmentation()
        unused = [name for name in UNUSED if getattr(options, name) != getattr(default, name)]
        if unused:
            raise ValueError(
                f"{self.name} does not use augmentation.{unused[0]}, which knows no keypoints. Leave it out."
            )
        if options.kind == "evaluation":
            return Training(preprocessing, self.keypoints.mirrored)
        return Training(preprocessing, self.keypoints.mirrored, options.flip, self.zoom, self.turn)

    def unknown_like(self, targets: Sequence[PersonTruth]) -> list[PersonTruth]:
        return [dataclasses.replace(target, instance=None) for target in targets]

    def any_known(self, targets: Sequence[PersonTruth]) -> bool:
        return any(target.instance is not None for target in targets)

    # -- model

    def fit_head_(self, model: nn.Module) -> None:
        type(self).for_model(model)  # refuses a model without heatmaps
        inspect(model).set_classes_(self.num_classes)

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return heatmaps (B, K, h, w)."""
        heatmaps = model(images).float()
        if model.training or not self.flip_test:
            return heatmaps
        return (heatmaps + mirrored_heatmaps(model(images.flip(-1)).float(), self.keypoints.mirrored)) / 2

    def check_prediction(self, prediction: Tensor, reference: Tensor, name: str) -> None:
        if not bool(prediction.isfinite().all()):
            raise ValueError(f"{name}: heatmaps are NaN or infinite on these images. Check its weights and precision.")

    def loss(self, prediction: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the mean squared error of the heatmaps of labeled keypoints."""
        errors = (prediction.float() - targets["heatmaps"]).square().mean(dim=(2, 3))
        weights = targets["weights"]
        return (errors * weights).sum() / weights.sum().clamp(min=1)

    def metrics(self) -> Metrics:
        return PoseMetrics(list(self.keypoints.sigmas), self._parts(), STRIDE)

    def _parts(self) -> dict[str, list[int]]:
        return {"pose": [0, len(self.keypoints)]}

    # -- display

    def model_input(self, image: Image.Image, preprocessing: Preprocessing) -> Tensor:
        """Return the whole image as one person."""
        return _input(preprocessing, whole_crop(image, (preprocessing.height, preprocessing.width)).cut(image))

    def with_classes(self, names: Sequence[str]) -> Pose:
        """Return the task with names of keypoints; those of a person keep their limbs and mirror."""
        same = tuple(names) == self.keypoints.names
        return self if same else dataclasses.replace(self, keypoints=named_keypoints(names))

    def draw(self, image: Image.Image, prediction: Tensor) -> Image.Image:
        """Draw the skeleton of the person that fills the image."""
        (points,), (scores,) = (value.cpu() for value in decode(prediction[None], STRIDE))
        crop = whole_crop(image, (prediction.shape[-2] * STRIDE, prediction.shape[-1] * STRIDE))
        places = torch.from_numpy(crop.to_image(points.numpy()))
        return draw_skeleton(image, places, scores >= SHOWN, self.keypoints.limbs, self.keypoints.names)


@register("wholebody-pose")
@dataclass(frozen=True)
class WholeBodyPose(Pose):
    """Pose of COCO-WholeBody's 133 keypoints, judged by parts."""

    keypoints: KeypointNames = WHOLEBODY

    monitor = "whole_ap"
    figures = tuple(f"{part}_{figure}" for part in PARTS for figure in ("ap", "ar"))
    kind = "wholebody"

    def _parts(self) -> dict[str, list[int]]:
        return {name: [part.start, part.stop] for name, part in PARTS.items()}


def whole_crop(image: Image.Image, size: tuple[int, int]) -> Crop:
    """The crop of a whole image."""
    return person_crop(np.array([0.0, 0.0, image.width, image.height]), size, padding=1.0)


def _keypoints_of(data: Any) -> KeypointNames:
    whole = getattr(data, "whole", None)
    names = getattr(whole, "keypoints", None)
    if names is None:
        raise DataError("These data have no keypoints. Use COCO's person_keypoints, COCO-WholeBody or scenes:objects.")
    return names


def _input(preprocessing: Preprocessing, crop: Image.Image) -> Tensor:
    return preprocessing.normalize(together.pil_to_tensor(crop))
