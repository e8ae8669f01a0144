"""What a library has compiled is dropped where the process has become large, and not again before it has grown."""

import sys
from types import SimpleNamespace

import pytest

from conformance.running import compiled


@pytest.mark.parametrize(
    ("sizes", "dropped"), [([9], 0), ([10, 3, 9, 10, 3], 2), ([30, 30, 31, 31, 32, 30], 2)]
)
def test_programs_are_dropped(monkeypatch, sizes, dropped):
    calls, steps = [], iter(sizes)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(clear_caches=lambda: calls.append(1)))
    monkeypatch.setattr(compiled, "resident", lambda _: next(steps))
    programs = compiled.Compiled(most=10, step=2)
    while True:
        try:
            programs.drop()
        except StopIteration:
            break
    assert len(calls) == dropped


def test_nothing_is_imported_for_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    assert not compiled.Compiled(most=0).drop()
    assert "jax" not in sys.modules
