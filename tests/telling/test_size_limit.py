"""A report keeps as many wrong answers as fit, the smallest first, and says which it left out."""

from conformance.judging.verdict import Got, Row
from conformance.names import SDPA
from conformance.telling.size_limit import within


def row(name: str, size: int) -> Row:
    got = (Got("output", "float32", (size,), "A" * size),) if size else ()
    return Row(f"a/{name}", SDPA, "float32", "fail" if size else "pass", (), (), got=got)


def test_the_largest_are_left_out_and_the_order_stays() -> None:
    rows = [row("a", 30), row("b", 0), row("c", 8), row("d", 12), row("e", 40)]
    kept = within(rows, 50)
    assert [r.case for r in kept] == [r.case for r in rows]
    assert [bool(r.got) for r in kept] == [True, False, True, True, False]
    assert [bool(r.got_left_out) for r in kept] == [False, False, False, False, True]
    assert "more than 50 characters" in kept[-1].got_left_out


def test_what_fits_is_untouched() -> None:
    rows = [row("a", 30), row("b", 20)]
    assert within(rows, 50) == tuple(rows)
    assert within([], 0) == ()
