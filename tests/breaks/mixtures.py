"""Breaks of mixtures: of the method itself, and of where others ask it about a block."""

from __future__ import annotations

from .entry import Break, broken

MIXTURE = "methods/test_mixture.py::test_"

BREAKS: list[Break] = [
    broken(
        "the second method begins a block late",
        "methods/mixture.py",
        "index < self.switch",
        "index <= self.switch",
        MIXTURE + "each_block_has_its_method_and_sizes_pass_from_one_to_the_other",
        MIXTURE + "its_own_cost_is_that_of_each_method_in_its_blocks",
    ),
    broken(
        "log(size) ends with the method that began it",
        "adapters/engine.py",
        "(method.proportional_attention or stream.bias is not None)",
        "method.proportional_attention",
        MIXTURE + "each_block_has_its_method_and_sizes_pass_from_one_to_the_other",
    ),
    broken(
        "sizes tracked for the first method only",
        "methods/mixture.py",
        "self.first.uses_size or self.then.uses_size",
        "self.first.uses_size",
        MIXTURE + "each_block_has_its_method_and_sizes_pass_from_one_to_the_other",
    ),
    broken(
        "the first method everywhere",
        "methods/mixture.py",
        "return self.first if index < self.switch else self.then",
        "return self.first",
        MIXTURE + "a_step_is_as_small_as_the_method_of_its_block_allows",
        MIXTURE + "its_own_cost_is_that_of_each_method_in_its_blocks",
    ),
    broken(
        "a mixture tracks no sizes",
        "methods/mixture.py",
        "return self.first.uses_size or self.then.uses_size",
        "return False",
        MIXTURE + "two_equal_halves_are_the_method_itself",
    ),
    broken(
        "steps as large as either method allows",
        "schedules.py",
        "_check_step(self, method.in_block(block, depth), block, current, wanted[block])",
        "_check_step(self, method, block, current, wanted[block])",
        MIXTURE + "a_step_is_as_small_as_the_method_of_its_block_allows",
    ),
    broken(
        "a budget's blocks by the second method",
        "methods/mixture.py",
        '"kind": self.first.kind',
        '"kind": self.then.kind',
        MIXTURE + "a_budget_is_met_in_blocks_like_those_of_the_first_method",
    ),
    broken(
        "blocks of a range counted from its own first",
        "methods/mixture.py",
        "switch=self.switch - first",
        "switch=self.switch",
        MIXTURE + "blocks_that_are_merged_and_unmerged_keep_their_method",
    ),
    broken(
        "the range before the switch goes to the second method",
        "methods/mixture.py",
        "return self.then if self.switch <= first else self.first",
        "return self.then",
        MIXTURE + "blocks_that_are_merged_and_unmerged_keep_their_method",
    ),
    broken(
        "blind cuts at the first method's site only",
        "methods/mixture.py",
        "then=speed_limit_of(self.then)",
        "then=speed_limit_of(self.first)",
        MIXTURE + "the_limit_of_its_speed_cuts_at_both_sites",
    ),
    broken(
        "commas in parentheses divide options",
        "methods/options.py",
        'if letter == "," and depth == 0:',
        'if letter == ",":',
        MIXTURE + "every_written_form_reads_back",
    ),
    broken(
        "code without the names of the parts",
        "reductions.py",
        "return method_code(value) if isinstance(value, Method) else repr",
        "return repr",
        MIXTURE + "every_written_form_reads_back",
    ),
    broken(
        "files without options at their default",
        "methods/options.py",
        "[(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)])",
        "changed_options(value))",
        MIXTURE + "its_text_names_both_parts_and_files_all_their_options",
    ),
    broken(
        "a mixture inside a mixture",
        "methods/mixture.py",
        "if isinstance(method, Mixture):",
        "if False:",
        MIXTURE + "what_cannot_be_mixed_is_refused_with_the_reason",
    ),
    broken(
        "a class taken for a method",
        "methods/mixture.py",
        "if not isinstance(part, Method):",
        "if not callable(getattr(part, 'assign', None)):",
        MIXTURE + "a_class_instead_of_a_method_is_refused",
    ),
    broken(
        "a second method that never acts",
        "methods/mixture.py",
        "if self.switch >= depth:",
        "if False:",
        MIXTURE + "a_switch_behind_the_last_block_is_refused_and_the_model_stays",
    ),
    broken(
        "a part without its class token",
        "adapters/registry.py",
        "[part for part in parts if part.needs_class_token]",
        "[part for part in parts[:1] if part.needs_class_token]",
        MIXTURE + "a_part_that_needs_a_class_token_is_named",
    ),
    broken(
        "costs of removing asked of no method",
        "costs.py",
        "if type(method).removal_costs is Method.removal_costs:",
        "if method is None:",
        MIXTURE + "images_with_counts_of_their_own_are_refused",
    ),
    broken(
        "a stored part is not read",
        "methods/mixture.py",
        "parse(given) if isinstance(given, str) else given",
        "ToMe() if isinstance(given, str) else given",
        MIXTURE + "it_is_saved_and_loaded",
        MIXTURE + "every_written_form_reads_back",
    ),
]
