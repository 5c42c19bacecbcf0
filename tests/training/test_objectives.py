"""Small pieces of training: labels, classifiers, freezing, the search of PoWER-BERT, learning rates."""

import copy
import json
import math

import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import foveate as fv
from foveate.methods.power import found_counts, soft_extracts
from foveate.tasks import Classification
from foveate.tasks.classification import correct
from foveate.training.build import build_optimizer, warm_keep_rate
from foveate.training.checkpoint import join_optimizer, split_optimizer
from foveate.training.config import OptimizerSection, ReductionSection, ScheduleSection
from foveate.training.freezing import freeze_, train_mode_
from foveate.training.learning_rate import build_lr_scheduler
from foveate.training.loop import Run
from foveate.training.objectives import (
    Classify,
    PowerSearch,
    hold_mass_,
    initial_teacher,
    retained_share,
)
from small_runs import SMALL, small_config
from zoo import images, make


def vit(**options):
    torch.manual_seed(1)
    return timm.create_model("vit_tiny_patch16_224", **(SMALL | {"num_classes": 7} | options))


def photos():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def test_labels_are_smoothed_once():
    objective, labels = Classify(vit().eval(), Classification(7, smoothing=0.2)), torch.tensor([0, 1, 2, 6])
    logits = objective.model(photos())
    assert objective(photos(), labels)["loss"] == cross_entropy(logits, labels, label_smoothing=0.2)
    soft = torch.tensor([[0.7, 0.3, 0, 0, 0, 0, 0]]).expand(4, 7)  # smoothing would change these
    assert objective(photos(), soft)["loss"] == cross_entropy(logits, soft)


def test_a_model_learns_to_predict_what_it_predicted_with_all_its_tokens():
    model, images, labels = vit().eval(), photos(), torch.tensor([0, 1, 2, 6])
    fv.reduce_(model, fv.EViT(), fv.KeepRate(0.5, blocks=(1,)))
    objective = Classify(model, kl=0.5, teacher=initial_teacher(model))
    losses = objective(images, labels)
    ours, whole = model(images), fv.restore_(copy.deepcopy(model))(images)
    p, q = whole.softmax(-1), ours.softmax(-1)
    assert losses["kl"].item() == pytest.approx(0.5 * (p * (p / q).log()).sum(-1).mean().item(), abs=1e-6)
    assert losses["kl"].item() > 1e-6
    assert losses["loss"].item() == pytest.approx(cross_entropy(ours, labels).item())
    assert not any("teacher" in name for name in objective.state_dict())
    assert "kl" not in Classify(model)(images, labels)
    with pytest.raises(ValueError, match="needs a teacher"):
        Classify(model, kl=0.5)


def test_hits_are_counted():
    logits = torch.tensor([[3.0, 2, 1, 0, -1, -2, -3]]).repeat(4, 1)
    counts = correct(logits, torch.tensor([0, 1, 4, 5]))
    assert (counts["top1"].item(), counts["top5"].item()) == (1, 3)
    few = correct(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert (few["top1"].item(), few["top5"].item()) == (0, 1)


@pytest.mark.parametrize("family", ["timm-cls", "timm-distilled", "timm-lvvit", "torchvision", "hf-vit"])
def test_any_model_gets_a_classifier_for_the_data(family):
    model = make(family)
    bound = fv.inspect(model)
    bound.set_classes_(4)
    assert bound.num_classes == 4
    assert bound.logits(model(images())).shape == (3, 4)
    layers = bound.classifiers()
    bound.set_classes_(4)
    assert [id(layer) for layer in bound.classifiers()] == [id(layer) for layer in layers]  # nothing new
    freeze_(model, "backbone")
    learning = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert learning <= {"head", "head_dist", "aux_head", "classifier", "heads"}
    assert learning
    assert family != "timm-lvvit" or "aux_head" in learning


def test_what_has_no_classifier_says_so():
    with pytest.raises(ValueError, match="has no classifier"):
        fv.inspect(make("hf-clip-vision")).set_classes_(4)
    with pytest.raises(ValueError, match="trains only the classifier"):
        freeze_(vit(num_classes=0), "backbone")


@pytest.mark.parametrize("family", ["timm-cls", "torchvision", "hf-vit"])
def test_first_blocks_and_embedding_can_be_frozen(family):
    model = make(family)
    freeze_(model, "nothing", 2)
    blocks = fv.inspect(model).blocks
    assert not any(p.requires_grad for block in blocks[:2] for p in block.parameters())
    assert all(p.requires_grad for block in blocks[2:] for p in block.parameters())
    before = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert any("pos" in name or "position" in name for name in before)
    assert all(p.requires_grad for layer in fv.inspect(model).classifiers() for p in layer.parameters())


def test_what_is_frozen_stays_in_evaluation_mode():
    model = vit(drop_rate=0.5)
    freeze_(model, "nothing", 1)
    train_mode_(model)
    assert not model.blocks[0].training
    assert model.blocks[1].training


def test_optimizers_have_every_parameter_once_and_spare_positions():
    model = fv.reduce_(vit(), fv.PoWERSearch())
    objective = PowerSearch(model, 1e-3, 0.5, 0.07)
    section = OptimizerSection(lr=1e-3, lr_batch=512, weight_decay=0.3)
    optimizer = build_optimizer(section, objective, 256)
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in objective.parameters())
    by_id = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert by_id[id(model.pos_embed)]["weight_decay"] == 0
    assert by_id[id(model.head.weight)]["weight_decay"] == 0.3
    assert by_id[id(model.head.weight)]["lr"] == 5e-4
    retention = next(model.foveate.learned.parameters())
    assert (by_id[id(retention)]["lr"], by_id[id(retention)]["weight_decay"]) == (0.07, 0)


