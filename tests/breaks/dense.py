"""Breaks of dense models and of segmentation."""

from __future__ import annotations

from .entry import Break, broken

DENSE, SEGMENTS = "models/test_dense_models.py::test_", "tasks/test_segmentation.py::test_"
MASKS, RATES = "data/test_masks.py::test_", "training/test_learning_rate.py::test_"

BREAKS: list[Break] = [
    broken(
        "feature pyramid does not sum from coarse to fine",
        "models/dense/layers.py",
        "for level in reversed(range(len(found) - 1)):",
        "for level in ():",
        "models/test_dense_heads.py::test_coarse_maps_reach_the_finest",
    ),
    broken(
        "a dense model's own classifier counted",
        "models/dense/family.py",
        "return replace(known, head_macs=0, head_macs_per_patch=0, head_reads_patches=True)",
        "return replace(known, head_macs=1000, head_macs_per_patch=0, head_reads_patches=True)",
        DENSE + "a_dense_model_predicts_counts_and_travels",
    ),
    broken(
        "a reduced dense model reads its unreduced encoder",
        "models/dense/reduced.py",
        "return features(self, images",
        "return features(self.encoder, images",
        DENSE + "a_dense_model_is_reduced_as_its_encoder_would_be",
    ),
    broken(
        "masks are not flipped with their images",
        "tasks/mask_transforms.py",
        "pixels, labels = together.horizontal_flip(pixels), together.horizontal_flip(labels)",
        "pixels = together.horizontal_flip(pixels)",
        SEGMENTS + "image_and_mask_move_alike",
    ),
    broken(
        "padding has a class",
        "tasks/mask_transforms.py",
        "together.pad(labels, border, fill=IGNORED)",
        "together.pad(labels, border, fill=0)",
        SEGMENTS + "image_and_mask_move_alike",
    ),
    broken(
        "classes that nobody names count as zero",
        "tasks/segmentation_metrics.py",
        "float(per_class_iou(self.confusion).nanmean())",
        "float(per_class_iou(self.confusion).nan_to_num().mean())",
        SEGMENTS + "a_class_that_nobody_names_does_not_count",
    ),
    broken(
        "the last window is left out",
        "tasks/windows.py",
        "return [*starts, length - window]",
        "return starts",
        SEGMENTS + "windows_cover_every_pixel_and_are_averaged",
    ),
    broken(
        "zero stays a class where it is none",
        "data/masks.py",
        "            without |= values == 0\n",
        "",
        MASKS + "ade20ks_layout_counts_from_one",
    ),
    broken(
        "milestones one step early",
        "training/learning_rate.py",
        "behind = [step + 1 for",
        "behind = [step for",
        RATES + "steps_fall_at_milestones_of_epochs_or_of_iterations",
    ),
]
