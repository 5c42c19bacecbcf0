"""The loop: it learns, it goes on where it stopped, and what it says is what happened."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import foveate as fv
from foveate.training.checkpoint import CURRENT, PREVIOUS, read_checkpoint, write_checkpoint
from foveate.training.loop import Run
from foveate.training.stopping import StopSignal
from small_runs import DISTILL, LATE, SMALL, small_config


def weights(directory):
    return fv.load(directory / "model").state_dict()


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class StopsAfter(StopSignal):
    """Asked to stop after so many steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    @property
    def requested(self):
        self.steps -= 1
        return self.steps < 0


def test_it_learns_and_writes_what_it_did(images_folder, tmp_path):
    plain = ("augmentation.kind=evaluation", "augmentation.mixup=0", "augmentation.cutmix=0", "optimizer.ema=0")
    config = small_config(images_folder, *plain, "schedule.epochs=6", "objective.smoothing=0")
    outcome = Run(config, tmp_path).train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == outcome.history
    assert [line["epoch"] for line in lines] == list(range(6))
    assert [line["step"] for line in lines] == [3, 6, 9, 12, 15, 18]
    assert lines[-1]["train"]["loss"] < 0.7 * lines[0]["train"]["loss"]
    assert lines[-1]["val"]["images"] == 10
    assert outcome.best == max(line["val"]["top1"] for line in lines) == 100
    assert fv.load(tmp_path / "best").head.out_features == 2


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
def test_a_stopped_run_goes_on_exactly(images_folder, tmp_path, stop_after):
    config = small_config(images_folder)
    whole = Run(config, tmp_path / "whole").train()
    stopped = Run(config, tmp_path / "stopped").train(StopsAfter(stop_after - 1))
    assert not stopped.finished
    resumed = Run(config, tmp_path / "stopped")
    assert resumed.resume()
    assert resumed.state.step == stop_after
    outcome = resumed.train()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    told = [{k: line[k] for k in ("epoch", "step", "train", "val")} for line in whole.history]
    assert told == [{k: line[k] for k in ("epoch", "step", "train", "val")} for line in outcome.history]


def test_every_kind_of_chance_is_in_the_run_that_is_resumed(images_folder, tmp_path):
    """Without the seed of each step or image the two would differ: other seeds do."""
    first = Run(small_config(images_folder), tmp_path / "a").train()
    other = Run(small_config(images_folder, "run.seed=1"), tmp_path / "b").train()
    assert first.history[0]["train"] != other.history[0]["train"]
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "b"))


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_in_parts_is_the_same_batch(images_folder, tmp_path, parts):
    plain = ("augmentation.kind=evaluation", "model.options.drop_path_rate=0", "optimizer.ema=0", "run.steps=3")
    plain += ("optimizer.name=sgd", "optimizer.clip_norm=0", "optimizer.lr=0.1")  # others would hide a gradient's scale
    Run(small_config(images_folder, *plain), tmp_path / "one").train()
    Run(small_config(images_folder, *plain, f"optimizer.accumulate={parts}"), tmp_path / "parts").train()
    ours, theirs = weights(tmp_path / "one"), weights(tmp_path / "parts")
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=2e-4, rtol=1e-3)


def test_workers_do_not_change_a_run(images_folder, tmp_path):
    Run(small_config(images_folder, "run.steps=4"), tmp_path / "none").train()
    Run(small_config(images_folder, "run.steps=4", "data.workers=2"), tmp_path / "two").train()
    assert same(weights(tmp_path / "none"), weights(tmp_path / "two"))


def test_the_moving_average_is_what_is_evaluated_and_kept(images_folder, tmp_path):
    run = Run(small_config(images_folder, "optimizer.ema=0.5"), tmp_path)
    run.train()
    assert same(weights(tmp_path), run.ema.module.state_dict())
    assert not same(weights(tmp_path), run.objective.model.state_dict())
    figures = run.evaluate()
    for parameter in run.objective.model.parameters():
        parameter.data.zero_()
    assert run.evaluate() == figures


def test_a_keep_rate_warms_up(images_folder, tmp_path):
    kept = ("reduction.method=evit", "reduction.keep_rate=0.5", "reduction.blocks=1", "reduction.warmup_epochs=2")
    run = Run(small_config(images_folder, *kept, "schedule.epochs=3"), tmp_path)
    counts = []
    run.objective.before_step = lambda moment: counts.append(run.objective.model.foveate.plan.counts[1])
    run.train()
    assert counts[0] == 16
    assert counts == sorted(counts, reverse=True)
    assert counts[-3:] == [9] * 3  # eight and the fused one
    assert 9 < counts[3] < 16
    assert run.ema.module.foveate.plan.counts[1] == 9


