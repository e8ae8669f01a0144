"""The helpers for adapters: shapes, and what they refuse; on every array library that is here."""

from typing import Any

import numpy as np
import pytest

from conformance.adapting import flat4, full_mask, last_key, one_mask, refuse, refuse_together, repeat_heads

LIBRARIES = ("numpy", "torch", "jax.numpy", "array_api_strict")


@pytest.fixture(params=LIBRARIES)
def xp(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0, 2)])
def test_one_batch_axis_and_back(xp: Any, batch: tuple[int, ...]) -> None:
    (q, k), back = flat4(xp.ones((*batch, 3, 5, 4)), xp.ones((*batch, 3, 7, 4)))
    entries = int(np.prod(batch))
    assert (tuple(q.shape), tuple(k.shape)) == ((entries, 3, 5, 4), (entries, 3, 7, 4))
    assert tuple(back(q[..., 0]).shape) == (*batch, 3, 5)


@pytest.mark.parametrize("shape", [(5, 7), (1, 3, 1, 7), (2, 1, 5, 1), (2, 3, 5, 7)])
def test_a_mask_of_any_shape_is_whole(xp: Any, shape: tuple[int, ...]) -> None:
    query, key = xp.ones((2, 3, 5, 4)), xp.ones((2, 3, 7, 4))
    assert tuple(full_mask(xp.ones(shape), query, key).shape) == (2, 3, 5, 7)
    assert full_mask(None, query, key) is None


def test_heads_are_repeated_one_by_one(xp: Any) -> None:
    key = xp.reshape(xp.asarray([0.0, 1.0]), (2, 1, 1))
    (wide,) = repeat_heads(xp.ones((6, 1, 1)), key)
    assert [float(wide[h, 0, 0]) for h in range(6)] == [0, 0, 0, 1, 1, 1]
    assert repeat_heads(xp.ones((2, 1, 1)), key)[0] is key


def test_what_a_kernel_lacks_is_refused(xp: Any) -> None:
    query, key = xp.ones((2, 5, 4)), xp.ones((2, 7, 4))
    last_key(query, key, 2)
    with pytest.raises(NotImplementedError, match="q_offset has to be 2"):
        last_key(query, key, None)
    with pytest.raises(NotImplementedError, match="q_offset has to be 2"):
        last_key(query, key, xp.ones((1,)))
    refuse(window=None, is_causal=False)
    with pytest.raises(NotImplementedError, match="window and softcap not supported"):
        refuse(window=(1, 0), softcap=2.0, scale=None)
    refuse_together(mask=query, attn_bias=None)
    with pytest.raises(NotImplementedError, match="mask and attn_bias not supported together"):
        one_mask(query, key)
    assert one_mask(None, key) is key
    assert one_mask(query, None) is query
