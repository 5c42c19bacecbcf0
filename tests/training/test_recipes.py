"""Recipes: every value a paper prints, written down once more, and values for one model."""

import re

import pytest
import timm
import torch
from timm.data.auto_augment import rand_augment_transform
from timm.optim import list_optimizers

import foveate as fv
from foveate.methods.options import build
from foveate.methods.registry import method_class
from foveate.models.dense.by_name import split_name
from foveate.training.config import read_config
from foveate.training.recipe import FOLDER, all_recipes, find_recipe, read_recipe

NAMES = (
    "ade20k-semantic-fpn",
    "ade20k-upernet",
    "clustr-imagenet",
    "coco-mask-rcnn-1x",
    "coco-mask-rcnn-3x",
    "coco-retinanet-1x",
    "deit",
    "deit-2x",
    "distill-all",
    "distill-cls",
    "dynamicvit",
    "dynamicvit-code",
    "evit-finetune",
    "evit-scratch",
    "finetune",
    "hvt-cifar100",
    "hvt-imagenet",
    "hvt-imagenet-code",
    "linear-probe",
    "power-finetune",
    "power-search",
    "scenes",
    "segment",
    "token-pooling",
    "wholebody-pose-210",
)
OURS = {"scenes", "segment"}
"""Recipes that no paper prints."""
COCO = {
    "model.options.image_size": [800, 1333],
    "model.options.drop_path_rate": 0.1,
    "data.batch_size": 16,
    "data.num_classes": 80,
    "augmentation.flip": 0.5,
    "optimizer.name": "adamw",
    "optimizer.weight_decay": 1e-4,
    "schedule.kind": "step",
    "schedule.epochs": 12,
    "schedule.milestones": (8, 11),
    "schedule.gamma": 0.1,
    "schedule.warmup_steps": 500,
}
DEIT = {
    "model.options.drop_path_rate": 0.1,
    "data.batch_size": 1024,
    "augmentation.auto_augment": "rand-m9-mstd0.5-inc1",
    "augmentation.erase": 0.25,
    "augmentation.mixup": 0.8,
    "augmentation.cutmix": 1.0,
    "optimizer.name": "adamw",
    "optimizer.lr": 5e-4,
    "optimizer.lr_batch": 512,
    "optimizer.weight_decay": 0.05,
    "optimizer.clip_norm": 0.0,
    "schedule.epochs": 300,
    "schedule.warmup_epochs": 5.0,
    "objective.smoothing": 0.1,
}
DEIT_CODE = {
    "augmentation.color_jitter": 0.3,
    "augmentation.interpolation": "bicubic",
    "augmentation.repeats": 3,
    "schedule.warmup_lr": 1e-6,
    "schedule.min_lr": 1e-5,
}
HVT = DEIT | {"optimizer.lr_batch": 0, "optimizer.weight_decay": 0.025, "optimizer.betas": (0.9, 0.999)}
CLUSTR = DEIT | {"optimizer.betas": (0.9, 0.999), "augmentation.flip": 0.5}
STAGE_3 = DEIT | {"model.pretrained": True, "schedule.cycles": 1}
COUNTS = (196, 195, 193, 188, 169, 140, 121, 110, 73, 38, 7, 0)
MEDOIDS = {
    "clustering": "kmedoids",
    "output": "medoid",
    "iterations": 2,
    "rescale": False,
    "proportional_attention": False,
}
DYNAMICVIT_CODE = {
    "model.pretrained": True,
    "model.options.drop_path_rate": 0.0,
    "model.freeze_parameters": ("cls_token", "pos_embed"),
    "reduction.keep_rate": 0.7,
    "reduction.blocks": (3, 6, 9),
    "data.batch_size": 8 * 128,
    "augmentation.repeats": 1,
    "augmentation.mixup": 0.8,
    "augmentation.cutmix": 1.0,
    "augmentation.erase": 0.25,
    "optimizer.lr": 1e-3,
    "optimizer.lr_batch": 0,
    "optimizer.weight_decay": 0.05,
    "optimizer.ema": 0.9999,
    "schedule.epochs": 30,
    "schedule.warmup_epochs": 5.0,
    "schedule.min_lr": 1e-6,
    "objective.smoothing": 0.1,
    "objective.kl_weight": 0.5,
    "objective.token_weight": 0.5,
    "objective.ratio_weight": 2.0,
    "objective.backbone_lr": 0.01,
    "objective.frozen_epochs": 5.0,
}
DISTILL = {
    "model.pretrained": False,
    "model.options.img_size": 224,
    "reduction.method": "EViT",
    "reduction.keep_rate": 0.7,
    "data.labels": False,
    "data.batch_size": 2 * 64,
    "augmentation.scale": (0.08, 1.0),
    "augmentation.flip": 0.5,
    "augmentation.interpolation": "bilinear",
    "optimizer.name": "adamw",
    "optimizer.lr": 1e-4,
    "optimizer.lr_batch": 0,
    "schedule.epochs": 20,
    "objective.kind": "distill",
    "objective.teacher": "vit_large_patch14_dinov2",
}
DOWNSTREAM = {
    "model.pretrained": True,
    "augmentation.scale": (0.08, 1.0),
    "augmentation.flip": 0.5,
    "augmentation.interpolation": "bilinear",
    "optimizer.lr": 1e-4,
    "optimizer.lr_batch": 0,
    "schedule.epochs": 10,
    "run.eval_epochs": 1,
    "objective.kind": "classify",
}
ADE20K = {
    "model.options.image_size": [512, 512],
    "data.task": "segmentation",
    "data.batch_size": 16,
    "data.num_classes": 150,
    "data.options.scale": [0.5, 2.0],
    "data.options.cat_max_ratio": 0.75,
    "augmentation.flip": 0.5,
    "optimizer.name": "adamw",
    "schedule.kind": "poly",
}
# (recipe, model) and where its values are printed: what they are
PRINTED = {
    ("deit", "", "DeiT, table 9"): DEIT,
    ("deit", "", "DeiT's published code"): DEIT_CODE,
    ("deit-2x", "", "Token Pooling, appendix C and figure 8"): DEIT | {"schedule.cycles": 2},
    ("hvt-imagenet", "", "HVT, section 5"): HVT,
    ("hvt-cifar100", "", "HVT, section 5"): HVT | {"data.batch_size": 128, "optimizer.lr": 1.25e-4},
    ("power-search", "", "Token Pooling, appendix C"): STAGE_3
    | {"schedule.epochs": 30, "objective.kind": "power-search", "reduction.method": "PoWERSearch"},
    ("power-finetune", "", "Token Pooling, appendix C"): STAGE_3 | {"reduction.method": "PoWER"},
    ("token-pooling", "", "Token Pooling, appendix C, table 3 level 1"): STAGE_3
    | {"reduction.method": "TokenPooling", "reduction.options": MEDOIDS}
    | {f"reduction.keep.{block}": count for block, count in enumerate(COUNTS)},
    ("hvt-imagenet-code", "", "HVT's published code"): DEIT | {"optimizer.weight_decay": 0.025},
    ("evit-scratch", "", "EViT's published training script"): DEIT
    | {
        "reduction.method": "EViT",
        "reduction.options.fuse": True,
        "reduction.keep_rate": 0.7,
        "reduction.blocks": (3, 6, 9),
        "reduction.warmup_start": 10.0,
        "reduction.warmup_epochs": 100.0,
    },
    ("evit-finetune", "", "EViT's published fine-tuning script, corrected 2022-03"): DEIT
    | {
        "data.batch_size": 8 * 256,
        "reduction.warmup_start": 0.0,
        "reduction.warmup_epochs": 0.0,
        "model.pretrained": True,
        "reduction.method": "EViT",
        "reduction.options.fuse": True,
        "reduction.keep_rate": 0.7,
        "reduction.blocks": (3, 6, 9),
        "optimizer.lr": 2e-5,
        "optimizer.weight_decay": 1e-6,
        "schedule.epochs": 30,
        "schedule.warmup_epochs": 0.0,
        "schedule.min_lr": 2e-6,
    },
    ("dynamicvit-code", "", "DynamicViT's published commands and code"): DYNAMICVIT_CODE,
    ("dynamicvit-code", "lvvit_small", "DynamicViT's published code"): DYNAMICVIT_CODE
    | {"reduction.blocks": (4, 8, 12)},
    ("dynamicvit-code", "deit_base_patch16_224", "DynamicViT's published command for DeiT-B"): DYNAMICVIT_CODE
    | {"model.options.drop_path_rate": 0.2, "objective.ratio_weight": 5.0},
    ("dynamicvit", "lvvit_medium", "DynamicViT's published code"): {"reduction.blocks": (5, 10, 15)},
    ("dynamicvit", "", "DynamicViT, supplement, sections A and B"): {
        "model.pretrained": True,
        "reduction.method": "DynamicViT",
        "reduction.keep_rate": 0.7,
        "reduction.blocks": (3, 6, 9),
        "optimizer.lr": 1e-3,
        "optimizer.lr_batch": 1024,
        "schedule.epochs": 30,
        "objective.kind": "dynamicvit",
        "objective.kl_weight": 0.5,
        "objective.token_weight": 0.5,
        "objective.ratio_weight": 2.0,
        "objective.backbone_lr": 0.01,
        "objective.frozen_epochs": 5.0,
    },
    ("clustr-imagenet", "", "ClusTR, table A2, T"): CLUSTR,
    ("clustr-imagenet", "clustr_tiny", "ClusTR, table A2, T"): CLUSTR,
    ("clustr-imagenet", "clustr_small", "ClusTR, table A2, S"): CLUSTR,
    ("clustr-imagenet", "clustr_base", "ClusTR, table A2, B"): CLUSTR
    | {"model.options.drop_path_rate": 0.3, "optimizer.clip_norm": 1.0},
    ("ade20k-semantic-fpn", "", "ClusTR, table A3"): ADE20K
    | {
        "model.name": "clustr_small+semantic-fpn",
        "optimizer.lr": 1e-4,
        "optimizer.weight_decay": 1e-4,
        "schedule.power": 0.9,
        "schedule.steps": 80_000,
        "schedule.warmup_steps": 0,
        "schedule.warmup_epochs": 0.0,
    },
    ("ade20k-upernet", "", "ClusTR, table A3, and Swin's code for the auxiliary head"): ADE20K
    | {
        "model.name": "clustr_small+upernet",
        "data.options.auxiliary": 0.4,
        "optimizer.lr": 6e-5,
        "optimizer.weight_decay": 0.01,
        "schedule.power": 1.0,
        "schedule.steps": 160_000,
        "schedule.warmup_steps": 1500,
    },
    ("coco-retinanet-1x", "", "ClusTR, table A4"): COCO
    | {"model.name": "clustr_small+retinanet", "data.task": "detection", "optimizer.lr": 1e-4},
    ("coco-mask-rcnn-1x", "", "ClusTR, table A4"): COCO
    | {"model.name": "clustr_small+mask-rcnn", "data.task": "instance-segmentation", "optimizer.lr": 2e-4},
    ("coco-mask-rcnn-3x", "", "PVTv2's configuration"): COCO
    | {
        "model.name": "pvt_v2_b2+mask-rcnn",
        "data.options.short_sides": [480, 800],
        "optimizer.lr": 1e-4,
        "optimizer.weight_decay": 0.05,
        "schedule.epochs": 36,
        "schedule.milestones": (27, 33),
    },
    ("wholebody-pose-210", "", "ClusTR, section 4.4, and TCFormer"): {
        "model.name": "clustr_small+heatmaps",
        "model.options.image_size": [256, 192],
        "data.task": "wholebody-pose",
        "data.num_classes": 133,
        "data.batch_size": 512,
        "data.options.flip_test": True,
        "optimizer.name": "adamw",
        "optimizer.lr": 5e-4,
        "optimizer.weight_decay": 0.01,
        "optimizer.betas": (0.9, 0.999),
        "schedule.kind": "step",
        "schedule.epochs": 210,
        "schedule.milestones": (170, 200),
        "schedule.gamma": 0.1,
    },
    ("distill-all", "", "Lu and Nakamura, sections 3.1 and 3.5"): DISTILL | {"objective.tokens": "all"},
    ("distill-cls", "", "Lu and Nakamura, sections 3.1 and 3.5"): DISTILL | {"objective.tokens": "class"},
    ("linear-probe", "", "Lu and Nakamura, sections 3.3 to 3.5"): DOWNSTREAM | {"model.freeze": "backbone"},
    ("finetune", "", "Lu and Nakamura, sections 3.3 to 3.5"): DOWNSTREAM | {"model.freeze": "nothing"},
}
CASES = [(*key, path, value) for key, values in PRINTED.items() for path, value in values.items()]


