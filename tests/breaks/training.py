"""Breaks of ``training/``."""

from __future__ import annotations

from .entry import DISTILL, LOOP, Break, broken

BREAKS: list[Break] = [
    broken(
        "the best distillation has the most loss",
        "training/distill.py",
        'monitor, mode = "loss", "min"',
        'monitor, mode = "loss", "max"',
        LOOP + "the_best_distillation_is_the_one_with_the_least_loss",
    ),
    broken(
        "padding taken for a patch",
        "training/distill.py",
        "there = present.long()",
        "there = torch.ones_like(src)",
        DISTILL + "a_slot_nothing_leads_to_is_no_single_patch",
    ),
    broken(
        "losses summed over the parts of a batch",
        "training/loop.py",
        "+ loss.detach() / parts",
        "+ loss.detach()",
        LOOP + "losses_are_means_however_a_batch_is_divided",
    ),
    broken(
        "gradients summed over the parts of a batch",
        "training/loop.py",
        "self.accelerator.backward(torch.stack(list(losses.values())).sum() / parts)",
        "self.accelerator.backward(torch.stack(list(losses.values())).sum())",
        LOOP + "a_batch_in_parts_is_the_same_batch",
    ),
    broken(
        "no restoring before another reduction",
        "training/build.py",
        "        fv.restore_(model)",
        "        pass",
        LOOP + "a_reduced_model_can_be_reduced_otherwise_or_not_at_all",
    ),
    broken(
        "the warm-up's full model kept as best",
        "training/loop.py",
        "if self._warms_up() and self._now().epoch < section.warmup_start + section.warmup_epochs:",
        "if False:",
        LOOP + "the_best_model_has_the_tokens_it_is_to_have",
    ),
    broken(
        "keep rate not set after a resume",
        "training/loop.py",
        "        self._set_keep_rate(self._now())\n        return True",
        "        return True",
        LOOP + "a_run_goes_on_within_the_warm_up",
    ),
    broken(
        "mixup without our label smoothing",
        "tasks/augmentation.py",
        "label_smoothing=smoothing,",
        "",
        LOOP + "mixed_labels_are_smoothed",
    ),
    broken(
        "the teacher sees the student's colors",
        "training/distill.py",
        "images = theirs.normalize(ours.pixels(images))",
        "pass",
        DISTILL + "the_teacher_sees_its_own_colors",
    ),
    broken(
        "less of the monitored metric is better",
        "training/objectives.py",
        'value > best if self.mode == "max" else value < best',
        'value < best if self.mode == "max" else value > best',
        LOOP + "the_best_distillation_is_the_one_with_the_least_loss",
        LOOP + "it_learns_and_writes_what_it_did",
    ),
    broken(
        "a resumed run loses its moving average",
        "training/checkpoint.py",
        "if module is not None:",
        'if what == "model":',
        LOOP + "a_stopped_run_goes_on_exactly",
    ),
    broken(
        "a resumed run loses the state of its optimizer",
        "training/checkpoint.py",
        'optimizer.load_state_dict(join_optimizer(found.tensors.get("optimizer", {}), found.values["optimizer"]))',
        "pass",
        LOOP + "a_stopped_run_goes_on_exactly",
    ),
    broken(
        "the model is evaluated instead of its moving average",
        "training/loop.py",
        "model = self.objective.model if self.ema is None else self.ema.module",
        "model = self.objective.model",
        LOOP + "the_moving_average_is_what_is_evaluated_and_kept",
    ),
    broken(
        "a checkpoint of another model is loaded",
        "training/checkpoint.py",
        "    if wrong or set(tensors) - set(own):",
        "    if False:",
        LOOP + "a_checkpoint_of_another_model_is_refused",
    ),
    broken(
        "a recipe's unit_qk is ignored",
        "training/build.py",
        "method, schedule, section.exact_last_block, unit_qk, section.output",
        "method, schedule, section.exact_last_block, None, section.output",
        "training/test_run_parts.py::test_a_recipe_asks_for_every_part_of_a_reduction",
    ),
    broken(
        "a checkpoint with weights that are not finite",
        "training/loop.py",
        "        if self.layout.any(not self.layout.finite(self.objective)):",
        "        if False:",
        "training/test_run_parts.py::test_half_precision_does_not_excuse_weights_that_are_none",
        LOOP + "no_checkpoint_is_written_over_a_good_one_once_the_loss_is_no_number",
    ),
]