def test_a_run_is_not_resumed_with_other_values(images_folder, tmp_path):
    Run(small_config(images_folder, "run.steps=1"), tmp_path).train()
    with pytest.raises(ValueError, match=r"different values of optimizer\.lr"):
        Run(small_config(images_folder, "run.steps=1", "optimizer.lr=5e-3"), tmp_path).resume()
    assert Run(small_config(images_folder, "run.steps=2", "data.workers=1"), tmp_path).resume()
    assert not Run(small_config(images_folder), tmp_path / "nothing here").resume()


def test_broken_checkpoints_are_refused_with_words(images_folder, tmp_path):
    config = small_config(images_folder, "run.steps=2", "run.checkpoint_steps=1")
    Run(config, tmp_path).train()
    current, whole = tmp_path / CURRENT, (tmp_path / CURRENT).read_bytes()
    for broken in (whole[: len(whole) // 2], b"\x80\x04 not tensors"):
        current.write_bytes(broken)
        with pytest.warns(UserWarning, match=r"is truncated or not a checkpoint.*continues from checkpoint-previous"):
            assert Run(config, tmp_path).resume()
    save_file({"a": torch.zeros(1)}, current)
    with pytest.raises(ValueError, match="not a checkpoint of foveate train"):
        Run(config, tmp_path).resume()
    current.unlink()
    run = Run(config, tmp_path)
    assert run.resume()  # from the one before
    assert (run.state.step, run.state.epoch) == (2, 0)  # the one after it ended the epoch
    assert (tmp_path / PREVIOUS).exists()


def test_a_checkpoint_of_another_model_is_refused(images_folder, tmp_path):
    Run(small_config(images_folder, "run.steps=1"), tmp_path).train()
    run = Run(small_config(images_folder, "run.steps=1"), tmp_path)
    other = read_checkpoint(tmp_path / CURRENT)
    other.tensors["objective"]["model.head.weight"] = torch.zeros(3, 32)
    write_checkpoint(tmp_path, other)
    before = run.objective.model.head.weight.clone()
    with pytest.raises(ValueError, match=r"does not match.*model\.head\.weight"):
        run.resume()
    assert torch.equal(run.objective.model.head.weight, before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["data.source="], "No training data given"),
        (["model.name="], "No model given. Set --model"),
        (["data.train=nowhere"], "nowhere"),
        (["schedule.warmup_epochs=2"], "warmup_epochs=2.0 must be at least 0 and below the 2 epochs"),
        (["optimizer.accumulate=3"], "batch_size=8 is not divisible by 3"),
        (["data.batch_size=9"], "even number"),
        (["data.batch_size=64"], "do not fill one batch"),
        ([*DISTILL], "needs a teacher"),
        (["objective.teacher=deit"], "objective.kind=classify does not use objective.teacher"),
        (["objective.kind=distill"], "objective.kind=distill does not use objective.smoothing"),
        (["objective.kind=distill", "objective.smoothing=0"], "mix labels"),
        (["reduction.method=evit", "reduction.keep_rate=0.5", "reduction.blocks=1", *LATE], "the run ends after 2"),
        (
            ["reduction.method=evit", "reduction.keep_rate=0.5", "reduction.blocks=1", *LATE[1:], "run.steps=3"],
            "after 1",
        ),
        (["objective.kind=power-search"], "reduction.method=PoWERSearch"),
        (["reduction.method=evit", "reduction.keep_rate=0.5", "reduction.remove=2"], "keep_rate and remove"),
        (["model.freeze_blocks=9"], "freeze_blocks must be 0 to 3"),
        (["augmentation.scale=0.5"], "two numbers"),
        (["augmentation.auto_augment=foo"], "does not know this auto_augment"),
        (["augmentation.interpolation=foo"], "does not know this auto_augment or interpolation"),
        (["run.eval_epochs=0"], "eval_epochs must be at least 1, got 0"),
        (["optimizer.accumulate=0"], "accumulate must be at least 1, got 0"),
        (["optimizer.ema=2"], "ema must be at least 0 and below 1, got 2"),
        (["optimizer.name=adamv"], r"optimizer\.name=adamv.*Did you mean adam"),
        (["reduction.method=power"], r"needs a schedule.*reduction\.keep_rate"),
        (["augmentation.mixup=-1"], "mixup must be at least 0, got -1"),
        (["optimizer.layer_decay=-1"], "layer_decay must be from 0 to 1, got -1"),
        (["augmentation.flip=7"], "flip must be from 0 to 1, got 7"),
        (["reduction.keep_rate=0.5"], "has values but no method"),
        (["model.name=hf:anything"], "has a fixed architecture"),
        (["model.name=hf:anything", "model.options={}"], "always comes with its weights"),
    ],
)
def test_what_cannot_be_trained_is_said_before_training(images_folder, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        Run(small_config(images_folder, *changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_no_number_stops_the_run(images_folder, tmp_path):
    run = Run(small_config(images_folder, "schedule.epochs=9", "optimizer.ema=0"), tmp_path)
    with torch.no_grad():
        run.objective.model.head.weight.fill_(float("nan"))
    with pytest.raises(RuntimeError, match=r"The loss became nan at step 3.*lower"):
        run.train()


def test_no_checkpoint_is_written_over_a_good_one_once_the_loss_is_no_number(images_folder, tmp_path):
    run = Run(small_config(images_folder, "run.checkpoint_steps=1", "schedule.epochs=9", "optimizer.ema=0"), tmp_path)

    def poison():
        if run.state.step == 1:
            run.objective.model.head.weight.data.fill_(float("nan"))

    run.objective.after_step = poison
    with pytest.raises(RuntimeError, match="Weights became NaN or infinite at step 2"):
        run.train()
    kept = load_file(tmp_path / CURRENT)["objective/model.head.weight"]
    assert kept.isfinite().all()
    run = Run(small_config(images_folder, "run.checkpoint_steps=1", "schedule.epochs=9", "optimizer.ema=0"), tmp_path)
    assert run.resume()
    assert run.state.step == 1


@pytest.mark.parametrize("steps", [(2, 5), (3, 4), (1, 2)])
def test_more_steps_go_on_within_the_epoch(images_folder, tmp_path, steps):
    first, then = steps
    whole = Run(small_config(images_folder, f"run.steps={then}"), tmp_path / "whole").train()
    Run(small_config(images_folder, f"run.steps={first}"), tmp_path / "more").train()
    run = Run(small_config(images_folder, f"run.steps={then}"), tmp_path / "more")
    assert run.resume()
    outcome = run.train()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "more"))
    assert [line["epoch"] for line in outcome.history] == [line["epoch"] for line in whole.history]
    assert outcome.history[-1]["train"] == whole.history[-1]["train"]


def test_a_run_stopped_after_its_last_step_is_closed_when_it_goes_on(images_folder, tmp_path):
    config = small_config(images_folder, "run.steps=2")
    assert not Run(config, tmp_path).train(StopsAfter(1)).finished
    run = Run(config, tmp_path)
    run.resume()
    outcome = run.train()
    assert [line["step"] for line in outcome.history] == [2]
    assert outcome.best is not None
    assert (tmp_path / "best").exists()


def test_the_best_model_has_the_tokens_it_is_to_have(images_folder, tmp_path):
    kept = ("reduction.method=evit", "reduction.keep_rate=0.5", "reduction.blocks=1", "reduction.warmup_epochs=2")
    Run(small_config(images_folder, *kept, "schedule.epochs=4"), tmp_path).train()
    assert fv.load(tmp_path / "best").foveate.plan.counts == (16, 9, 9)


def test_a_run_goes_on_within_the_warm_up(images_folder, tmp_path):
    kept = ("reduction.method=evit", "reduction.keep_rate=0.5", "reduction.blocks=1", "reduction.warmup_epochs=2")
    config = small_config(images_folder, *kept)
    Run(config, tmp_path / "whole").train()
    Run(config, tmp_path / "stopped").train(StopsAfter(3))
    run = Run(config, tmp_path / "stopped")
    run.resume()
    assert 9 < run.objective.model.foveate.plan.counts[1] < 16
    run.train()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))


