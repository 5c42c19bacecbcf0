"""Breaks of families with tokens behind the patches, with queries, and with patches of many grids."""

from __future__ import annotations

from .entry import BACKBONES, SYSTEMS, TOWERS, Break, broken

YOLOS, EOMT = "adapters/test_hf_yolos.py::test_", "adapters/test_hf_eomt.py::test_"
NAFLEX = "adapters/test_towers.py::test_"

BREAKS: list[Break] = [
    broken(
        "detection tokens stay where they are",
        "adapters/hf_yolos.py",
        "return torch.cat([tokens[..., :1, :], tokens[..., end:, :], tokens[..., 1:end, :]], dim=-2)",
        "return tokens",
        YOLOS + "tokens_that_all_stay_give_what_the_model_gives",
    ),
    broken(
        "positions between blocks are those of the first patches, not of the tokens that are left",
        "adapters/hf_yolos.py",
        "return torch.cat([front, table[0, self.prefix :][index]], dim=1)",
        "return table[:, : self.prefix + index.shape[1]]",
        YOLOS + "a_selection_adds_the_positions_of_its_own_patches",
    ),
    broken(
        "positions between blocks are not added in a reduced model",
        "adapters/engine.py",
        "stream = stream._replace(tokens=self.pieces[index].entered(stream.tokens, _rows(stream, index)))",
        "pass",
        YOLOS + "a_selection_adds_the_positions_of_its_own_patches",
    ),
    broken(
        "queries attend to all patches",
        "adapters/hf_eomt.py",
        "mask = self._attention_mask(found[-1][0], tokens, chance)",
        "mask = None",
        EOMT + "queries_meet_every_patch",
    ),
    broken(
        "the cost of predictions between blocks is left out",
        "adapters/hf_eomt.py",
        "return total + (1 + masked) * self._prediction_macs(patches)",
        "return total + self._prediction_macs(patches)",
        EOMT + "costs_are_exact",
    ),
    broken(
        "Qwen2-VL's patches are merged before the last block's features",
        "adapters/hf_qwen.py",
        'found["pooler_output"] = model.merger(found["last_hidden_state"])',
        'found["pooler_output"] = model.merger(groups[0].encoded.embedded.flatten(0, 1))',
        TOWERS + "what_is_merged_behind_the_tower_is_the_grid",
    ),
    broken(
        "padding of a NaFlex batch is kept",
        "adapters/timm_naflex.py",
        "shown = torch.ones_like(places[..., 0], dtype=torch.bool) if valid is None else valid.bool()",
        "shown = torch.ones_like(places[..., 0], dtype=torch.bool)",
        NAFLEX + "patches_of_many_grids_run_in_one_batch",
    ),
    broken(
        "patches of a NaFlex batch are taken in the order they come in",
        "adapters/timm_naflex.py",
        "cut = own[seen][order]",
        "cut = own[seen]",
        NAFLEX + "patches_of_many_grids_run_in_one_batch",
    ),
    broken(
        "a copy of a system shares its reduced encoder",
        "adapters/registry.py",
        "return copy_root(model, inspect(model).path)",
        "return copy_root(model)",
        SYSTEMS + "a_copy_of_a_system_is_reduced_and_restored_apart",
    ),
    broken(
        "images of a ragged batch come back in the order of their sizes",
        "adapters/ragged.py",
        "return [one for _, one in sorted(numbered, key=lambda pair: pair[0])]",
        "return [one for _, one in numbered]",
        TOWERS + "images_taken_apart_and_put_together_give_what_the_tower_gives",
    ),
    broken(
        "Qwen's patches are merged row by row",
        "adapters/hf_qwen.py",
        "return number.transpose(1, 2).flatten()",
        "return number.flatten()",
        TOWERS + "images_taken_apart_and_put_together_give_what_the_tower_gives",
    ),
    broken(
        "a mask that hides an image is taken",
        "adapters/hf_towers.py",
        "        if not shown:",
        "        if False:",
        TOWERS + "masks_that_hide_all_or_no_rectangle_are_refused",
    ),
    broken(
        "a backbone's maps hold only the tokens that are left",
        "adapters/hf_vit.py",
        'return "grid" if self.variant.maps else None',
        "return None",
        BACKBONES + "maps_have_every_patch",
    ),
]
