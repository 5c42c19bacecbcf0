"""DynamicViT's losses and its training schedule."""

import pytest
import timm
import torch
from torch.nn.functional import cross_entropy

import foveate as fv
from foveate.adapters import CHILD
from foveate.adapters.pooling import tagged_weights
from foveate.tasks import Classification
from foveate.training.dynamic import Dynamic, kept_shares, ratio_loss, token_loss
from foveate.training.loop import Run
from foveate.training.objectives import Moment, initial_teacher, prediction_loss
from small_runs import SMALL, small_config

SCHEDULE = fv.KeepRate(0.5, blocks=(1, 2))
TRAINED = (
    "objective.kind=dynamicvit",
    "reduction.method=dynamicvit",
    "reduction.keep_rate=0.5",
    "reduction.blocks=1,2",
)


def model():
    torch.manual_seed(0)
    made = timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=4)
    return fv.reduce_(made, fv.DynamicViT(), SCHEDULE)


def objective(**options):
    made = model()
    return Dynamic(made, teacher=initial_teacher(made), **options).train()


def photos():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2)), torch.tensor([1, 3])


def test_ratio_loss_by_hand():
    first, second = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 0]]), torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0]])
    expected = (((0.75 - 0.5) ** 2 + (0.25 - 0.5) ** 2) / 2 + 0) / 2
    assert ratio_loss([first, second], [0.5, 0.25]).item() == pytest.approx(expected)
    with pytest.raises(ValueError, match="1 stages of decisions but 2 target ratios"):
        ratio_loss([first], [0.5, 0.25])


def test_prediction_loss_is_zero_for_equal_predictions_and_directed():
    ours, theirs = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 3.0], [0.0, 1.0]])
    p, q = theirs.softmax(-1), ours.softmax(-1)
    assert prediction_loss(ours, theirs).item() == pytest.approx((p * (p / q).log()).sum(-1).mean().item())
    assert prediction_loss(ours, ours).item() == pytest.approx(0, abs=1e-7)
    assert prediction_loss(ours + 5, theirs).item() == pytest.approx(prediction_loss(ours, theirs).item(), abs=1e-6)


def test_token_loss_looks_at_kept_tokens_only():
    ours, theirs = torch.zeros(2, 3, 2), torch.tensor([[[1.0, 1], [2, 2], [9, 9]], [[3, 3], [9, 9], [9, 9]]])
    kept = torch.tensor([[1.0, 1, 0], [1, 0, 0]])
    assert token_loss(ours, theirs, kept).item() == pytest.approx(((1 + 4) / 2 + 9) / 2)


def test_the_parts_are_weighted_as_told():
    made = objective(task=Classification(smoothing=0.1))
    plain = Dynamic(made.model, task=made.task, kl=1.0, tokens=1.0, ratio=1.0, teacher=made._teacher[0]).train()
    found = []
    for one in (made, plain):
        torch.manual_seed(7)
        found.append(one(*photos()))
    assert list(found[0]) == ["loss", "ratio", "kl", "tokens"]
    torch.testing.assert_close(found[0]["ratio"], 2 * found[1]["ratio"])
    torch.testing.assert_close(found[0]["kl"], 0.5 * found[1]["kl"])
    torch.testing.assert_close(found[0]["tokens"], 0.5 * found[1]["tokens"])
    torch.manual_seed(7)
    logits = made.model(photos()[0])
    torch.testing.assert_close(found[0]["loss"], cross_entropy(logits, photos()[1], label_smoothing=0.1))


def test_the_teacher_is_the_model_at_the_start_and_shares_nothing():
    made = objective()
    (teacher,) = made._teacher
    plain = fv.restore_(model()).eval()
    torch.testing.assert_close(teacher(photos()[0]), plain(photos()[0]))
    ours = {p.data_ptr() for p in made.model.parameters()}
    assert not ours & {p.data_ptr() for p in teacher.parameters()}
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(name.startswith("model.") for name in made.state_dict())
    assert not teacher.training


