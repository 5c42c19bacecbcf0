"""Breaks of positions that travel with tokens, and of the families that read them."""

from __future__ import annotations

from .entry import OUTPUTS, Break, broken

POSITIONS = "contract/test_positions.py::test_"
SELECTION = POSITIONS + "a_selection_equals_the_whole_grid_with_the_other_tokens_hidden"

BREAKS: list[Break] = [
    broken(
        "a second reduction forgets where tokens were after the first",
        "adapters/positions.py",
        "index=chosen if self.index is None else self.index.gather(1, chosen)",
        "index=chosen",
        SELECTION,
    ),
    broken(
        "all images of a batch get the positions of the first",
        "adapters/rotary.py",
        "return table[index].unsqueeze(1)",
        "return table[index[:1]].unsqueeze(1)",
        SELECTION,
    ),
    broken(
        "between patches only rows count",
        "adapters/rotary.py",
        "turn = behind[..., 0] * down + behind[..., 1] * right",
        "turn = behind[..., 0] * down",
        POSITIONS + "angles_between_patches_are_those_of_the_librarys_own_formula",
    ),
    broken(
        "queries and keys of a relative bias are swapped",
        "adapters/pair_bias.py",
        "pairs = q.unsqueeze(2) * tokens + k.unsqueeze(1)",
        "pairs = q.unsqueeze(2) + k.unsqueeze(1) * tokens",
        SELECTION,
    ),
    broken(
        "the bias of a class token's pairs is that of the next",
        "core/scores.py",
        "bias[:, :, :1]  #",
        "bias[:, :, -1:]  #",
        "core/test_attention.py::test_class_row_is_the_first_row_averaged_over_heads",
    ),
    broken(
        "the MLP beside attention costs nothing",
        "adapters/timm_parallel.py",
        "dim * hidden + out, 0)",
        "out, 0)",
        OUTPUTS + "macs_of_the_unreduced_model_equal_torchs_flop_counter",
    ),
    broken(
        "the MLP beside attention has no bias",
        "adapters/timm_parallel.py",
        "mlp if block.mlp_bias is None else mlp + block.mlp_bias",
        "mlp",
        OUTPUTS + "the_engines_pieces_make_up_the_whole_block",
    ),
    broken(
        "keys that heads share are repeated in another order",
        "adapters/timm_blocks.py",
        "(k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1))",
        "(k.repeat(1, times, 1, 1), v.repeat_interleave(times, dim=1))",
        OUTPUTS + "the_engines_pieces_make_up_the_whole_block",
    ),
]
