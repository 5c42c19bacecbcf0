"""What a user does with a dense model: train it, evaluate the folder that was written, and look at predictions."""

import pytest
from PIL import Image

from foveate.data.scenes.objects import objects_scene
from foveate_cli.main import main

SCENES = "scenes:objects,count=2,size=64"
TASKS = {
    "detection": ("coco-retinanet-1x", "retinanet", 10, "box AP50 %"),
    "instance-segmentation": ("coco-mask-rcnn-1x", "mask-rcnn", 10, "mask AP50 %"),
    "pose": ("wholebody-pose-210", "heatmaps", 5, "pose AP %"),
}
ENCODER = "depths=[1,1,1,1]", "embed_dims=[16,32,48,64]", "num_heads=[1,1,2,2]", "image_size=[64,64]"
HEADS = {"retinanet": {"channels": 8}, "mask-rcnn": {"channels": 8, "sampled": 8}, "heatmaps": {}}
RUN = "schedule.steps=2", "schedule.warmup_steps=0", "schedule.milestones=1", "data.batch_size=2", "data.workers=0"


@pytest.mark.parametrize("task", TASKS)
def test_it_is_trained_evaluated_and_shown(task, tmp_path, capsys):
    recipe, head, classes, figure = TASKS[task]
    given = [*RUN, f"data.task={task}", f"data.num_classes={classes}"]
    given += [f"model.options.{value}" for value in ENCODER]
    given += [f"model.options.head.{name}={value}" for name, value in HEADS[head].items()]
    command = ["train", recipe, "--model", f"clustr_tiny+{head}", "--data", SCENES, "--out", str(tmp_path / "run")]
    assert main([*command, *(word for value in given for word in ("--set", value))]) == 0, capsys.readouterr().err
    assert main(["eval", str(tmp_path / "run"), "--data", SCENES]) == 0, capsys.readouterr().err
    assert figure in capsys.readouterr().out
    objects_scene(0, split="val", size=64).image.save(tmp_path / "scene.png")
    shown = tmp_path / "shown.png"
    assert main(["show", "predictions", str(tmp_path / "run"), str(tmp_path / "scene.png"), "--out", str(shown)]) == 0
    assert min(Image.open(shown).size) >= 64
