"""Logits that err by more than they lie apart: a key without weight by the exact ones may win by the rounded ones."""

import ml_dtypes
import numpy as np
import pytest

import conformance

BF16 = ml_dtypes.bfloat16


def operands(apart: float) -> list[np.ndarray]:
    """One query and two keys in bfloat16: logits near 2^20, so far apart; numbers 1 and 3."""
    query, key = np.full((1, 1, 1, 64), 1024.0), np.full((1, 1, 2, 64), 128.0)
    key[..., 1, 0] -= apart / 128
    return [x.astype(BF16) for x in (query, key, np.array([[[[1.0], [3.0]]]]))]


@pytest.mark.parametrize("apart", [256.0, 1024.0, 2048.0])
def test_a_key_may_win_whose_logit_rounds_to_the_same(apart: float) -> None:
    """Both logits are 2^20 in bfloat16: where everything is stored the answer is the mean of both, else the first."""
    query, key, value = operands(apart)
    stored = np.matmul(query.astype(float), key.astype(float).swapaxes(-1, -2)).astype(BF16)
    assert stored[..., 0] == stored[..., 1]
    mean, first = np.full((1, 1, 1, 1), 2.0, BF16), np.full((1, 1, 1, 1), 1.0, BF16)
    conformance.assert_conforms(mean, query, key, value, policy="eager")
    conformance.assert_conforms(first, query, key, value, policy="eager")
    conformance.assert_conforms(first, query, key, value, policy="fused")
    with pytest.raises(AssertionError):
        conformance.assert_conforms(mean, query, key, value, policy="fused")


def test_a_key_far_below_what_rounds_may_not_win() -> None:
    query, key, value = operands(0.0)
    key[..., 1, :] = 64  # a logit of 2^19
    with pytest.raises(AssertionError):
        conformance.assert_conforms(np.full((1, 1, 1, 1), 2.0, BF16), query, key, value, policy="eager")
