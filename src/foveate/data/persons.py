"""One sample for each person, or other object with keypoints, as top-down pose estimation reads images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from foveate.data.images import DataError, Sample
from foveate.data.instances import UNLABELED, Instances
from foveate.data.source import ChosenPictures, ImageData, InstanceData


@dataclass(frozen=True)
class PersonData(ImageData):
    """Samples whose target is one object with labeled keypoints; its classes are the keypoints' names."""

    whole: InstanceData
    people: tuple[tuple[int, int], ...] | None
    """Image and object of each sample; None: one object of each image, the next one in the next image."""

    @property
    def labeled(self) -> bool:
        return True

    def read(self, index: int) -> Sample:
        image, number = self._person(index)
        sample = self.whole.read(image)
        return Sample(sample.image, chosen(sample.target, number), f"{sample.name}, object {number}")

    def target(self, index: int) -> Instances:
        image, number = self._person(index)
        return chosen(self.whole.target(image), number)

    def _person(self, index: int) -> tuple[int, int]:
        return (index, index) if self.people is None else self.people[index]


def chosen(instances: Instances, number: int) -> Instances:
    """The object with this number alone, counted on from the first behind the last."""
    only = [number % len(instances)]
    lists = ("boxes", "labels", "areas", "crowd", "masks", "keypoints")
    kept = {name: value[only] for name in lists if (value := getattr(instances, name)) is not None}
    return dataclasses.replace(instances, **kept)


def people_of(data: InstanceData, drawn: bool) -> PersonData:
    """One sample for each object with a labeled keypoint; crowds are left out.

    Args:
        data: images with keypoints.
        drawn: whether images are drawn when they are read. Their objects are then not counted, and each image gives
            one sample.

    Raises:
        DataError: if no object has a labeled keypoint.
    """
    names = data.keypoints
    if names is None:
        raise DataError(f"{data.pictures.name(0)} has no keypoints.")
    if drawn:
        return PersonData(data.pictures, data.split, None, names.names, len(names), data, None)
    people = []
    for image in range(len(data)):
        target = data.target(image)
        assert target.keypoints is not None
        labeled = (target.keypoints[..., 2] != UNLABELED).any(axis=1) & ~target.crowd
        people += [(image, int(number)) for number in np.flatnonzero(labeled)]
    if not people:
        raise DataError(f"No object in {data.pictures.name(0)} and the other images has a labeled keypoint.")
    pictures = ChosenPictures(data.pictures, tuple(image for image, _ in people))
    return PersonData(pictures, data.split, None, names.names, len(names), data, tuple(people))
