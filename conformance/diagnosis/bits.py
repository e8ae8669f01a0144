"""Bits that it takes to say which of several are meant."""

from typing import Any

import numpy as np

from conformance.vectors.case import Array


def bits_to_say(some: Any, of: Any) -> Array:
    """What it takes to say which `some` of `of` rows they are, elementwise; both may be weights."""
    share = np.clip(np.asarray(some) / np.maximum(of, 1e-9), 0, 1)
    with np.errstate(all="ignore"):
        entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return np.asarray(of) * np.nan_to_num(entropy)
