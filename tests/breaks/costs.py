"""Breaks of schedules, costs and the papers' tables."""

from __future__ import annotations

from .entry import OUTPUTS, POOLING_TABLE, SCHEDULES, Break, broken

BREAKS: list[Break] = [
    broken(
        "rising counts allowed",
        "schedules.py",
        "if wanted > current:",
        "if False:",
        SCHEDULES + "a_plan_the_model_cannot_follow_is_refused",
    ),
    broken(
        "keys counted on from block to block",
        "schedules.py",
        "current = n if method.site is Site.KV else current  # every",
        "current = current  # every",
        SCHEDULES + "keys_are_counted_afresh_in_every_block",
    ),
    broken(
        "overhead left out of the MACs",
        "costs.py",
        "total, own = total + work + extra, own + extra",
        "total, own = total + work, own + extra",
        SCHEDULES + "macs_are_those_counted_by_hand_overhead_included",
    ),
    broken(
        "every method's MACs forgotten",
        "costs.py",
        "return work, method.in_block(index, shape.depth).macs(step_shape(shape, plan, index))",
        "return work, 0",
        OUTPUTS + "macs_equal_torchs_flop_counter",
        OUTPUTS + "own_macs_are_what_a_method_adds_to_the_free_slice",
    ),
    broken(
        "a budget that adds sites",
        "plans.py",
        "sites = [block for block in range(end) if plan.acts_in(block)]",
        "sites = list(range(end))",
        SCHEDULES + "a_budget_may_name_its_blocks",
    ),
    broken(
        "MLP over all incoming tokens",
        "costs.py",
        "through_mlp = prefix + kept if acts and site is Site.POST_ATTN else queries",
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
        "for step in steps_of(model) if step.keep in (0, step.n)]",
        "for step in steps_of(model) if step.keep == -1]",
        POOLING_TABLE,
    ),
    broken(
        "wider tolerance of a printed cell",
        "tables/figures.py",
        'int(self.printed.replace(".", "")) * self.unit) <= self.unit',
        'int(self.printed.replace(".", "")) * self.unit) <= 3 * self.unit',
        "tables/test_figures.py::test_a_figure_is_compared_to_its_own_digits",
    ),
    broken(
        "predictors of DynamicViT cost nothing",
        "methods/dynamic_vit.py",
        "return step.n * (dim * dim + dim * (dim // 2) + (dim // 2) * (dim // 4) + (dim // 4) * 2)",
        "return 0",
        "tables/test_dynamicvit_table.py",
        OUTPUTS + "macs_equal_torchs_flop_counter",
    ),
    broken(
        "default schedules that begin where they always did",
        "methods/base.py",
        "power = max(0.0, early + min(done - early, behind) - max(0.0, steps - worth)) + beyond * early / stronger",
        "power = done * worth / steps",
        "methods/test_spread.py::test_smaller_budgets_begin_earlier",
    ),
    broken(
        "a tuning that keeps its last weights",
        "tuning/recovering.py",
        "if judged.divergence < self.best.divergence and judged.quality >= least:",
        "if True:",
        "tuning/test_recover.py::test_a_tuning_that_harms_ends_where_it_began",
    ),
]