def test_distillation_without_a_teacher_is_refused_and_without_weights_needs_none():
    with pytest.raises(ValueError, match="needs a teacher"):
        Dynamic(model())
    assert list(Dynamic(model(), kl=0, tokens=0).train()(*photos())) == ["loss", "ratio"]
    with pytest.raises(ValueError, match=r"reduction\.method=dynamicvit"):
        Dynamic(fv.restore_(model()), kl=0, tokens=0)


def test_the_backbone_is_frozen_at_first():
    made = objective(frozen_epochs=2)
    for epoch, learns in ((0.0, False), (1.9, False), (2.0, True)):
        made.zero_grad()
        sum(made(*photos()).values()).backward()
        made.before_update(Moment(0, epoch))
        backbone = [p.grad for name, p in made.model.named_parameters() if not name.startswith(f"{CHILD}.")]
        assert any(grad is not None for grad in backbone) == learns
        assert all(p.grad is not None for p in made.model.foveate.parameters())


def test_rates_of_predictors_and_backbone(images_folder, tmp_path):
    run = Run(small_config(images_folder, *TRAINED, "optimizer.lr_batch=1024", "optimizer.lr=1e-3"), tmp_path)
    by_id = {id(p): group for group in run.optimizer.param_groups for p in group["params"]}
    predictor, backbone = next(run.objective.model.foveate.parameters()), run.objective.model.blocks[0].norm1.weight
    run.lr_scheduler.step_update(1)
    assert by_id[id(backbone)]["lr"] == pytest.approx(0.01 * by_id[id(predictor)]["lr"])
    assert by_id[id(predictor)]["initial_lr"] == pytest.approx(8 / 1024 * 1e-3)
    for name, parameter in run.objective.model.foveate.named_parameters():
        assert by_id[id(parameter)]["weight_decay"] == (0.05 if parameter.dim() > 1 else 0), name


def test_a_run_keeps_the_backbone_then_lets_it_go(images_folder, tmp_path):
    run = Run(small_config(images_folder, *TRAINED, "objective.frozen_epochs=1", "optimizer.ema=0"), tmp_path)
    start = run.objective.model.blocks[0].attn.qkv.weight.detach().clone()
    seen = []
    run.objective.after_step = lambda: seen.append(torch.equal(run.objective.model.blocks[0].attn.qkv.weight, start))
    outcome = run.train()
    assert seen[:3] == [True] * 3
    assert not any(seen[3:])
    assert set(outcome.history[0]["train"]) == {"loss", "ratio", "kl", "tokens"}
    trained = fv.load(tmp_path / "model")
    assert trained.foveate.plan.counts == (16, 8, 4)


def test_class_token_and_positions_can_stay_as_they_are(images_folder, tmp_path):
    """The published code's optimizer leaves them out."""
    frozen = ("cls_token", "pos_embed")
    config = small_config(images_folder, *TRAINED, "model.freeze_parameters=cls_token,pos_embed", "run.steps=3")
    run = Run(config, tmp_path)
    before = {name: p.detach().clone() for name, p in run.objective.model.named_parameters()}
    trained = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    assert {name for name, p in run.objective.model.named_parameters() if id(p) not in trained} == set(frozen)
    run.train()
    assert all(torch.equal(run.objective.model.get_parameter(name), before[name]) for name in frozen)
    with pytest.raises(ValueError, match="freeze_parameters names 'class_token'"):
        Run(small_config(images_folder, *TRAINED, "model.freeze_parameters=class_token"), tmp_path / "other")


def test_two_runs_give_the_same_curve(images_folder, tmp_path):
    curves = [Run(small_config(images_folder, *TRAINED), tmp_path / name).train().history for name in ("a", "b")]
    assert curves[0][-1]["train"] == curves[1][-1]["train"]


