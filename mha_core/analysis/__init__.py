"""What teaching texts measure of heads, exact counts, and the pruning of heads.

The formulas are those of the documents that `spec/documents.md` sets against the standard; each function names
the statement and what became of it, for several do not measure what they are said to.
"""

from mha_core.analysis.counts import Counts, count_layer
from mha_core.analysis.outputs import correlation, importance, rank, redundancy, variance
from mha_core.analysis.pruning import head_importance, prune_heads, silent_heads
from mha_core.analysis.spans import cosine, coverage, diversity, subspace_angles
from mha_core.analysis.weights import entropy

__all__ = [
    "Counts",
    "correlation",
    "cosine",
    "count_layer",
    "coverage",
    "diversity",
    "entropy",
    "head_importance",
    "importance",
    "prune_heads",
    "rank",
    "redundancy",
    "silent_heads",
    "subspace_angles",
    "variance",
]
