"""RetinaNet and Mask R-CNN with clustr_tiny overfit 8 photographs of COCO.

    FOVEATE_ASSETS=... python benchmarks/coco_overfit.py [--head retinanet mask-rcnn] [--images 8] [--epochs 10]

Trains from scratch without augmentation and evaluates on the same photographs: the goal is a box AP50 above 90 and a
mask AP50 above 80. The photographs are the first of coco_mini's training split with 2 to 8 objects, none of them a
crowd or narrower than 32 pixels. ``--images 80`` takes all of them, which needs hours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dense_runs import Clock, arguments, cell, evaluated, head_options, trained, write_repeated
from photographs import assets
from recording import record

TASKS = {"retinanet": "detection", "mask-rcnn": "instance-segmentation"}
SIZE, BATCH, EPOCH_STEPS = 256, 4, 100
LEAST_SIDE, OBJECTS = 32, (2, 8)
FIGURES = ("box_ap", "box_ap50", "mask_ap", "mask_ap50")


def main() -> None:
    parser = arguments(__doc__ or "", "coco_overfit", "coco_overfit.csv")
    parser.add_argument("--head", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=0, help=f"of {EPOCH_STEPS} steps; default: 10, for mask-rcnn 7")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--sampled", type=int, default=64, help="proposals that mask-rcnn learns from (default: 64)")
    args = parser.parse_args()
    folder = write_chosen(args.out / f"data{args.images}", args.images)
    rows = []
    for head in args.head:
        epochs = args.epochs or {"retinanet": 10, "mask-rcnn": 7}[head]
        clock = Clock(args.out / f"{head}{args.images}-seconds")
        history = trained(
            f"clustr_tiny+{head}",
            str(folder),
            args.out / f"{head}{args.images}",
            {
                "data.task": TASKS[head],
                "data.batch_size": BATCH,
                "data.allow_empty_classes": True,
                "augmentation.kind": "evaluation",
                "model.options": {
                    "image_size": [SIZE, SIZE],
                    "head": head_options(head, args.channels, args.sampled),
                },
                "optimizer.lr": args.lr,
                "optimizer.weight_decay": 1e-4,
                "optimizer.clip_norm": 1.0,
                "schedule.epochs": epochs,
                "schedule.warmup_epochs": 1.0,
                "schedule.min_lr": args.lr / 100,
            },
            args,
        )
        minutes = clock.minutes()
        for entry in evaluated(history):
            values = [cell(entry["val"].get(name)) for name in FIGURES]
            rows.append([head, args.images, entry["step"], *values, f"{minutes:.0f}" if entry is history[-1] else None])
        print(f"{head}: {history[-1]['val']}; {minutes:.0f} minutes")
    if args.csv is not None:
        columns = ("head", "images", "steps", "box_ap", "box_ap50", "mask_ap", "mask_ap50", "minutes")
        record(
            args.csv, columns, rows, f"clustr_tiny, {SIZE} px, pyramid of {args.channels} channels, seed {args.seed}"
        )


def write_chosen(folder: Path, count: int) -> Path:
    """A COCO folder of the chosen photographs: for training, each as often as an epoch of 100 steps needs."""
    source = assets() / "coco_mini"
    content = json.loads((source / "annotations" / "instances_train2017.json").read_text(encoding="utf-8"))
    objects: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for row in content["annotations"]:
        objects[row["image_id"]].append(row)
    usable = [image for image in content["images"] if count > 8 or is_clear(objects[image["id"]])][:count]
    ids = {image["id"] for image in usable}
    chosen = {
        "images": usable,
        "annotations": [row for row in content["annotations"] if row["image_id"] in ids],
        "categories": content["categories"],
    }
    copies = max(1, EPOCH_STEPS * BATCH // len(usable))
    return write_repeated(folder, chosen, source / "train2017", "instances", copies)


def is_clear(rows: list[dict[str, Any]]) -> bool:
    """Whether an image has a few objects that are large enough at 256 pixels."""
    large = all(min(row["bbox"][2:]) >= LEAST_SIDE and not row["iscrowd"] for row in rows)
    return OBJECTS[0] <= len(rows) <= OBJECTS[1] and large


if __name__ == "__main__":
    main()