@pytest.mark.parametrize(("logits", "share"), [((20.0, -20.0), 1.0), ((-20.0, 20.0), 1 / 16)])
def test_kept_shares_are_those_of_the_decisions(logits, share):
    model = objective().model.eval()
    for stage in model.foveate.learned.values():
        torch.nn.init.zeros_(stage.exit[-1].weight)
        stage.exit[-1].bias.data.copy_(torch.tensor(logits))
    one = model.blocks[0].train()
    shares = kept_shares(model, photos()[0])  # one token stays where all would go
    assert torch.equal(shares, torch.full((2, len(photos()[0])), share))
    assert not model.training
    assert not model.foveate.training
    assert one.training


def lvvit():
    torch.manual_seed(0)
    sizes = {"img_size": 32, "depth": 3, "embed_dim": 32, "num_heads": 2, "num_classes": 4, "patch_size": 8}
    return fv.reduce_(timm.create_model("lvvit_small", **sizes), fv.DynamicViT(), SCHEDULE)


def test_a_frozen_backbone_gathers_no_statistics():
    made = Dynamic(lvvit(), kl=0, tokens=0, frozen_epochs=2).train()
    means = made.model.get_buffer("patch_embed.proj.1.running_mean")
    for epoch, moves in ((0.0, False), (2.0, True)):
        before = means.clone()
        made.before_step(Moment(0, epoch))
        made(*photos())
        assert torch.equal(means, before) != moves


def test_lvvits_losses_are_the_published_codes():
    """Cross-entropy and KL of the class head alone; KL of the second head's predictions instead of a token MSE."""
    made = lvvit()
    objective = Dynamic(made, kl=1.0, tokens=1.0, ratio=1.0, teacher=initial_teacher(made)).train()
    with torch.no_grad():
        for head in (made.head, made.aux_head):  # a teacher that differs from the student
            head.weight.add_(0.1 * torch.randn_like(head.weight))
    images, targets = photos()
    torch.manual_seed(7)
    found = objective(images, targets)
    torch.manual_seed(7)
    tokens = made.forward_features(images)
    kept = tagged_weights(tokens)
    by_class, by_token = made.head(tokens[:, 0]), made.aux_head(tokens[:, 1:])
    (teacher,) = objective._teacher
    theirs = teacher.forward_features(images)
    torch.testing.assert_close(found["loss"], cross_entropy(by_class, targets))
    torch.testing.assert_close(found["kl"], prediction_loss(by_class, teacher.head(theirs[:, 0])))
    by_hand = []
    for image in range(len(images)):
        pairs = [(by_token[image, i], teacher.aux_head(theirs[image, 1 + i])) for i in kept[image].nonzero()[:, 0]]
        by_hand.append(torch.stack([prediction_loss(ours[None], his[None]) for ours, his in pairs]).mean())
    torch.testing.assert_close(found["tokens"], torch.stack(by_hand).mean())


def test_looking_at_shares_changes_no_statistics():
    made = lvvit().eval()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    kept_shares(made, photos()[0])
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def test_ratios_follow_the_schedule():
    made = objective()
    assert made.ratios == [0.5, 0.25]
    fv.reschedule_(made.model, fv.KeepRate(0.75, blocks=(1, 2)))
    assert made.ratios == [0.75, 0.5625]


def test_nothing_to_learn_is_said_before_training(images_folder, tmp_path):
    whole = fv.reduce_(fv.restore_(model()), fv.DynamicViT(), fv.KeepRate(1.0, blocks=(1, 2)))
    with pytest.raises(ValueError, match="removes no token"):
        Dynamic(whole, kl=0, tokens=0)
    for change, words in (
        ("model.freeze=backbone", "predictors are frozen"),
        ("reduction.warmup_epochs=1", "start at keep rate 1, where DynamicViT has no predictors"),
    ):
        with pytest.raises(ValueError, match=words):
            Run(small_config(images_folder, *TRAINED, "objective.kl_weight=0", change), tmp_path)
