"""Every draft, by chapter."""

from collections.abc import Iterator
from importlib import import_module

from conformance.vectors.generate.draft import Draft

CHAPTERS = """
    example attention mask causal heads projection cache nonfinite numerics sizes independence pairs
    paths tiled coverage_gaps interactions segments digits memory alike reports gradients
    gradient_coverage_gaps gradient_interactions gradient_tiles gradient_lse layer_gradients kernels
    kernel_sizes kernel_numbers kernel_interactions serving_latent serving_sizes serving_packed
    serving_paged validation
""".split()  # noqa: SIM905 - words are read more easily without quotes
"""The modules of this folder that declare cases, in the order of the vectors."""


def drafts() -> Iterator[Draft]:
    """Every declared case.

    Raises:
        ValueError: two cases have one ID.
    """
    seen = set()
    for chapter in CHAPTERS:
        for draft in import_module(f"{__name__}.{chapter}").drafts():
            if draft.id in seen:
                raise ValueError(f"two cases are called {draft.id}")
            seen.add(draft.id)
            yield draft
