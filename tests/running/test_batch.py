"""Targets of rank 4, and those whose causal mask ends at the last key."""

from typing import Any

import numpy as np
import pytest

from conformance.api.run import run as whole_run
from conformance.errors import UsageError
from conformance.names import DEFAULT_FEATURES, MHA, SDPA, SDPA_VJP
from conformance.running.batch import flattened, restored
from conformance.running.invoke import call
from conformance.running.protocol import encode, hello_message, parse_hello
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.running.target import adopt
from conformance.vectors.load import load_vectors


def attention(query: Any, key: Any, value: Any, *, mask: Any = None, is_causal: bool = False) -> Any:
    """A kernel of four axes that is aligned to the last key, right in finite numbers."""
    assert query.ndim == key.ndim == value.ndim == 4
    assert mask is None or mask.ndim == 4
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    logits = query.astype(np.float64) @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    rows, columns = logits.shape[-2:]
    seen = np.ones(logits.shape, bool) if mask is None else np.broadcast_to(mask, logits.shape)
    if is_causal:
        seen = seen & (np.arange(columns) <= np.arange(rows)[:, None] + columns - rows)
    top = logits.max(axis=-1, keepdims=True, where=seen, initial=-1e30)
    weights = np.where(seen, np.exp(np.where(seen, logits - top, 0)), 0)
    total = weights.sum(axis=-1, keepdims=True)
    return (weights / np.where(total > 0, total, 1) @ value).astype(query.dtype)


def made(**attributes: Any) -> Any:
    return type("Made", (), {SDPA: staticmethod(attention), **attributes})


def test_a_kernel_of_four_axes_aligned_to_the_last_key_passes_what_it_can() -> None:
    report = whole_run(
        made(rank=4, causal_alignment="bottom-right"), k="not nonfinite", no_diagnose=True, fresh="off"
    )
    assert [row.message for row in report.results if row.failed] == []
    executed = {row.case for row in report.results if row.executed}
    assert {"causal/square", "mask/one-of-two-batch-axes", "attention/no-batch"} <= executed
    causal = [row for row in report.results if "q_offset" in row.features and row.executed]
    assert len(causal) > 4, "those whose last query is at the last key"
    others = [row for row in report.results if "q_offset" in row.features and not row.executed]
    assert len(others) > 20
    assert all("does not support" in row.message for row in others)
    assert report.features["q_offset"].status == "not claimed"
    assert report.features["is_causal"].status == "incomplete", "-k left out a part, and nothing else is open"


def test_without_a_rank_the_same_kernel_fails_and_without_an_alignment_it_is_asked_for_square_ones() -> None:
    cases = [case for case in load_vectors().cases if case.id in ("attention/no-batch", "causal/decode-step")]
    rows = [row for row in run(Request(made()), cases) if hasattr(row, "verdict")]
    assert {row.case: row.verdict for row in rows}["attention/no-batch"] == "error"


def test_the_alignment_travels_with_the_start() -> None:
    hello = adopt(made(causal_alignment="bottom-right"), "x").hello
    assert parse_hello(encode(hello_message(hello)), "x") == hello
    assert hello.causal_alignment == "bottom-right"


def test_a_target_that_takes_offsets_is_told_that_its_alignment_is_not_used() -> None:
    def own(query: Any, key: Any, value: Any, *, is_causal: bool = False, q_offset: Any = None) -> Any: ...

    own.causal_alignment = "bottom-right"  # type: ignore[attr-defined]
    hello = adopt(own, "x").hello
    assert hello.notes == ("x takes q_offset, so its causal_alignment is not used",)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"rank": 3}, "x: rank must be 4, or left out for a target of any rank, got 3"),
        ({"causal_alignment": "bottom"}, "unknown causal_alignment of x: 'bottom'"),
        ({"causal_alignment": True}, "x: causal_alignment must be a string, got True"),
    ],
)
def test_what_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        adopt(made(**attributes), "x")


def operands(*batch: int) -> dict[str, Any]:
    shapes = {"query": (*batch, 3, 5, 4), "key": (*batch, 3, 7, 4), "value": (*batch, 3, 7, 2)}
    return {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()
    }


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0, 2)])
def test_batch_axes_become_one_and_come_back(batch: tuple[int, ...]) -> None:
    inputs = operands(*batch)
    entries = int(np.prod(batch))
    lengths = {"kv_lengths": np.zeros(batch, np.int64)}
    flat = flattened(SDPA, {**inputs, **lengths, "sinks": np.zeros(3)})
    assert flat["query"].shape == (entries, 3, 5, 4)
    assert flat["kv_lengths"].shape == (entries,)
    assert flat["sinks"].shape == (3,)
    assert restored(SDPA, "output", np.zeros((entries, 3, 5, 2)), inputs).shape == (*batch, 3, 5, 2)
    assert restored(SDPA, "lse", np.zeros((entries, 3, 5)), inputs).shape == (*batch, 3, 5)
    assert restored(SDPA, "output", np.zeros((9, 9)), inputs).shape == (9, 9), "the judge says what is wrong"


def test_masks_have_four_axes_and_a_gradient_the_shape_of_its_bias() -> None:
    inputs = operands(2, 3)
    for shape, flat in {
        (5, 7): (1, 1, 5, 7),
        (1, 1, 3, 1, 7): (1, 3, 1, 7),
        (2, 3, 1, 5, 7): (6, 1, 5, 7),
        (2, 1, 1, 1, 7): (6, 1, 1, 7),
        (4, 5, 5, 7): (4, 5, 5, 7),  # wrong, so it is handed on as it is
    }.items():
        given = {**inputs, "attn_bias": np.ones(shape, np.float32)}
        assert flattened(SDPA, given)["attn_bias"].shape == flat
        if shape != (4, 5, 5, 7):
            back = restored(SDPA_VJP, "attn_bias", np.ones(flat, np.float32), given)
            assert back.shape == shape
            assert back.sum() == np.prod(flat)


def test_a_layer_has_its_own_axes() -> None:
    inputs = {
        "query": np.zeros((2, 3, 5, 8)),
        "w_q": np.zeros((4, 8, 2)),
        "past_key": np.zeros((2, 3, 4, 6, 2)),
    }
    flat = flattened(MHA, inputs)
    assert {name: array.shape for name, array in flat.items()} == {
        "query": (6, 5, 8),
        "w_q": (4, 8, 2),
        "past_key": (6, 4, 6, 2),
    }
    assert restored(MHA, "output", np.zeros((6, 5, 9)), inputs).shape == (2, 3, 5, 9)


def test_the_call_gives_the_batch_axes_back() -> None:
    target = adopt(made(rank=4), "x")
    assert target.hello.features == ("mask", "is_causal", *DEFAULT_FEATURES)
    answer = call(target, SDPA, operands(), {}, {})
    assert answer.outputs["output"].shape == (3, 5, 2)
    assert Selection().narrowed == ""
