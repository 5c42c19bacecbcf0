"""DynamicViT: masked in training, pruned at inference, and both the same for the same kept tokens."""

import pytest
import torch
from torch import Tensor

import foveate as fv
from foveate.core import attend, attend_masked
from foveate.methods import StepShape
from foveate.methods.dynamic_vit import DynamicViT, Predictor
from zoo import FAMILIES, images, make

SCHEDULE = fv.KeepRate(0.7, blocks=(1, 2))


def reduced(family: str = "timm-cls", schedule: fv.Schedule = SCHEDULE):
    return fv.reduce_(make(family), DynamicViT(), schedule)


def without_dropout_(model):
    for module in model.modules():
        if hasattr(module, "p") or "Drop" in type(module).__name__ or "BatchNorm" in type(module).__name__:
            module.eval()
    return model


def masked_by_loops(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """The paper's equation, entry by entry."""
    out = torch.zeros_like(v)
    for b, h, i in torch.cartesian_prod(*(torch.arange(size) for size in q.shape[:3])).tolist():
        weights = []
        for j in range(k.shape[2]):
            g = 1.0 if i == j else float(keep[b, j])
            weights.append(torch.exp(q[b, h, i] @ k[b, h, j] * q.shape[-1] ** -0.5) * g)
        total = torch.stack(weights)
        out[b, h, i] = (total / total.sum()) @ v[b, h]
    return out


def test_masked_attention_is_the_papers_equation():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 4, generator=generator) for _ in range(3))
    keep = torch.tensor([[1.0, 0, 1, 0, 1], [0, 0, 1, 1, 1]])
    torch.testing.assert_close(attend_masked(q, k, v, keep), masked_by_loops(q, k, v, keep))
    torch.testing.assert_close(attend_masked(q, k, v, torch.ones(2, 5)), attend(q, k, v))


def test_a_dropped_token_still_has_a_gradient():
    q, k, v = (torch.randn(1, 1, 4, 3) for _ in range(3))
    keep = torch.tensor([[1.0, 0.0, 1.0, 0.0]], requires_grad=True)
    attend_masked(q, k, v, keep)[0, 0, 0].sum().backward()
    assert (keep.grad[0, 1:] != 0).all()


def test_a_masked_key_far_above_the_others_changes_nothing():
    q, v = torch.full((1, 1, 3, 1), 20.0), torch.tensor([[[[1.0], [2.0], [9.0]]]])
    k = torch.tensor([[[[0.0], [0.0], [20.0]]]], requires_grad=True)
    keep = torch.tensor([[1.0, 1.0, 0.0]], requires_grad=True)
    out = attend_masked(q, k, v, keep)
    torch.testing.assert_close(out[0, 0, :2, 0], torch.tensor([1.5, 1.5]))
    out.sum().backward()
    assert keep.grad.isfinite().all()
    assert k.grad.isfinite().all()
    assert keep.grad[0, 2] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_training_and_pruned_inference_agree_on_prefix_tokens(family, monkeypatch):
    """The law: the same kept sets, the same prediction."""
    model = reduced(family)
    bound = fv.inspect(model)
    with torch.no_grad():
        seen = bound.encode(images(), record=True)
        pruned = bound.head(seen)
    alive, decisions = torch.arange(36).expand(3, 36), []
    for output in seen.blocks:
        if output.step is not None:
            alive = alive.gather(1, output.step.assignment.src)
            decisions.append(torch.zeros(3, 36).scatter(1, alive, 1.0))
    assert [int(d.sum(dim=1)[0]) for d in decisions] == [25, 17]
    answers = iter(decisions)
    monkeypatch.setattr(DynamicViT, "decide", lambda self, view, kept: next(answers))
    without_dropout_(model.train())
    with torch.no_grad():
        masked = bound.encode(images(), record=True)
        trained = bound.head(masked)
    prefix = bound.num_prefix
    ours, theirs = (bound.final_norm(found.stream.tokens) for found in (masked, seen))
    assert ours.shape[1] == prefix + 36
    torch.testing.assert_close(ours[:, :prefix], theirs[:, :prefix], atol=1e-5, rtol=1e-5)
    if family != "timm-tokens":  # which gives all its tokens, fewer of them when they are pruned
        torch.testing.assert_close(prediction(trained), prediction(pruned), atol=1e-5, rtol=1e-5)


def prediction(found):
    """What is made of the tokens, whichever library calls it what."""
    names = ("logits", "image_embeds", "pooler_output")
    return found if isinstance(found, Tensor) else next(getattr(found, name) for name in names if hasattr(found, name))


def test_predictors_see_the_same_in_training_and_at_inference():
    """The global half averages over the kept tokens alone, masked or cut out."""
    predictor = Predictor(16).eval()
    tokens = torch.randn(2, 6, 16)
    kept = torch.tensor([[1.0, 0, 1, 1, 0, 1]]).repeat(2, 1)
    masked = predictor(tokens, kept)[:, kept[0] == 1]
    torch.testing.assert_close(masked, predictor(tokens[:, kept[0] == 1], None))


def test_decisions_multiply_over_stages_and_leave_one_token_at_least():
    model = reduced().train()
    for stage in model.foveate.learned.values():
        torch.nn.init.zeros_(stage.exit[-1].weight)
        stage.exit[-1].bias.data.copy_(torch.tensor([-20.0, 20.0]))  # drop everything
    seen = fv.inspect(model).encode(images(), record=True)
    first, second = (seen.blocks[i].stream.keep for i in (1, 2))
    assert first.sum(dim=1).tolist() == [1, 1, 1]
    assert torch.equal(first, second)


