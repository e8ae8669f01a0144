"""Exact entropies, in bits, of variables that take finitely many equally likely joint values."""

from collections import Counter
from math import log2

import numpy as np


def symbol(array):
    """An array as something that can be counted."""
    return tuple(np.round(np.asarray(array, np.float64).ravel(), 9) + 0.0)


def entropy(symbols):
    counts = Counter(symbols).values()
    total = sum(counts)
    return -sum(count / total * log2(count / total) for count in counts)


def mutual(xs, ys):
    return entropy(xs) + entropy(ys) - entropy(list(zip(xs, ys, strict=True)))
