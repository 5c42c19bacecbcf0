"""The contract, part two: a reduced model is still a model: it trains, copies, saves, compiles, exports, shares."""

import copy
import io
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.parallel import DistributedDataParallel

import foveate as fv
from pairs import COMPILED_PAIRS, FEW_PAIRS, PAIRS, pair_id
from zoo import (
    FAMILIES,
    ONE_PER_LIBRARY,
    PATCHES,
    SHALLOW,
    blocks_of,
    family_of,
    images,
    main_output,
    make,
    num_prefix,
    reduced,
    schedule_for,
    shared,
)

every_pair = pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
few_pairs = pytest.mark.parametrize("pair", FEW_PAIRS, ids=pair_id)


def assert_same_outputs(one, other):
    with torch.no_grad():
        assert torch.equal(main_output(one, images()), main_output(other, images()))


def gradients(model) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # a method may decide by chance while it trains
    model.zero_grad(set_to_none=True)
    main_output(model, images()).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@every_pair
def test_restore_gives_the_model_back_bit_for_bit(pair):
    method, family = pair
    model, x = make(family), images()
    cls, keys = type(model), list(model.state_dict())
    with torch.no_grad():
        expected = main_output(model, x)
        fv.reduce_(model, method, schedule_for(method))
        changed = main_output(model, x)
        if min(model.foveate.plan.counts) < PATCHES:  # a search starts from the unreduced model
            assert changed.shape != expected.shape or not torch.equal(changed, expected)
        assert fv.restore_(model) is model
        assert torch.equal(main_output(model, x), expected)
    assert type(model) is cls
    assert list(model.state_dict()) == keys
    assert not hasattr(model, "foveate")


@every_pair
def test_state_dict_keys_stay_and_load_both_ways(pair):
    method, family = pair
    plain, model = make(family), reduced(family, method)
    own = [k for k in model.state_dict() if k.startswith("foveate.")]
    assert [k for k in model.state_dict() if k not in own] == list(plain.state_dict())
    if not own:
        model.load_state_dict(plain.state_dict(), strict=True)
        plain.load_state_dict(model.state_dict(), strict=True)


@every_pair
def test_gradients_are_finite_and_reach_the_first_layer(pair):
    method, family = pair
    found = gradients(reduced(family, method))
    assert all(g.isfinite().all() for g in found.values())
    stem = next(name for name in found if any(part in name for part in ("patch_embed", "conv_proj", "embeds")))
    assert found[stem].abs().sum() > 0