def test_a_token_that_is_gone_stays_gone():
    model = reduced().train()
    torch.manual_seed(0)
    seen = fv.inspect(model).encode(images(), record=True)
    first, second = (seen.blocks[i].stream.keep for i in (1, 2))
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert (second <= first).all()
    assert (second < first).any()
    assert seen.blocks[0].stream.keep is None


def test_gradients_reach_every_predictor():
    model = reduced().train()
    model(images()).square().sum().backward()
    for name, parameter in model.foveate.learned.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_counts_are_the_papers():
    counts = [DynamicViT().keep_count(0.7, 196, 196, stage) for stage in (1, 2, 3)]
    assert counts == [137, 96, 67]
    assert DynamicViT().keep_count(0.001, 10, 196, 1) == 1
    single = fv.reduce_(make("timm-cls"), DynamicViT(), fv.KeepRate(0.25, blocks=(2,)))
    assert single.foveate.plan.counts == (36, 36, 9, 9)


def test_the_cost_of_a_predictor_is_that_of_its_layers():
    step = StepShape(n=49, keep=30, prefix=1, dim=32, heads=2, head_dim=16, has_cls=True)
    layers = [m for m in Predictor(32).modules() if isinstance(m, torch.nn.Linear)]
    assert DynamicViT().macs(step) == 49 * sum(layer.weight.numel() for layer in layers)


@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
def test_a_predictor_starts_near_the_share_it_is_to_keep(share):
    torch.manual_seed(0)
    chance = Predictor(192, share)(torch.randn(8, 100, 192), None).exp()[..., 0].mean().item()
    assert chance == pytest.approx(min(share, 0.99), abs=0.05)


def test_a_schedule_tells_predictors_their_shares():
    modules = reduced(schedule=fv.Keep({1: 27, 2: 9})).foveate.modules_by_block  # of 36, of 27
    starts = [modules[block].exit[-1].bias.softmax(0)[0].item() for block in (1, 2)]
    assert starts == pytest.approx([27 / 36, 9 / 27])


def test_predictors_come_from_a_seed_and_go_with_restore():
    first, second = reduced(), reduced()
    names = [name for name in first.state_dict() if name.startswith("foveate.")]
    assert names
    assert all(torch.equal(first.state_dict()[name], second.state_dict()[name]) for name in names)
    other = fv.reduce_(make("timm-cls"), DynamicViT(seed=1), SCHEDULE)
    assert not torch.equal(first.state_dict()[names[2]], other.state_dict()[names[2]])
    before = torch.random.get_rng_state()
    reduced()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert list(fv.restore_(first).state_dict()) == list(make("timm-cls").state_dict())


def test_a_checkpoint_whose_predictors_do_not_fit_names_them():
    weights = reduced().state_dict()
    other = fv.reduce_(make("timm-cls"), DynamicViT(), fv.KeepRate(0.7, blocks=(1, 3)))
    with pytest.raises(RuntimeError, match=r"foveate\.learned\.3"):
        other.load_state_dict(weights)


def test_bad_widths_are_refused():
    with pytest.raises(ValueError, match="divisible by 4"):
        Predictor(18)


def test_blocks_are_recorded_only_on_demand():
    family = fv.inspect(reduced())
    assert family.encode(images()).blocks == ()
    assert len(family.encode(images(), record=True).blocks) == len(family.blocks)


def test_the_limit_of_speed_predicts_too_and_only_cuts(monkeypatch):
    model = fv.reduce_(make("timm-cls"), DynamicViT().free_slice(), SCHEDULE)
    calls, whole = [], Predictor.forward
    monkeypatch.setattr(Predictor, "forward", lambda self, x, kept: calls.append(1) or whole(self, x, kept))
    trace = fv.trace(model, images())
    assert len(calls) == 2
    assert trace.owner(3)[0].tolist() == [*range(17), *[-1] * 19]
    assert fv.cost(model) == fv.cost(reduced())


def test_no_image_is_left_without_a_patch():
    with pytest.raises(fv.PlanError, match="DynamicViT can reach 1 at the lowest"):
        reduced(schedule=fv.Keep({1: 0}))


def test_another_image_size_may_not_ask_for_a_predictor_that_is_missing():
    model = reduced("timm-dynamic", fv.RemovePerBlock(40))
    assert list(model.foveate.learned) == ["0"]
    larger = torch.randn(1, 3, *(2 * side for side in images().shape[-2:]))
    with pytest.raises(ValueError, match="has no predictor for block 1"):
        model(larger)
    with pytest.raises(ValueError, match="has no learned weights for block 1"):
        model.set_input_size(tuple(larger.shape[-2:]))
    assert model(images()).shape[0] == len(images())


def test_no_trace_of_masks():
    with pytest.raises(ValueError, match=r"Call model\.eval\(\) first"):
        fv.trace(reduced().train(), images())


def test_its_free_slice_is_not_stored_as_itself(tmp_path):
    with pytest.raises(ValueError, match="PredictAndSlice is not registered"):
        fv.save(fv.reduce_(make("timm-cls"), DynamicViT().free_slice(), SCHEDULE), tmp_path / "m")
    assert not (tmp_path / "m").exists()
