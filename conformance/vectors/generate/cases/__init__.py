"""Every draft, by chapter."""

from collections.abc import Iterator

from conformance.vectors.generate.cases import (
    alike,
    attention,
    beside,
    cache,
    causal,
    digits,
    edges,
    example,
    gradient_beside,
    gradient_edges,
    gradient_lse,
    gradient_tiles,
    gradients,
    heads,
    independence,
    kernel_beside,
    kernel_numbers,
    kernel_sizes,
    kernels,
    layer_gradients,
    mask,
    memory,
    nonfinite,
    numerics,
    pairs,
    paths,
    projection,
    reports,
    segments,
    serving_latent,
    serving_packed,
    serving_paged,
    serving_sizes,
    sizes,
    tiled,
    validation,
)
from conformance.vectors.generate.draft import Draft

_CHAPTERS = (
    example,
    attention,
    mask,
    causal,
    heads,
    projection,
    cache,
    nonfinite,
    numerics,
    sizes,
    independence,
    pairs,
    paths,
    tiled,
    edges,
    beside,
    segments,
    digits,
    memory,
    alike,
    reports,
    gradients,
    gradient_edges,
    gradient_beside,
    gradient_tiles,
    gradient_lse,
    layer_gradients,
    kernels,
    kernel_sizes,
    kernel_numbers,
    kernel_beside,
    serving_latent,
    serving_sizes,
    serving_packed,
    serving_paged,
    validation,
)


def drafts() -> Iterator[Draft]:
    """Every declared case.

    Raises:
        ValueError: two cases have one ID.
    """
    seen = set()
    for chapter in _CHAPTERS:
        for draft in chapter.drafts():
            if draft.id in seen:
                raise ValueError(f"two cases are called {draft.id}")
            seen.add(draft.id)
            yield draft
