"""Which recipes can be a call."""

from conformance.exploring.counts import lengths, queries
from conformance.exploring.laid import rows_written
from conformance.exploring.recipe import Recipe
from conformance.names import APPEND, DTYPES, LATENT, MERGE, PACKED, PAGED


def valid(r: Recipe) -> bool:
    """Whether a recipe can be a call: heads that divide, a past that is part of the keys."""
    if (
        r.groups < 1
        or r.heads % r.groups
        or min(r.d_k, r.d_v) < 1
        or not 0 <= r.past <= r.kv_len
        or r.q_len < 0
    ):
        return False
    if r.past and r.past == r.kv_len:
        return False
    if isinstance(r.lengths, tuple) and len(r.lengths) != r.entries:
        return False
    if isinstance(r.offset, tuple) and len(r.offset) != r.entries:
        return False
    if (r.lengths is not None or isinstance(r.offset, (tuple, str))) and not r.batch:
        return False
    return r.dtype in DTYPES and (not r.served or _served(r))


def _served(r: Recipe) -> bool:
    """The same of an operation of spec/serving.md."""
    if r.past or r.segments or r.weights:
        return False
    if isinstance(r.lengths, tuple) and not all(0 <= n <= r.kv_len for n in r.lengths):
        return False
    if r.operation in (APPEND, PAGED) and r.page < 1:
        return False
    if r.operation == APPEND:
        return not r.batch and r.heads == r.groups and rows_written(r) <= r.slots
    if r.operation == MERGE:
        return r.groups == r.heads and r.d_k == 1 and 0 not in (*r.batch, r.kv_len, r.q_len) and not r.lse
    if r.operation == LATENT:
        return r.groups == 1 and r.d_v <= r.d_k
    if len(r.batch) != 1 or (isinstance(r.queries, tuple) and len(r.queries) != r.entries):
        return False
    if isinstance(r.queries, tuple) and max(r.queries, default=0) > r.q_len:
        return False
    stands = r.offset is not None or not (r.causal or r.window is not None)
    return stands or (r.operation == PACKED and bool((queries(r) == lengths(r)).all()))
