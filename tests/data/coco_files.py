"""Small COCO folders for tests."""

import json

import numpy as np
from PIL import Image

SIZE = (60, 80)  # height, width


def square(left, top, side):
    """A polygon around a square."""
    return [left, top, left + side, top, left + side, top + side, left, top + side]


def annotation(number, image=1, category=3, box=(10, 10, 20, 20), **more):
    left, top, wide, _ = box
    plain = {"id": number, "image_id": image, "category_id": category, "bbox": list(box), "area": wide * box[3]}
    return plain | {"iscrowd": 0, "segmentation": [square(left, top, wide)]} | more


def content(annotations, images=2, categories=((3, "cat"), (7, "dog"))):
    height, width = SIZE
    listed = [{"id": i + 1, "file_name": f"{i + 1}.png", "height": height, "width": width} for i in range(images)]
    return {
        "images": listed,
        "annotations": list(annotations),
        "categories": [{"id": number, "name": name} for number, name in categories],
    }


def write_coco(folder, data, name="instances_train2017.json", split="train2017"):
    """Write a COCO folder with a picture for each image."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    (folder / split).mkdir(exist_ok=True)
    (folder / "annotations" / name).write_text(json.dumps(data))
    for number, one in enumerate(data["images"]):
        pixels = np.full((*SIZE, 3), 40 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / split / one["file_name"])
    return folder


def person(number, keypoints, **more):
    return annotation(number, category=1, keypoints=keypoints, **more)
