"""Every planted defect, by kind."""

from importlib import import_module

from conformance.defects.defect import Defect

KINDS = """
    scale softmax softcap bias sinks masks masked_logits causal window lengths segments heads
    projections cache weights lse nonfinite precision digits tiles online_softmax split_keys block_masks
    tile_masks kernels kernel_paths kernel_layers whole_tiles independence strides swapped reshapes
    conventions cache_layouts packed page_tables page_writes merges serving_sizes loop_state
    interactions grad_formulas grad_masks grad_reductions grad_blocks grad_partial_blocks grad_tiles
    grad_recomputed grad_layer grad_scaling grad_formula_terms grad_projection_tokens grad_visibility
    grad_ranges grad_interactions grad_own grad_lse validation
""".split()  # noqa: SIM905 - words are read more easily without quotes
"""The modules of this folder that plant defects, in the order in which they are listed."""

BANK: dict[str, tuple[Defect, ...]] = {kind: import_module(f"{__name__}.{kind}").DEFECTS for kind in KINDS}
"""Kind -> defects."""

DEFECTS: tuple[Defect, ...] = tuple(defect for defects in BANK.values() for defect in defects)