def test_the_best_distillation_is_the_one_with_the_least_loss(images_folder, tmp_path):
    teacher = fv.save(small_teacher(), tmp_path / "teacher")
    told = (*DISTILL, f"objective.teacher={teacher}", "model.options.num_classes=0")
    outcome = Run(small_config(images_folder, *told, "schedule.epochs=3", "optimizer.ema=0"), tmp_path / "run").train()
    losses = [line["val"]["loss"] for line in outcome.history]
    assert outcome.best == min(losses) < max(losses)


def small_teacher():
    torch.manual_seed(5)
    return timm.create_model("vit_tiny_patch16_224", **(SMALL | {"embed_dim": 48}), num_classes=0)


def test_mixed_labels_are_smoothed(images_folder, tmp_path):
    run = Run(small_config(images_folder, "objective.smoothing=0.2"), tmp_path)  # timm's own default is 0.1
    _, labels = run.mixup(torch.randn(8, 3, 32, 32), torch.zeros(8, dtype=torch.long))
    torch.testing.assert_close(labels, torch.tensor([[0.9, 0.1]]).expand(8, 2))


@pytest.mark.parametrize("parts", [1, 4])
def test_losses_are_means_however_a_batch_is_divided(images_folder, tmp_path, parts):
    run = Run(small_config(images_folder, f"optimizer.accumulate={parts}", "optimizer.ema=0"), tmp_path)
    run.objective.eval()
    images, labels = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(3)), torch.arange(8) % 2
    torch.testing.assert_close(run._backward(images, labels)["loss"], run.objective(images, labels)["loss"].detach())


