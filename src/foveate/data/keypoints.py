"""The keypoints of COCO and COCO-WholeBody: names, limbs, mirrored pairs, and the spread of annotations."""

from __future__ import annotations

from collections.abc import Sequence

from foveate.data.instances import KeypointNames

OTHER_SIGMA = 0.05
"""Ours, for keypoints of other data: between a person's eyes (0.025) and hips (0.107)."""

BODY = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder"),
    *("left_elbow", "right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip"),
    *("left_knee", "right_knee", "left_ankle", "right_ankle"),
)
FOOT = ("left_big_toe", "left_small_toe", "left_heel", "right_big_toe", "right_small_toe", "right_heel")
FACE = tuple(f"face_{i}" for i in range(68))
LEFT_HAND, RIGHT_HAND = (tuple(f"{side}_hand_{i}" for i in range(21)) for side in ("left", "right"))

PARTS: dict[str, slice] = {
    "body": slice(0, 17),
    "foot": slice(17, 23),
    "face": slice(23, 91),
    "hand": slice(91, 133),
    "whole": slice(0, 133),
}
"""Keypoints of each part of COCO-WholeBody."""

BODY_LIMBS = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10)),
    *((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
_TOES = tuple((ankle, toe) for ankle, toes in ((15, (17, 18, 19)), (16, (20, 21, 22))) for toe in toes)
_FINGERS = tuple((0 if tip % 4 == 1 else tip - 1, tip) for tip in range(1, 21))

BODY_SIGMAS = (
    *(0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062),
    *(0.107, 0.107, 0.087, 0.087, 0.089, 0.089),
)
_FOOT_SIGMAS = (0.068, 0.066, 0.066, 0.092, 0.094, 0.094)
_FACE_SIGMAS = (
    # jaw
    *(0.042, 0.043, 0.044, 0.043, 0.040, 0.035, 0.031, 0.025, 0.020, 0.023, 0.029, 0.032, 0.037, 0.038, 0.043, 0.041),
    0.045,
    # brows
    *(0.013, 0.012, 0.011, 0.011, 0.012, 0.012, 0.011, 0.011, 0.013, 0.015),
    # nose
    *(0.009, 0.007, 0.007, 0.007, 0.012, 0.009, 0.008, 0.016, 0.010),
    # eyes
    *(0.017, 0.011, 0.009, 0.011, 0.009, 0.007, 0.013, 0.008, 0.011, 0.012, 0.010, 0.034),
    # mouth
    *(0.008, 0.008, 0.009, 0.008, 0.008, 0.007, 0.010, 0.008, 0.009, 0.009, 0.009, 0.007, 0.007, 0.008, 0.011, 0.008),
    *(0.008, 0.008, 0.010, 0.008),
)
_HAND_SIGMAS = (
    *(0.029, 0.022, 0.035, 0.037, 0.047, 0.026, 0.025, 0.024, 0.035, 0.018, 0.024, 0.022, 0.026, 0.017, 0.021, 0.021),
    *(0.032, 0.020, 0.019, 0.022, 0.031),
)
# the 68 points of a face, mirrored: jaw, brows, nose, eyes, mouth
_FACE_MIRRORED = (
    *range(16, -1, -1),
    *range(26, 16, -1),
    *range(27, 31),
    *range(35, 30, -1),
    *(45, 44, 43, 42, 47, 46, 39, 38, 37, 36, 41, 40),
    *(54, 53, 52, 51, 50, 49, 48, 59, 58, 57, 56, 55, 64, 63, 62, 61, 60, 67, 66, 65),
)


def mirrored(names: Sequence[str]) -> tuple[int, ...]:
    """For each keypoint, the one with left and right exchanged in its name; itself if there is none."""
    numbers = {name: i for i, name in enumerate(names)}
    return tuple(numbers.get(_other_side(name), i) for i, name in enumerate(names))


def _other_side(name: str) -> str:
    if "left" in name:
        return name.replace("left", "right")
    return name.replace("right", "left")


def named_keypoints(names: Sequence[str], limbs: Sequence[tuple[int, int]] = ()) -> KeypointNames:
    """Keypoints by name; those of COCO's persons have COCO's sigmas."""
    sigmas = BODY_SIGMAS if tuple(names) == BODY else (OTHER_SIGMA,) * len(names)
    return KeypointNames(tuple(names), tuple(limbs), mirrored(names), sigmas)


PERSON = named_keypoints(BODY, BODY_LIMBS)

WHOLEBODY = KeypointNames(
    names=(*BODY, *FOOT, *FACE, *LEFT_HAND, *RIGHT_HAND),
    limbs=(*BODY_LIMBS, *_TOES, *((first + a, first + b) for first in (91, 112) for a, b in _FINGERS)),
    mirrored=(
        *mirrored((*BODY, *FOOT)),
        *(23 + other for other in _FACE_MIRRORED),
        *range(112, 133),
        *range(91, 112),
    ),
    sigmas=(*BODY_SIGMAS, *_FOOT_SIGMAS, *_FACE_SIGMAS, *_HAND_SIGMAS, *_HAND_SIGMAS),
)