def test_learning_rates_fall_towards_the_input():
    optimizer = build_optimizer(OptimizerSection(layer_decay=0.5), Classify(vit()), 8)
    scales = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    model = vit()
    assert len(scales) == len(list(model.parameters()))
    assert sorted(set(scales.values())) == [0.5**n for n in (4, 3, 2, 1, 0)]


def test_nothing_to_train_is_an_error():
    with pytest.raises(ValueError, match="Every parameter is frozen"):
        build_optimizer(OptimizerSection(), Classify(vit().requires_grad_(False)), 8)


def test_rates_warm_up_and_follow_a_cosine():
    optimizer = build_optimizer(OptimizerSection(lr=1.0), Classify(vit()), 8)
    rates = build_lr_scheduler(ScheduleSection(epochs=10, warmup_epochs=2, warmup_lr=0.1, min_lr=0.0), optimizer, 5)
    seen = []
    for step in range(51):
        rates.step_update(step)
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen[0] == pytest.approx(0.1)
    assert seen[5] == pytest.approx(0.55)
    assert seen[10] == pytest.approx(0.5 * (1 + math.cos(math.pi / 5)))  # the cosine counts from the first step
    assert seen[9] == max(seen)
    assert seen[25] == pytest.approx(0.5)
    assert seen[50] == pytest.approx(0, abs=1e-12)


def test_the_whole_schedule_runs_again_in_a_second_cycle(images_folder, tmp_path):
    run = Run(small_config(images_folder, "schedule.cycles=2", "optimizer.ema=0", "data.val="), tmp_path)
    rates = []
    run.objective.before_step = lambda moment: rates.append(run.optimizer.param_groups[0]["lr"])
    run.train()
    assert len(rates) == 12
    assert rates[:6] == rates[6:]
    assert len(set(rates[:6])) == 6


def test_keep_rates_warm_up_along_half_a_cosine():
    section = ReductionSection(keep_rate=0.5, warmup_start=2, warmup_epochs=4)
    assert [warm_keep_rate(section, epoch) for epoch in (0, 2)] == [1, 1]
    assert warm_keep_rate(section, 4) == pytest.approx(0.75)
    assert [warm_keep_rate(section, epoch) for epoch in (6, 99)] == [0.5, 0.5]
    assert warm_keep_rate(ReductionSection(keep_rate=0.7), 0) == 0.7


def test_the_search_is_steered_to_the_asked_mass(images_folder, tmp_path):
    changes = ["objective.kind=power-search", "reduction.method=power-search", "objective.mass=0.5"]
    changes += [
        "objective.strength=1e-3",
        "objective.retention_lr=0.05",
        "augmentation.mixup=0",
        "augmentation.cutmix=0",
    ]
    run = Run(small_config(images_folder, *changes, "schedule.epochs=30", "optimizer.ema=0", "data.val="), tmp_path)
    assert retained_share(run.objective.model) == 1
    outcome = run.train()
    assert outcome.products["share"] == pytest.approx(0.5, abs=0.005)
    counts = outcome.products["counts"]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) / (3 * 16) == pytest.approx(0.5, abs=0.1)
    schedule = fv.load_schedule(tmp_path / "schedule.json")
    assert fv.reduce_(vit(), fv.PoWER(), schedule).foveate.plan.counts == tuple(counts)


@pytest.mark.parametrize("kind", ["bimodal", "nothing", "later blocks more"])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_the_mass_is_held_whatever_the_search_left(kind, share):
    """Also where everything is zero, and counted without what comes back in later blocks."""
    model = fv.reduce_(vit(), fv.PoWERSearch())
    with torch.no_grad():
        for block, module in enumerate(soft_extracts(model)):
            values = {"bimodal": (torch.arange(16) < 4).float(), "nothing": torch.zeros(16)}
            module.retention.copy_(values.get(kind, torch.full((16,), 0.1 + 0.1 * block)))
    hold_mass_(model, share)
    assert retained_share(model) == pytest.approx(share, abs=1e-3)
    assert sum(found_counts(model)) / (3 * 16) == pytest.approx(share, abs=1 / 16)
    held = [module.retention.clone() for module in soft_extracts(model)]
    hold_mass_(model, share / 2)  # enough is there already
    assert all(torch.equal(a, m.retention) for a, m in zip(held, soft_extracts(model), strict=True))


def test_positions_of_any_library_are_spared_by_weight_decay():
    for family, mark in (
        ("hf-vit", "position_embeddings"),
        ("torchvision", "pos_embedding"),
        ("timm-cls", "pos_embed"),
    ):
        assert any(mark in name for name in fv.inspect(make(family)).no_weight_decay())
    with pytest.raises(ValueError, match="layer_decay needs a timm model"):
        build_optimizer(OptimizerSection(layer_decay=0.5), Classify(make("torchvision")), 8)


def test_optimizers_that_count_in_their_groups_are_kept():
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["step"] = torch.tensor(7)
    tensors, values = split_optimizer(optimizer.state_dict())
    again = join_optimizer(tensors, json.loads(json.dumps(values)))
    assert again["param_groups"][0]["step"] == 7
    assert torch.equal(again["state"][0]["momentum_buffer"], optimizer.state_dict()["state"][0]["momentum_buffer"])
