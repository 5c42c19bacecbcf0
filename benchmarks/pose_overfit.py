"""Top-down pose estimation with clustr_tiny overfits the persons of a few photographs.

    FOVEATE_ASSETS=... python benchmarks/pose_overfit.py [--data coco_samples wholebody coco_mini] [--epochs 8]

Trains from scratch without augmentation and evaluates on the same persons, with their boxes: the goal is an OKS AP
above 90. ``coco_samples`` has 17 keypoints of 12 persons, ``wholebody`` the 133 of the same persons, ``coco_mini`` 17
keypoints of the persons in 80 photographs.
"""

from __future__ import annotations

import json
from pathlib import Path

from dense_runs import Clock, arguments, cell, evaluated, trained, write_repeated
from photographs import assets
from recording import record

SOURCES = {
    "coco_samples": ("pose", "coco_samples/keypoints17.json", "coco_samples/images", "person_keypoints"),
    "wholebody": ("wholebody-pose", "coco_samples/wholebody133.json", "coco_samples/images", "coco_wholebody"),
    "coco_mini": (
        "pose",
        "coco_mini/annotations/person_keypoints_train2017.json",
        "coco_mini/train2017",
        "person_keypoints",
    ),
}
BATCH = 12
SIZES = {"coco_samples": [128, 96], "wholebody": [256, 192], "coco_mini": [128, 96]}
"""Height and width: the 68 keypoints of a face need the paper's, others learn as well at half of it."""
REPEATS = {"coco_samples": 50, "wholebody": 40, "coco_mini": 8}
"""How often each person is in an epoch, so that epochs are not over at once."""
EPOCHS = {"coco_samples": 4, "wholebody": 8, "coco_mini": 10}
FIGURES = ("pose_ap", "pose_ap50", "pose_ar", "body_ap", "foot_ap", "face_ap", "hand_ap", "whole_ap", "whole_ar")


def main() -> None:
    parser = arguments(__doc__ or "", "pose_overfit", "pose_overfit.csv")
    parser.add_argument("--data", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--epochs", type=int, default=0, help=f"default: {EPOCHS}")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    rows = []
    for name in args.data:
        task = SOURCES[name][0]
        clock = Clock(args.out / f"{name}-seconds")
        history = trained(
            "clustr_tiny+heatmaps",
            str(repeated(args.out / f"{name}-data", name)),
            args.out / name,
            {
                "data.task": task,
                "data.batch_size": BATCH,
                "data.options": {"flip_test": False},  # mirrored images are not among those that are learned
                "augmentation.kind": "evaluation",
                "model.options": {"image_size": SIZES[name]},
                "optimizer.lr": args.lr,
                "optimizer.weight_decay": 1e-4,
                "optimizer.clip_norm": 1.0,
                "schedule.epochs": args.epochs or EPOCHS[name],
                "schedule.warmup_epochs": 0.5,
                "schedule.min_lr": args.lr / 100,
            },
            args,
        )
        minutes = clock.minutes()
        for entry in evaluated(history):
            values = [cell(entry["val"].get(figure)) for figure in FIGURES]
            height, width = SIZES[name]
            rows.append(
                [name, height, width, entry["step"], *values, f"{minutes:.0f}" if entry is history[-1] else None]
            )
        print(f"{name}: {history[-1]['val']}; {minutes:.0f} minutes")
    if args.csv is not None:
        sample = f"clustr_tiny from scratch, boxes of the annotations, no flip test, batch {BATCH}, seed {args.seed}"
        record(args.csv, ("data", "height", "width", "steps", *FIGURES, "minutes"), rows, sample)


def repeated(folder: Path, name: str) -> Path:
    """A COCO folder of the photographs."""
    _, file, place, stem = SOURCES[name]
    content = json.loads((assets() / file).read_text(encoding="utf-8"))
    return write_repeated(folder, content, assets() / place, stem, REPEATS[name])


if __name__ == "__main__":
    main()