def test_other_data_or_another_schedule_are_noticed(images_folder, tmp_path):
    schedule = fv.save_schedule(fv.Keep([16, 10, 10]), tmp_path / "counts.json")
    told = ("reduction.method=topk", f"reduction.schedule={schedule}", "run.steps=1")
    Run(small_config(images_folder, *told), tmp_path / "run").train()
    fv.save_schedule(fv.Keep([16, 4, 4]), schedule)
    with pytest.raises(ValueError, match=r"counts \[16, 10, 10\] before, \[16, 4, 4\] now"):
        Run(small_config(images_folder, *told), tmp_path / "run").resume()


def test_a_reduced_model_can_be_reduced_otherwise_or_not_at_all(images_folder, tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=2)
    saved = fv.save(fv.reduce_(model, fv.TopK(), fv.Keep([16, 8, 8])), tmp_path / "topk")
    start = (f"model.name={saved}", "model.options={}")

    def counts(*changes):
        found = Run(small_config(images_folder, *start, *changes), tmp_path / "run").objective.model
        return found.foveate.plan.counts if hasattr(found, "foveate") else None

    assert counts() == (16, 8, 8)
    assert counts("reduction.method=none") is None
    assert counts("reduction.method=evit", "reduction.keep_rate=0.25", "reduction.blocks=1") == (16, 5, 5)


def test_torchvision_models_are_trained_and_loaded_again(images_folder, tmp_path, monkeypatch):
    import torchvision

    tiny = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    made = fv.save(torchvision.models.VisionTransformer(**tiny), tmp_path / "tiny")
    run = Run(small_config(images_folder, f"model.name={made}", "model.options={}", "run.steps=2"), tmp_path / "run")
    run.train()
    assert fv.load(tmp_path / "run" / "model").heads.head.out_features == 2


def test_the_backbone_stays_when_only_the_classifier_learns(images_folder, tmp_path):
    run = Run(small_config(images_folder, "model.freeze=backbone", "run.steps=3", "optimizer.ema=0"), tmp_path)
    before = {name: tensor.clone() for name, tensor in run.objective.model.state_dict().items()}
    run.train()
    after = run.objective.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    assert not run.objective.model.blocks[0].training


def test_a_run_is_saved_before_it_is_evaluated_and_goes_on_with_the_evaluation(images_folder, tmp_path, monkeypatch):
    """A scheduler that waits only some seconds may kill a long evaluation; no step of the epoch is to be lost."""
    config = small_config(images_folder)
    whole = Run(config, tmp_path / "whole").train()
    killed = Run(config, tmp_path / "killed")
    monkeypatch.setattr(killed, "evaluate", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    again = Run(config, tmp_path / "killed")
    assert again.resume()
    assert again.state.step == 3
    outcome = again.train()
    assert [line["val"] for line in outcome.history] == [line["val"] for line in whole.history]
    assert [line["train"] for line in outcome.history] == [line["train"] for line in whole.history]
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="with an accelerator, fp16 can be had")
def test_half_precision_that_a_cpu_would_ignore_is_refused(images_folder, tmp_path):
    with pytest.raises(ValueError, match="fp16 does not work on a CPU"):
        Run(small_config(images_folder, "optimizer.precision=fp16"), tmp_path)


def test_others_may_read_a_run(images_folder, tmp_path):
    """Weights have the rights of any new file, not of a secret one."""
    Run(small_config(images_folder), tmp_path / "run").train()
    rights = (tmp_path / "run" / "config.json").stat().st_mode
    weights = list((tmp_path / "run").rglob("*.safetensors"))
    assert len(weights) == 4
    assert {file.stat().st_mode for file in weights} == {rights}
