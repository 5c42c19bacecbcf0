"""What is broken, and which test must notice: one entry for each break.

``old`` is a short piece of the source that occurs once in its file. Where the source changes, change it here too; the
runner calls an entry stale whose text it does not find.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """One change of the source, and the tests of which at least one has to fail."""

    name: str
    file: str  # below src/foveate
    old: str
    new: str
    fails: tuple[str, ...]  # below tests
    only: str = ""  # pytest's -k, where a test has many cases that cannot notice


def broken(name: str, file: str, old: str, new: str, *fails: str, only: str = "") -> Break:
    return Break(name, file, old, new, fails, only)


ASSIGNMENT, ATTENTION = "core/test_assignment.py::test_", "core/test_attention.py::test_"
CLUSTER, WARD = "core/test_cluster.py::test_", "core/test_ward.py::test_"
OUTPUTS, TRAVEL = "contract/test_outputs.py::test_", "contract/test_travel.py::test_"
HEADS, TIMM, UNIT = "adapters/test_heads.py::test_", "adapters/test_timm.py::test_", "adapters/test_unit_qk.py::test_"
LOOP, HVT = "train/test_loop.py::test_", "models/test_hvt_models.py::test_"
POOLING_TABLE = "tables/test_token_pooling_table.py"

CORE = [
    broken(
        "shares of overlapping windows not divided",
        "core/assignment.py",
        "return present / degree.clamp(min=1)",
        "return present",
        ASSIGNMENT + "sizes_are_conserved_by_overlapping_windows",
    ),
    broken(
        "weights interleaved wrongly in compose",
        "core/assignment.py",
        "weight = weight1.repeat_interleave(degree, 1) * weight2",
        "weight = weight1.repeat(1, degree) * weight2",
        ASSIGNMENT + "a_composition_pools_like_its_two_steps",
    ),
    broken(
        "means not normalized",
        "core/assignment.py",
        "raw / take(total, owner).squeeze(-1)",
        "raw",
        ASSIGNMENT + "weights_of_means_sum_to_one_in_every_slot_that_has_members",
    ),
    broken(
        "batch offset removed",
        "core/assignment.py",
        "torch.arange(index.shape[0], device=index.device) * n + shift",
        "torch.arange(index.shape[0], device=index.device) * 0 + shift",
        ASSIGNMENT + "pool_equals_plain_loops",
    ),
    broken(
        "a zero weight taken for an edge in a maximum",
        "core/assignment.py",
        "rows = rows.masked_fill((a.weight == 0).unsqueeze(-1), -torch.inf)",
        "pass",
        ASSIGNMENT + "pooling_by_maximum_takes_a_zero_weight_as_no_edge_in_a_weighted_selection",
    ),
    broken(
        "dropped tokens are not filled",
        "core/assignment.py",
        "    if fill is None:\n        return spread",
        "    if True:\n        return spread",
        ASSIGNMENT + "unpool_gives_a_token_its_slot_and_a_dropped_token_its_fill",
    ),
    broken(
        "size used without its logarithm",
        "core/attention.py",
        "pad(size.log(), (prefix, 0))",
        "pad(size, (prefix, 0))",
        ATTENTION + "a_token_of_size_s_weighs_as_much_as_s_copies_of_it",
    ),
    broken(
        "score of the last chunk only",
        "core/attention.py",
        "received = received + weights.sum(dim=(1, 2))",
        "received = weights.sum(dim=(1, 2))",
        ATTENTION + "scoring_gives_attend_and_the_attention_every_key_receives",
    ),
    broken(
        "bias of another image",
        "core/attention.py",
        "own_bias = bias[part] if bias is not None and bias.shape[0] > 1 else bias",
        "own_bias = bias[:1] if bias is not None and bias.shape[0] > 1 else bias",
        ATTENTION + "scoring_gives_attend_and_the_attention_every_key_receives",
    ),
    broken(
        "class row of the last block of queries",
        "core/attention.py",
        "first_row = weights[:, :, 0].mean(dim=1) if first_row is None else first_row",
        "first_row = weights[:, :, 0].mean(dim=1)",
        ATTENTION + "scoring_gives_attend_and_the_attention_every_key_receives",
    ),
    broken(
        "masked attention forgets the token itself",
        "core/attention.py",
        "keep.float()[:, None, None, :] * (1 - own) + own",
        "keep.float()[:, None, None, :] + 0 * own",
        "methods/test_dynamic_vit.py::test_masked_attention_is_the_papers_equation",
    ),
    broken(
        "selected indices unsorted",
        "core/select.py",
        ".indices.sort(dim=1).values",
        ".indices",
        "core/test_select.py::test_the_k_largest_stay_in_their_original_order",
    ),
    broken(
        "a fused token of score zero is forgotten",
        "core/select.py",
        "weight.float().clamp(min=torch.finfo(torch.float32).tiny)",
        "weight.float()",
        "core/test_select.py::test_a_token_of_score_zero_is_fused_and_not_forgotten",
    ),
    broken(
        "a seed is a step of the counter",
        "core/noise.py",
        "seed * 0xC2B2AE3D",
        "seed * 0x9E3779B1",
        "core/test_select.py::test_neighbouring_seeds_do_not_give_one_sequence_shifted",
    ),
    broken(
        "unweighted medoids",
        "core/cluster.py",
        "joined_means(medoid, others, slot, x.shape[1], weights_or_ones(weight, x))",
        "joined_means(medoid, others, slot, x.shape[1], weights_or_ones(None, x))",
        CLUSTER + "clusters_equal_plain_loops",
    ),
    broken(
        "no repair of empty clusters",
        "core/cluster.py",
        "moved = _without_empty(nearest, member)",
        "moved = nearest",
        CLUSTER + "equal_tokens_leave_no_cluster_empty",
        CLUSTER + "a_cluster_that_plain_lloyd_would_leave_empty_keeps_its_first_member",
    ),
    broken(
        "empty clusters repaired in all images if one needs it",
        "core/cluster.py",
        "empty.any(dim=1, keepdim=True)",
        "empty.any()",
        CLUSTER + "an_image_is_clustered_alike_alone_and_in_a_batch",
        CLUSTER + "a_cluster_that_plain_lloyd_would_leave_empty_keeps_its_first_member",
    ),
    broken(
        "Lance-Williams without its last term",
        "core/ward.py",
        " - w * between)",
        ")",
        WARD + "greedy_equals_plain_loops_for_every_number_of_clusters",
        WARD + "each_greedy_merge_is_the_cheapest_there_is",
    ),
    broken(
        "unweighted costs of rounds",
        "core/ward.py",
        "inverse = w.reciprocal()",
        "inverse = torch.ones_like(w)",
        WARD + "rounds_equal_plain_loops",
    ),
    broken(
        "weights of merged clusters not added",
        "core/ward.py",
        "w = w.scatter_add(1, first, w.gather(1, second))",
        "pass",
        WARD + "greedy_equals_plain_loops_for_every_number_of_clusters",
        WARD + "each_greedy_merge_is_the_cheapest_there_is",
    ),
    broken(
        "a token is its own neighbor",
        "core/density_peaks.py",
        "distance.diagonal(offset=start, dim1=1, dim2=2).fill_(torch.inf)",
        "pass",
        "core/test_density_peaks.py::test_it_equals_plain_loops",
    ),
]

METHODS = [
    broken(
        "ToMe's halves ignore the prefix",
        "methods/tome.py",
        "phase=view.prefix % 2",
        "phase=0",
        "methods/test_tome.py::test_two_steps_give_the_tokens_sizes_and_order_of_the_original",
    ),
    broken(
        "ToMe's own MACs forgotten",
        "methods/tome.py",
        "return sources * targets * step.head_dim",
        "return 0",
        OUTPUTS + "macs_equal_torchs_flop_counter",
    ),
    broken(
        "EViT's fused slot not counted",
        "methods/evit.py",
        "min(current, kept + self.fuse)",
        "min(current, kept)",
        "methods/test_evit.py::test_counts_are_those_of_the_paper",
    ),
    broken(
        "keep rates rounded instead of raised",
        "methods/base.py",
        "math.ceil(rate * current - 1e-9)",
        "round(rate * current)",
        "methods/test_evit.py::test_counts_are_those_of_the_paper",
        "test_schedule.py::test_a_rate_is_rounded_up_and_not_by_the_error_of_floating_point",
    ),
    broken(
        "a draw for every call",
        "core/select.py",
        "keep_topk(counter_uniform(n, seed, stream, device).expand(batch, n), k)",
        "keep_topk(torch.rand(batch, n, device=device), k)",
        OUTPUTS + "an_image_does_not_depend_on_its_batch",
    ),
    broken(
        "medoids pooled instead of selected",
        "methods/token_pooling.py",
        'if self.output == "medoid" and assignment.src is not None:',
        "if False:",
        "methods/test_token_pooling.py::test_medoids_are_patches_of_the_image_as_they_are",
    ),
    broken(
        "K-Means counts one iteration",
        "methods/token_pooling.py",
        "return self.iterations * step.n * step.keep * width",
        "return step.n * step.keep * width",
        "methods/test_token_pooling.py::test_the_macs_are_one_table_of_distances_or_one_product_per_iteration",
    ),
    broken(
        "Ward forgets the class token's attention",
        "methods/ward.py",
        "weight = (weight * view.cls_attn.detach()).sqrt()",
        "pass",
        "methods/test_ward_method.py::test_weights_are_attention_received_times_class_attention_where_there_is_a_class",
    ),
    broken(
        "penalty counted from block 0",
        "methods/power.py",
        "(i + 1) * module.mass()",
        "i * module.mass()",
        "methods/test_power.py::test_the_penalty_counts_later_blocks_more",
    ),
    broken(
        "clamp that stops gradients",
        "methods/power.py",
        "return self.retention + (self.retention.clamp(0, 1) - self.retention).detach()",
        "return self.retention.clamp(0, 1)",
        "methods/test_power.py::test_retention_acts_between_zero_and_one_while_gradients_pass",
    ),
    broken(
        "wrong order in the windows of the convolution",
        "methods/strided_conv.py",
        "return place.transpose(1, 2).reshape(1, -1)",
        "return place.transpose(1, 2).transpose(2, 3).reshape(1, -1)",
        "methods/test_strided_conv.py::test_it_is_a_convolution_of_stride_two",
    ),
    broken(
        "transposed grid of the convolution",
        "methods/strided_conv.py",
        "rows, columns = current_grid(",
        "columns, rows = current_grid(",
        "methods/test_strided_conv.py::test_it_is_a_convolution_of_stride_two",
        "methods/test_strided_conv.py::test_a_model_on_an_image_that_is_not_square_equals_one_with_convolutions",
    ),
    broken(
        "DynamicViT's dropped tokens come back",
        "methods/dynamic_vit.py",
        "decided = drawn * before",
        "decided = drawn",
        "methods/test_dynamic_vit.py::test_a_token_that_is_gone_stays_gone",
    ),
    broken(
        "all tokens may be dropped by chance",
        "methods/dynamic_vit.py",
        "return decided + nothing * torch.zeros_like(decided).scatter(1, likely, 1.0)",
        "return decided",
        "methods/test_dynamic_vit.py::test_decisions_multiply_over_stages_and_leave_one_token_at_least",
        "methods/test_dynamic_vit.py::test_no_image_is_left_without_a_patch",
    ),
    broken(
        "clusters of keys are not carried",
        "methods/cluster_attention.py",
        "return weighted_means(owner, member.shape[1])",
        "return weighted_means(owner * 0, member.shape[1])",
        "methods/test_cluster_attention.py::test_keys_and_values_are_those_of_cluster_means",
    ),
    broken(
        "pooled positions not added",
        "methods/hvt_pool.py",
        ".contiguous() + self.positions(grid)",
        ".contiguous()",
        "methods/test_hvt_pool.py::test_slots_are_maxima_or_means_of_their_windows_plus_positions",
    ),
    broken(
        "pooling in the last block of a stage",
        "methods/hvt_pool.py",
        "if block % (depth // self.stages) == 0:",
        "if block % (depth // self.stages) == depth // self.stages - 1:",
        "methods/test_hvt_pool.py::test_each_stage_begins_with_a_pooling_behind_its_first_block",
    ),
    broken(
        "positions resampled with rows flipped",
        "methods/hvt_pool.py",
        'interpolate(patches, new, mode="bilinear", antialias=True)',
        'interpolate(patches, new, mode="bilinear", antialias=True).flip(2)',
        "methods/test_hvt_pool.py",
    ),
    broken(
        "convolutions counted like maxima",
        "methods/hvt_pool.py",
        "return step.keep * 3**self.pool_dim * step.dim**2",
        "return 0",
        OUTPUTS + "macs_equal_torchs_flop_counter",
    ),
    broken(
        "heads weigh HVT's tokens",
        "methods/hvt_pool.py",
        "heads_weigh_by_size: ClassVar[bool] = False",
        "heads_weigh_by_size: ClassVar[bool] = True",
        "methods/test_hvt_pool.py::test_the_head_averages_tokens_plainly",
    ),
    broken(
        "a model library in the methods",
        "methods/topk.py",
        "from dataclasses import dataclass",
        "from dataclasses import dataclass\n\nimport timm",
        "test_layering.py::test_dependencies_point_one_way",
    ),
]

COST = [
    broken(
        "rising counts allowed",
        "schedule.py",
        "if wanted > current:",
        "if False:",
        "test_schedule.py::test_a_plan_the_model_cannot_follow_is_refused",
    ),
    broken(
        "keys counted on from block to block",
        "schedule.py",
        "current = n if method.site is Site.KV else current  # keys",
        "current = current  # keys",
        "test_schedule.py::test_keys_are_counted_afresh_in_every_block",
    ),
    broken(
        "overhead left out of the MACs",
        "cost.py",
        "total, own = total + work + extra, own + extra",
        "total, own = total + work, own + extra",
        "test_schedule.py::test_macs_are_those_counted_by_hand_overhead_included",
    ),
    broken(
        "every method's MACs forgotten",
        "cost.py",
        "return work, method.macs(step_shape(shape, plan, index))",
        "return work, 0",
        OUTPUTS + "macs_equal_torchs_flop_counter",
        OUTPUTS + "own_macs_are_what_a_method_adds_to_the_free_slice",
    ),
    broken(
        "a budget that adds sites",
        "cost.py",
        "sites = [block for block in range(depth) if plan.acts_in(block)]",
        "sites = list(range(depth))",
        "test_schedule.py::test_no_budget_adds_sites_of_a_token_or_two_to_those_of_the_method",
    ),
    broken(
        "MLP over all incoming tokens",
        "cost.py",
        "through_mlp = prefix + kept if acts and plan.site is Site.POST_ATTN else queries",
        "through_mlp = queries",
        POOLING_TABLE,
        OUTPUTS + "macs_equal_torchs_flop_counter",
    ),
    broken(
        "three iterations of K-Means in the table",
        "tables/token_pooling.py",
        "iterations=4, rescale=False",
        "iterations=3, rescale=False",
        POOLING_TABLE,
    ),
    broken(
        "lists clamped the wrong way",
        "tables/token_pooling.py",
        "return [min(counts[: block + 1]) for block",
        "return [max(counts[block:]) for block",
        POOLING_TABLE,
    ),
    broken(
        "n^2 d charged to PoWER-BERT",
        "tables/token_pooling.py",
        "if not isinstance(method, fv.TokenPooling):\n        return 0",
        "if not isinstance(method, fv.TokenPooling):\n        return step.n**2 * step.dim",
        POOLING_TABLE,
    ),
    broken(
        "no charge where all or no tokens stay",
        "tables/token_pooling.py",
        "for step in steps if step.keep in (0, step.n))",
        "for step in steps if step.keep == -1)",
        POOLING_TABLE,
    ),
    broken(
        "wider tolerance of a printed cell",
        "tables/token_pooling.py",
        'int(self.total.replace(".", "")) * unit) <= unit',
        'int(self.total.replace(".", "")) * unit) <= 3 * unit',
        POOLING_TABLE,
    ),
    broken(
        "predictors of DynamicViT cost nothing",
        "methods/dynamic_vit.py",
        "return step.n * (dim * dim + dim * (dim // 2) + (dim // 2) * (dim // 4) + (dim // 4) * 2)",
        "return 0",
        "tables/test_dynamicvit_table.py",
        OUTPUTS + "macs_equal_torchs_flop_counter",
    ),
]

ADAPTERS = [
    broken(
        "LayerScale skipped in timm's blocks",
        "adapters/timm_blocks.py",
        "else block.ls1(x))",
        "else x)",
        OUTPUTS + "the_engines_pieces_make_up_the_whole_block",
    ),
    broken(
        "output gate skipped",
        "adapters/timm_blocks.py",
        'if getattr(attn, "gate", None) is not None:',
        "if False:",
        OUTPUTS + "the_engines_pieces_make_up_the_whole_block",
    ),
    broken(
        "LayerScale skipped in DINOv2's blocks",
        "adapters/hf_blocks.py",
        "return block.drop_path((block.layer_scale1 if half == 1 else block.layer_scale2)(update))",
        "return block.drop_path(update)",
        OUTPUTS + "the_engines_pieces_make_up_the_whole_block",
    ),
    broken(
        "blocks always run in pieces",
        "adapters/engine.py",
        "        if stream.bias is None:",
        "        if False:",
        OUTPUTS + "an_empty_schedule_changes_nothing",
    ),
    broken(
        "mean pooling ignores sizes",
        "adapters/heads.py",
        "    if size is None:\n        return tokens.mean(dim=1)",
        "    if True:\n        return tokens.mean(dim=1)",
        HEADS + "a_merged_token_counts_as_often_as_its_patches",
    ),
    broken(
        "attention pooling ignores sizes",
        "adapters/timm_vit.py",
        "bias = None if size is None else log_size_bias(size, prefix, tokens.dtype)",
        "bias = None",
        HEADS + "a_merged_token_counts_as_often_as_its_patches",
    ),
    broken(
        "SigLIP's pooling ignores sizes",
        "adapters/hf_heads.py",
        "    if size is None:\n        return head(tokens)",
        "    if True:\n        return head(tokens)",
        HEADS + "a_merged_token_counts_as_often_as_its_patches",
    ),
    broken(
        "registers are charged to attention pooling that skips them",
        "adapters/timm_vit.py",
        "prefix_read = 0 if model.attn_pool is not None and not model.pool_include_prefix else self.num_prefix(model)",
        "prefix_read = self.num_prefix(model)",
        OUTPUTS + "macs_of_the_unreduced_model_equal_torchs_flop_counter",
    ),
    broken(
        "prefix tokens moved",
        "core/assignment.py",
        "torch.cat([_flat(_range(prefix, b, x.device), n), index], dim=1)",
        "torch.cat([_flat(_range(prefix, b, x.device).flip(1), n), index], dim=1)",
        OUTPUTS + "prefix_tokens_are_untouched_by_the_reduction",
    ),
    broken(
        "the stream left on the model",
        "adapters/engine.py",
        "    encoded = Encoded(tokens, output.stream, tuple(blocks))",
        "    encoded = model._left = Encoded(tokens, output.stream, tuple(blocks))",
        TRAVEL + "a_forward_pass_leaves_nothing_on_the_model",
    ),
    broken(
        "restore_ forgets the class",
        "api.py",
        "    model.__class__ = model._foveate_base",
        "    pass",
        TRAVEL + "restore_gives_the_model_back_bit_for_bit",
    ),
    broken(
        "reduced models do not say how they are pickled",
        "adapters/base.py",
        "def __reduce_ex__(self, protocol: Any)",
        "def _reduce_ex(self, protocol: Any)",
        TRAVEL + "copies_pickles_and_saves_give_the_same_outputs",
    ),
    broken(
        "activation checkpointing ignored",
        "adapters/engine.py",
        "recompute = adapter.checkpointing(model) and model.training",
        "recompute = False",
        TRAVEL + "activation_checkpointing_gives_the_same_gradients",
    ),
    broken(
        "the exact last block attends to prefix tokens only",
        "adapters/engine.py",
        "sources = stream._replace(tokens=normed)",
        "sources = Stream(normed[:, : self.prefix])",
        TRAVEL + "the_exact_last_block_saves_work_and_changes_nothing",
    ),
    broken(
        "the exact last block forgets to reduce keys",
        "adapters/engine.py",
        "            sources, key_step = self._reduce(Stream(normed), {}, index)",
        "            pass",
        TRAVEL + "the_exact_last_block_agrees_with_the_full_one_for_every_site",
    ),
    broken(
        "dropped patches get zeros",
        "adapters/dense.py",
        "fill=step.before",
        "fill=None",
        TIMM + "dropped_patches_keep_the_features_they_had_when_they_were_dropped",
    ),
    broken(
        "NaN leads to an index out of range",
        "core/density_peaks.py",
        "owner = owner.clamp_min(0)",
        "pass",
        OUTPUTS + "a_nan_in_one_image_stays_in_that_image",
    ),
    broken(
        "a branch on a value in a traced method",
        "methods/tome.py",
        "metric = view.keys.sum(dim=1)  #",
        "metric = view.keys.sum(dim=1) if view.keys.sum() < 1e9 else view.keys.mean(dim=1)  #",
        TRAVEL + "torch_compile_traces_the_whole_graph",
        only="tome",
    ),
    broken(
        "an export is bound to the batch it was made with",
        "methods/strided_conv.py",
        "windows = self._windows(view).expand(view.tokens.shape[0], -1)",
        "windows = self._windows(view).expand(int(view.tokens.shape[0]) * 1 or 3, -1).expand(3, -1)",
        TRAVEL + "torch_export_gives_the_eager_result_for_any_batch",
        only="strided",
    ),
    broken(
        "state shared by threads",
        "adapters/engine.py",
        "        view = self._view(stream, scores, index)",
        "        self.method.__dict__['_now'] = self._view(stream, scores, index)\n"
        "        __import__('time').sleep(0.001)\n        view = self.method.__dict__['_now']",
        TRAVEL + "eight_threads_sharing_one_model_get_the_single_thread_result",
    ),
    broken(
        "unknown attention accepted",
        "adapters/timm_vit.py",
        "if type(block.attn).forward is not Attention.forward:",
        "if False:",
        "adapters/test_refused_models.py::test_variants_without_a_meaning_for_reduced_tokens_are_refused",
    ),
    broken(
        "a model may be reduced twice",
        "api.py",
        "    if isinstance(model, Reduced):",
        "    if False:",
        "test_api.py::test_reducing_twice_says_how_to_restore",
    ),
    broken(
        "queries of any length under unit_qk",
        "adapters/unit_qk.py",
        "return _unit(q) * (",
        "return q * (",
        UNIT + "attention_compares_directions_alone",
    ),
    broken(
        "keys of any length under unit_qk",
        "adapters/unit_qk.py",
        "return _unit(k), v",
        "return k, v",
        UNIT + "it_goes_with_a_reduction_and_every_scale_learns",
        UNIT + "the_exact_last_block_is_exact_with_unit_heads_too",
        UNIT + "attention_compares_directions_alone",
    ),
    broken(
        "the learned scale starts at the head width",
        "adapters/unit_qk.py",
        "block.head_dim**0.5",
        "block.head_dim**1.0",
        UNIT + "the_learned_scale_starts_at_the_root_of_the_head_width_and_is_one_per_block",
    ),
    broken(
        "learned modules kept in a pruned model",
        "adapters/timm_vit.py",
        "            del self.foveate.learned[str(block)]",
        "            pass",
        TIMM + "pruning_leaves_the_first_blocks_as_they_were",
        "models/test_hvt_models.py",
    ),
    broken(
        "another patch size without its cost",
        "adapters/timm_vit.py",
        "shape = replace(shape, stem_macs_per_patch=stem_macs_of_patches(self, ph, pw))",
        "pass",
        TIMM + "patches_of_another_size_cost_what_they_cost_in_a_new_model",
    ),
]

FILES_AND_PICTURES = [
    broken(
        "manifest written before the weights",
        "storage.py",
        "    write_tensors(weights, tensors)  # before the manifest that names them\n"
        "    write_text(folder / MANIFEST, json.dumps(manifest, indent=2))",
        "    write_text(folder / MANIFEST, json.dumps(manifest, indent=2))\n    write_tensors(weights, tensors)",
        "test_storage.py::test_a_crash_while_saving_leaves_the_old_model",
    ),
    broken(
        "unit_qk not saved",
        "storage.py",
        '"unit_qk": reduction.unit_qk,',
        "",
        UNIT + "saving_keeps_it",
    ),
    broken(
        "middle level of the pyramid zeroed",
        "models/pyramid.py",
        "maps[level] = self._map(tokens, steps, grid)",
        "maps[level] = self._map(tokens, steps, grid) * (level != 1)",
        HVT + "every_level_is_the_stream_before_its_pooling",
    ),
    broken(
        "learned modules kept in a pruned pyramid",
        "models/pyramid.py",
        "            del reduction.learned[str(block)]",
        "            pass",
        HVT + "what_no_level_reads_is_left_out",
        HVT + "a_pyramid_has_no_parameter_without_a_gradient",
    ),
    broken(
        "the class token goes without its position",
        "adapters/class_token.py",
        "positions.data[:, 1:].clone()",
        "positions.data[:, :-1].clone()",
        "models/test_deit_to_hvt.py",
    ),
    broken(
        "main directions not centered",
        "report/pictures/features.py",
        "torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)",
        "torch.linalg.svd(flat, full_matrices=False)",
        "report/test_feature_picture.py",
    ),
    broken(
        "main directions black",
        "report/pictures/features.py",
        "rescaled(value) * 255",
        "rescaled(value)",
        "report/test_feature_picture.py",
    ),
    broken(
        "pictures not written atomically",
        "cli/show.py",
        "        image.save(temporary)\n        temporary.replace(target)",
        "        image.save(target)",
        "report/test_show_command.py",
    ),
]

TRAINING = [
    broken(
        "the best distillation has the most loss",
        "train/distill.py",
        "    sign = -1",
        "    sign = 1",
        LOOP + "the_best_distillation_is_the_one_with_the_least_loss",
    ),
    broken(
        "an edge of weight zero taken for a patch",
        "train/distill.py",
        "there = (weight != 0).long()",
        "there = torch.ones_like(weight).long()",
        "train/test_distill.py::test_a_slot_nothing_leads_to_is_no_single_patch",
    ),
    broken(
        "losses summed over the parts of a batch",
        "train/loop.py",
        "+ loss.detach() / parts",
        "+ loss.detach()",
        LOOP + "losses_are_means_however_a_batch_is_divided",
    ),
    broken(
        "gradients summed over the parts of a batch",
        "train/loop.py",
        "self.accelerator.backward(torch.stack(list(losses.values())).sum() / parts)",
        "self.accelerator.backward(torch.stack(list(losses.values())).sum())",
        LOOP + "a_batch_in_parts_is_the_same_batch",
    ),
    broken(
        "no restoring before another reduction",
        "train/build.py",
        "        fv.restore_(model)",
        "        pass",
        LOOP + "a_reduced_model_can_be_reduced_otherwise_or_not_at_all",
    ),
    broken(
        "the warm-up's full model kept as best",
        "train/loop.py",
        "if self._warms_up() and self._now().epoch < section.warmup_start + section.warmup_epochs:",
        "if False:",
        LOOP + "the_best_model_has_the_tokens_it_is_to_have",
    ),
    broken(
        "keep rate not set after a resume",
        "train/loop.py",
        "        self._set_keep_rate(self._now())\n        return True",
        "        return True",
        LOOP + "a_run_goes_on_within_the_warm_up",
    ),
    broken(
        "mixup without our label smoothing",
        "train/augmentation.py",
        "label_smoothing=config.objective.smoothing,",
        "",
        LOOP + "mixed_labels_are_smoothed",
    ),
    broken(
        "the teacher sees the student's colors",
        "train/distill.py",
        "images = theirs.normalise(ours.pixels(images))",
        "pass",
        "train/test_distill.py::test_the_teacher_sees_its_own_colours",
    ),
]

BREAKS = [*CORE, *METHODS, *COST, *ADAPTERS, *FILES_AND_PICTURES, *TRAINING]
