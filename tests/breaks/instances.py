"""Breaks of detection, pose and their data."""

from __future__ import annotations

from .entry import Break, broken

COCO, SCENES = "data/test_coco_data.py::test_", "data/test_object_scenes.py::test_"
DETECTORS, DETECTION = "models/test_detectors.py::test_", "tasks/test_detection.py::test_"
POSE, CLUSTR_TABLE = "tasks/test_pose.py::test_", "tables/test_clustr_table.py::test_"

BREAKS: list[Break] = [
    broken(
        "a scene's box ends a pixel early",
        "data/instances.py",
        "box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1",
        "box[:] = columns[0], rows[0], columns[-1], rows[-1]",
        SCENES + "a_box_is_the_tight_box_of_the_visible_mask",
    ),
    broken(
        "objects painted over whole",
        "data/scenes/objects.py",
        "return all(one.label < 0 or seen.sum() >= LEAST_VISIBLE * mask.sum() for one, mask, seen in rows)",
        "return all(one.label < 0 or seen.sum() >= 0 for one, mask, seen in rows)",
        SCENES + "objects_hide_each_other_but_never_too_much",
    ),
    broken(
        "boxes outside the image kept",
        "data/annotations.py",
        "if wide <= 0 or tall <= 0 or box[2] <= box[0] or box[3] <= box[1]:",
        "if wide <= 0 or tall <= 0:",
        COCO + "an_annotation_that_cannot_be_used_is_left_out_counted_and_named",
    ),
    broken(
        "masks of another size kept",
        "data/annotations.py",
        'fits = isinstance(raw.get("size"), list) and tuple(raw["size"]) == size',
        "fits = True",
        COCO + "an_annotation_that_cannot_be_used_is_left_out_counted_and_named",
    ),
    broken(
        "a box for the background",
        "models/dense/detectors.py",
        "self.bbox_pred = nn.Linear(width, 4 * num_classes)",
        "self.bbox_pred = nn.Linear(width, 4 * num_classes + 4)",
        DETECTORS + "parameters_are_the_papers",
    ),
    broken(
        "P6 from the pyramid",
        "models/dense/detectors.py",
        "layers = LastLevelP6P7(self.read.channels[-1], channels)",
        "layers = LastLevelP6P7(channels, channels)",
        CLUSTR_TABLE + "every_printed_cell_holds",
    ),
    broken(
        "labels of Mask R-CNN off by one",
        "models/dense/detectors.py",
        'one | {"labels": one["labels"] - 1, "masks"',
        'one | {"labels": one["labels"], "masks"',
        DETECTORS + "a_detector_learns_detects_and_travels",
    ),
    broken(
        "masks mirrored",
        "tasks/instance_transforms.py",
        "parts.append(Mask(torch.from_numpy(instances.masks[alone])))",
        "parts.append(Mask(torch.from_numpy(instances.masks[alone])).flip(-1))",
        DETECTION + "image_boxes_and_masks_move_alike",
    ),
    broken(
        "crowds learned",
        "tasks/instance_transforms.py",
        "    alone = ~instances.crowd",
        "    alone = instances.crowd | True",
        DETECTION + "objects_that_a_crop_leaves_out_are_dropped_and_crowds_are_not_learned",
    ),
    broken(
        "detections in the model's pixels",
        "tasks/detection_metrics.py",
        'boxes = found["boxes"].detach().cpu().float() / torch.tensor([*factors, *factors])',
        'boxes = found["boxes"].detach().cpu().float()',
        DETECTION + "the_truth_has_an_average_precision_of_one",
    ),
    broken(
        "a mirrored left hand stays a left hand",
        "tasks/pose.py",
        "    return moved[list(mirror)]",
        "    return moved",
        POSE + "a_flip_swaps_left_and_right",
    ),
    broken(
        "the flip test without exchanged sides",
        "tasks/heatmaps.py",
        "return heatmaps.flip(-1)[:, list(mirror)]",
        "return heatmaps.flip(-1)",
        POSE + "the_mirrored_heatmaps_of_a_mirrored_image_are_those_of_the_image",
    ),
    broken(
        "keypoints at the corner of a heatmap's pixel",
        "tasks/heatmaps.py",
        "rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5",
        "rows, columns = torch.arange(height), torch.arange(width)",
        POSE + "decoding_gives_back_what_was_encoded_within_half_a_pixel",
    ),
    broken(
        "unlabeled keypoints learned",
        "tasks/pose.py",
        "weights = ((points[:, 2] != UNLABELED) & inside).float()",
        "weights = inside.float()",
        POSE + "unlabeled_keypoints_and_those_outside_the_crop_do_not_count",
    ),
    broken(
        "sigmas of the whole body for each part",
        "tasks/pose_metrics.py",
        'values = average_precision(images, truth, found, "keypoints", self.sigmas[first:end])',
        'values = average_precision(images, truth, found, "keypoints", self.sigmas[: end - first])',
        POSE + "the_sigmas_of_a_part_are_its_own",
    ),
]
