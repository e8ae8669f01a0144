"""Every planted defect, by kind."""

from conformance.defects.bank import (
    bias,
    blocked,
    cache,
    causal,
    grad_blocks,
    grad_formulas,
    grad_layer,
    grad_masks,
    grad_sums,
    heads,
    hidden,
    independence,
    lengths,
    loops,
    lse,
    masks,
    mixups,
    nonfinite,
    precision,
    projections,
    scale,
    sinks,
    softcap,
    softmax,
    splits,
    tiles,
    validation,
    weights,
    window,
)
from conformance.defects.defect import Defect

BANK: dict[str, tuple[Defect, ...]] = {
    module.__name__.rpartition(".")[2]: module.DEFECTS
    for module in (
        scale,
        softmax,
        softcap,
        bias,
        sinks,
        masks,
        hidden,
        causal,
        window,
        lengths,
        heads,
        projections,
        cache,
        weights,
        lse,
        nonfinite,
        precision,
        tiles,
        loops,
        splits,
        blocked,
        independence,
        mixups,
        grad_formulas,
        grad_masks,
        grad_sums,
        grad_blocks,
        grad_layer,
        validation,
    )
}
"""Kind -> defects."""

DEFECTS: tuple[Defect, ...] = tuple(defect for defects in BANK.values() for defect in defects)