def value_at(config, path):
    """``model.options.img_size`` of a configuration."""
    section, name, *key = path.split(".")
    value = getattr(getattr(config, section), name)
    return value[key[0]] if key else value


@pytest.mark.parametrize(
    ("name", "model", "where", "path", "value"), CASES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_printed_values(name, model, where, path, value):
    assert value_at(read_recipe(name, model), path) == value, where


def test_every_recipe_is_there_and_is_checked_against_what_is_printed():
    assert tuple(all_recipes()) == NAMES
    assert {name for name, _, _ in PRINTED} == set(NAMES) - OURS


@pytest.mark.parametrize("name", NAMES)
class TestEveryRecipe:
    def test_says_what_it_is_and_where_it_comes_from(self, name):
        config = read_recipe(name)
        assert config.source
        assert re.fullmatch(r"[A-Z][^\n]+\.", config.description), "one sentence, in one line"
        assert not re.search(r"\.\s", config.description)

    def test_comes_back_from_plain_data(self, name):
        recipe = find_recipe(name)
        for config in (recipe.config_for(), *recipe.variants.values()):
            assert read_config(config.as_dict()) == config

    def test_says_beside_each_number_where_it_is_from(self, name):
        lines = (FOLDER / f"{name}.toml").read_text().splitlines()
        numbers = [i for i, line in enumerate(lines) if re.match(r"\w+ = [\d\[{]", line)]
        bare = [lines[i] for i in numbers if "  # " not in lines[i] and not lines[i - 1].startswith("# ")]
        assert not bare, f"{name}: {bare}"
        assert max(map(len, lines)) <= 120

    def test_names_things_that_exist(self, name):
        config = read_recipe(name)
        reduction, augmentation = config.reduction, config.augmentation
        model = config.model.name
        assert not model or timm.is_model(split_name(model)[0])
        assert not config.objective.teacher or timm.is_model_pretrained(config.objective.teacher)
        assert config.optimizer.name in list_optimizers()
        if augmentation.auto_augment:
            assert rand_augment_transform(augmentation.auto_augment, {}).ops
        if reduction.method:
            assert isinstance(build(reduction.method, reduction.options), method_class(reduction.method))

    def test_uses_at_most_one_schedule(self, name):
        section = read_recipe(name).reduction
        given = [key for key in ("keep_rate", "budget", "remove", "keep", "schedule") if getattr(section, key)]
        assert len(given) <= 1, given
        assert section.method or not given


def test_clustr_learns_at_the_rate_of_section_4_1():
    config = read_recipe("clustr-imagenet", "clustr_small")
    rate = config.optimizer.lr * config.data.batch_size / config.optimizer.lr_batch
    assert rate == pytest.approx(0.001)


def test_token_pooling_costs_what_table_3_prints():
    config = read_recipe("token-pooling")
    counts = fv.Keep({int(block): count for block, count in config.reduction.keep.items()})
    with torch.device("meta"):
        model = timm.create_model(config.model.name)
    fv.reduce_(model, build(config.reduction.method, config.reduction.options), counts)
    assert round(fv.cost(model).macs / 1e9, 1) == 3.0


def test_the_search_is_to_leave_about_what_level_1_leaves():
    assert read_recipe("power-search").objective.mass == round(sum(COUNTS) / (12 * 196), 1)


def test_student_and_teacher_of_the_distillation_are_table_1s():
    config = read_recipe("distill-all")
    with torch.device("meta"):
        student = timm.create_model(config.model.name, **config.model.options)
        teacher = timm.create_model(config.objective.teacher, **config.objective.teacher_options)
    assert sum(p.numel() for p in student.parameters()) == 21_619_584  # 21.6 M, without LayerScale or a head
    for model in (student, teacher):
        assert model.patch_embed.grid_size == (16, 16)
        assert model.num_classes == 0
    fv.reduce_(student, fv.EViT(), fv.KeepRate(config.reduction.keep_rate, config.reduction.blocks))
    # 181, 127 and 90 without the fused token (table 1's costs), which counts at the next stage
    assert sorted(set(fv.cost(student).tokens), reverse=True) == [257, 182, 129, 92]
