"""What a call costs, before it is asked and judged."""

from conformance.diagnosis.facts import sizes
from conformance.exploring.vary import Varied
from conformance.vectors.case import Case


def rows_of(v: Varied) -> int:
    """Rows of queries, each of which takes time to judge."""
    return v.size("entries") * v.size("heads") * v.size("q_len")


def products_of(v: Varied) -> int:
    """Queries times keys, those of a past too."""
    return v.size("q_len") * (v.size("kv_len") + v.past)


def work_of(case: Case) -> int:
    """Products of two numbers that a call takes."""
    n = sizes(case)
    return n["batch"] * n["heads"] * n["q_len"] * n["kv_len"] * (n["d_k"] + n["d_v"])