@few_pairs
def test_copies_pickles_and_saves_give_the_same_outputs(pair):
    method, family = pair
    model = reduced(family, method)
    assert_same_outputs(copy.deepcopy(model), model)
    assert_same_outputs(pickle.loads(pickle.dumps(model)), model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert_same_outputs(loaded, model)
    assert type(loaded) is type(model)
    assert type(fv.restore_(loaded)) is type(make(family))


@few_pairs
def test_a_forward_pass_leaves_nothing_on_the_model(pair):
    method, family = pair
    model = reduced(family, method)
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    main_output(model, images())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


@few_pairs
def test_eight_threads_sharing_one_model_get_the_single_thread_result(pair):
    method, family = pair
    model = shared(family, method)
    batches = [images()[i % 3 : i % 3 + 1] for i in range(16)]
    with torch.no_grad():
        expected = [main_output(model, x) for x in batches]

    def run(x):
        with torch.no_grad():
            return main_output(model, x)

    with ThreadPoolExecutor(8) as pool:
        for got, want in zip(pool.map(run, batches), expected, strict=True):
            assert torch.equal(got, want)


# torchvision has none, so that its methods go to another family here
CHECKPOINTED = [(method, ONE_PER_LIBRARY[0] if family == "torchvision" else family) for method, family in FEW_PAIRS]


@pytest.mark.parametrize("pair", CHECKPOINTED, ids=pair_id)
def test_activation_checkpointing_gives_the_same_gradients(pair):
    method, family = pair
    model = reduced(family, method).train()
    plain = gradients(model)
    if family.startswith("timm"):
        model.set_grad_checkpointing(True)
    else:
        model.gradient_checkpointing_enable()
    calls = Counter()
    last_block = blocks_of(model)[-1]
    for layer in (m for m in last_block.modules() if isinstance(m, nn.Linear)):
        layer.register_forward_hook(lambda m, *_: calls.update([m]))  # some blocks read weights without a call
    again = gradients(model)
    assert max(calls.values()) == 2, "once forward, once recomputed for the backward pass"
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(gradient, again[name])


@pytest.mark.parametrize("family", ONE_PER_LIBRARY)
def test_distributed_data_parallel_gives_the_same_gradients(family, tmp_path):
    model = reduced(family, fv.ToMe())
    plain = gradients(model)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = gradients(DistributedDataParallel(model, find_unused_parameters=True))
    finally:
        dist.destroy_process_group()
    assert {f"module.{name}" for name in plain} == set(parallel)
    for name, gradient in plain.items():
        torch.testing.assert_close(parallel[f"module.{name}"], gradient)


@pytest.mark.parametrize("pair", COMPILED_PAIRS, ids=pair_id)
def test_torch_compile_traces_the_whole_graph(pair):
    method, family = pair
    model = reduced(family, method, SHALLOW)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(main_output(compiled, images()), main_output(model, images()))


@pytest.mark.parametrize("method", [fv.ToMe(), fv.EViT(), fv.RandomSelect()], ids=lambda m: m.name)
def test_inductor_gives_the_eager_result(method):
    model = reduced("timm-cls", method, SHALLOW)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    with torch.no_grad():
        expected = main_output(model, images())
        torch.testing.assert_close(main_output(compiled, images()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [fv.ToMe(), pytest.param(fv.Ward(), marks=pytest.mark.export)], ids=lambda m: m.name)
def test_one_compiled_graph_serves_every_batch(method):
    model, graphs = reduced("timm-cls", method, SHALLOW), CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=graphs, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5, 2, 8):
            torch.testing.assert_close(compiled(images(batch)), model(images(batch)))
    assert graphs.frame_count == 1


@few_pairs
def test_torch_export_gives_the_eager_result_for_any_batch(pair):
    method, family = pair
    model = reduced(family, method, SHALLOW)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with torch.no_grad():
        exported = torch.export.export(model, (images(3),), dynamic_shapes=(batch,)).module()
        for count in (1, 3, 5):
            torch.testing.assert_close(main_output(exported, images(count)), main_output(model, images(count)))
        # exporting must leave no mark on the eager model
        assert_same_outputs(model, reduced(family, method, SHALLOW))


@few_pairs
def test_save_and_load_bring_back_weights_method_and_schedule(pair, tmp_path):
    method, family = pair
    model = reduced(family, method)
    hand_built = family.startswith("timm")
    if hand_built:
        with pytest.warns(UserWarning, match="cannot be rebuilt"):
            fv.save(model, tmp_path / "model")
    else:
        fv.save(model, tmp_path / "model")
    loaded = fv.load(tmp_path / "model", model=make(family) if hand_built else None)
    assert loaded.foveate.method == method
    assert loaded.foveate.schedule == model.foveate.schedule
    assert_same_outputs(loaded, model)


@pytest.mark.parametrize("family", [f for f in FAMILIES if "eager" not in f])
def test_the_exact_last_block_saves_work_and_changes_nothing(family):
    model, x = make(family), images()
    if family_of(model).shape().head_reads_patches:
        with pytest.raises(ValueError, match=r"reads only prefix tokens|reads a feature for every patch"):
            fv.reduce_(model, fv.ToMe(), fv.Keep({}), exact_last_block=True)
        return
    with torch.no_grad():
        expected, before = model(x), fv.cost(model).macs
        fv.reduce_(model, fv.ToMe(), fv.Keep({}), exact_last_block=True)
        got = model(x)
    one, other = (out if isinstance(out, torch.Tensor) else _read_by_head(out) for out in (got, expected))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert fv.cost(model).macs < before
    assert fv.cost(model).tokens[-1] == num_prefix(model)


def _read_by_head(out):
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    raise AssertionError("nothing the head made")


@pytest.mark.parametrize("family", [f for f in ONE_PER_LIBRARY if f != "hf-dinov2"] + ["hf-vit"])
@pytest.mark.parametrize("method", [fv.ToMe(), fv.EViT(), *(fv.FreeSlice(s) for s in fv.methods.Site)], ids=repr)
def test_the_exact_last_block_agrees_with_the_full_one_for_every_site(family, method):
    schedule = fv.KeepRate(0.6, blocks=(1, 3))  # the last block reduces too
    with torch.no_grad():
        full = main_output(fv.reduce_(make(family), method, schedule), images())
        exact = main_output(fv.reduce_(make(family), method, schedule, exact_last_block=True), images())
    torch.testing.assert_close(exact, full, rtol=1e-4, atol=1e-5)
