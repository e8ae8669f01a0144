"""Production sizes: what is expected is exact, planted faults are named, right programs are not blamed."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import large_programs
import numpy as np
import pytest

import conformance
from conformance.cli import main
from conformance.errors import UsageError
from conformance.exploring.claims import Claims
from conformance.exploring.large import contents, seen
from conformance.exploring.large.backward import sums
from conformance.exploring.large.call import LOUD, Large, is_token, line, read_token, token
from conformance.exploring.large.draw import SHAPES, draw, needs
from conformance.exploring.large.making import host, maker
from conformance.exploring.large.sampled import certified
from conformance.exploring.large.sampling import samples
from conformance.exploring.large.wanted import Counts, wanted
from conformance.exploring.large.where import ask, given
from conformance.names import DTYPES, FEATURES, OPERATION_FEATURES, SDPA, SDPA_VJP
from conformance.running.target import Target, adopt, load
from conformance.telling.report import read_report

PROGRAMS = Path(large_programs.__file__)
SMALL = Large(batch=3, heads=4, groups=2, q_len=60, kv_len=157, d_v=96, stream=5)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"causal": True, "offset": 57},
    {"causal": True, "offset": "e", "lengths": True},
    {"window": (40, 0), "offset": 3},
    {"mask": "k"},
    {"mask": "q", "lengths": True, "window": (None, 5), "offset": 2, "scale": 0.25},
)
MORE: tuple[dict[str, Any], ...] = (
    {"softcap": 256.0},
    {"sinks": True},
    {"softcap": 256.0, "sinks": True, "mask": "q", "causal": True, "offset": 20},
)
"""Options that gradients in closed form have not."""
NUMBERS: tuple[dict[str, Any], ...] = (
    {},
    {"members": 2},
    {"members": LOUD, "strided": True},
    {"members": LOUD},
    {"family": "counts"},
    {"family": "counts", "levels": 4},
)


def plain(call: Large) -> tuple[dict[str, Any], Any]:
    """The operands by head in float64, and the weights of every pair, written as in a textbook."""
    heads = {"key": call.groups, "value": call.groups}
    made = {
        name: array.reshape(call.batch, heads.get(name, call.heads), -1, array.shape[-1])
        for name, array in contents.operands(call, host("float64")).items()
    }
    rows, slots = np.arange(call.q_len)[:, None], np.arange(call.kv_len)
    shown = seen.shown(call, np.arange(call.batch)[:, None, None, None], rows, slots)
    wide = {name: np.repeat(x, call.group, axis=1) if name in heads else x for name, x in made.items()}
    logits = wide["query"] @ wide["key"].swapaxes(-1, -2) * call.multiplier
    if call.softcap is not None:
        logits = call.softcap * np.tanh(logits / call.softcap)
    logits = np.where(shown, logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True)
    weights = np.where(shown, np.exp(logits - np.where(np.isfinite(top), top, 0)), 0)
    total = weights.sum(axis=-1, keepdims=True)
    if call.sinks:
        with np.errstate(over="ignore"):  # of a row that sees no key
            total = total + np.exp(seen.sinks(call)[:, None, None] - top)
    return wide, weights / np.where(total == 0, 1, total)


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
@pytest.mark.parametrize("options", [*OPTIONS, *MORE], ids=str)
def test_what_is_expected_is_what_a_textbook_gives(numbers: dict[str, Any], options: dict[str, Any]) -> None:
    call = replace(SMALL, **numbers, **options)
    made, weights = plain(call)
    flat = np.arange(call.batch * call.heads * call.q_len)
    found = Counts(call).wanted(flat) if call.family == "counts" else wanted(call, flat).output
    np.testing.assert_allclose(found, (weights @ made["value"]).reshape(found.shape), rtol=0, atol=1e-14)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_so_are_the_gradients(members: int, options: dict[str, Any]) -> None:
    call = replace(SMALL, operation=SDPA_VJP, d_v=64, members=members, strided=True, **options)
    made, p = plain(call)
    products = made["grad_output"] @ made["value"].swapaxes(-1, -2)
    logits = p * (products - (p * products).sum(axis=-1, keepdims=True)) * call.multiplier
    by_head = {
        "query": logits @ made["key"],
        "key": logits.swapaxes(-1, -2) @ made["query"],
        "value": p.swapaxes(-1, -2) @ made["grad_output"],
    }
    found = sums(call, 0, call.batch * call.groups)
    for name, gradient in by_head.items():
        if name != "query":
            gradient = gradient.reshape(call.batch, call.groups, call.group, *gradient.shape[2:]).sum(axis=2)
        np.testing.assert_allclose(
            found.value[name], gradient.reshape(found.value[name].shape), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("numbers", [*NUMBERS, {"family": "sampled", "levels": 4}], ids=str)
@pytest.mark.parametrize("library", ["torch", "jax", "array-api-strict"])
def test_every_library_makes_the_same_numbers(library: str, numbers: dict[str, Any]) -> None:
    pytest.importorskip(library.replace("-", "_"))
    call = replace(SMALL, operation=SDPA_VJP, members=1)
    call = replace(call, **numbers)

    class Taker:
        array_type = library

        def scaled_dot_product_attention_vjp(
            self, query: Any, key: Any, value: Any, grad_output: Any
        ) -> None: ...

    target = adopt(Taker(), "taker")
    theirs = contents.operands(call, maker(target, "float32"))
    for name, array in contents.operands(call, host("float32")).items():
        assert (target.take(theirs[name]) == array).all(), name


EVERYTHING = Large(
    batch=2, heads=4, groups=2, q_len=30, kv_len=157, past=40, mask="k", biased=True, sinks=True, softcap=2.0,
    causal=True, offset=127, lengths=True, lse=True, stream=5,
)  # fmt: skip


@pytest.mark.parametrize("family", ["address", "counts", "sampled"])
def test_every_option_reaches_a_right_program(family: str) -> None:
    call = replace(EVERYTHING, family=family, softcap=256.0 if family == "address" else 2.0)
    told = ask(load("numpy"), call, "eager")
    told = certified(call, "eager", told) if family == "sampled" else told
    assert told.kind == "judged"
    assert told.rows > 0
    assert not told.wrong, told.message


@pytest.mark.parametrize("option", ["attn_bias", "sinks", "softcap", "past_key"])
def test_an_option_that_is_ignored_is_seen(option: str) -> None:
    call = replace(EVERYTHING, family="counts", levels=4, lse=False)
    right = load("numpy").calls[SDPA].function

    class Ignores:
        features = set(FEATURES) - set(OPERATION_FEATURES.values())

        def scaled_dot_product_attention(self, query: Any, key: Any, value: Any, **given: Any) -> Any:
            given[option] = np.zeros_like(given[option]) if option == "past_key" else None
            return right(query, key, value, **given)

    assert ask(adopt(Ignores(), "ignores"), call, "eager").wrong


CALLS: dict[str, tuple[Large, str, str]] = {
    "index_wraps_at_65536": (Large(q_len=64, kv_len=70_000, stream=1), "asked key 69999", "key 65,536 or more"),
    "index_wraps_at_32768": (Large(q_len=64, kv_len=40_000, stream=1), "asked key 39999", "key 32,768 or more"),
    "blocks_from_65535": (
        Large(batch=2050, heads=32, groups=32, kv_len=3, stream=1), "of head 31, entry 2047; got zeros",
        "entry 2,047 or more, in 65 of 81 such cases",
    ),
    "a_tile_skipped": (
        Large(q_len=64, kv_len=2000, members=LOUD, stream=1), "as if what was asked were not there",
        "key 1,280 to 1,535",
    ),
    "last_key_of_each_tile_dropped": (
        Large(q_len=64, kv_len=2000, heads=4, groups=4, stream=1), "asked key 1023 of head 0, entry 0",
        "the last key of each 256",
    ),
    "first_key_of_each_tile_twice": (
        Large(q_len=64, kv_len=2000, heads=4, groups=4, members=2, stream=1),
        "got 0.67 of key 1280 and 0.33 of key 1281", "the first key of each 256",
    ),
    "one_key_twice": (
        Large(q_len=64, kv_len=4097, heads=4, groups=4, members=LOUD, stream=1), "got key 3000 counted twice",
        "key 3,000",
    ),
    "heads_wrap_at_256": (
        Large(heads=300, groups=300, q_len=2, kv_len=9, stream=1), "of head 256, entry 0; got key", "head 256 or more"
    ),
    "entries_from_65535": (
        Large(batch=65_537, kv_len=3, stream=1), "output[65535, 0, 0] asked key 2 of head 0, entry 65535; got zeros",
        "entry 65,535 or more",
    ),
    "not_rescaled": (Large(q_len=64, kv_len=2000, stream=1), "asked key 1751", "key 256 or more"),
    "keys_from_4096": (
        Large(q_len=64, kv_len=8192, members=LOUD, stream=1), "as if what was asked were not there",
        "key 4,096 or more",
    ),
    "value_pages_swapped": (
        Large(q_len=64, kv_len=2000, stream=1), "asked key 1751 of head 0, entry 0; got key 1735 (16 earlier)",
        "every row",
    ),
    "one_key_too_many": (
        Large(q_len=300, kv_len=300, members=LOUD, causal=True, stream=1), "got key 1 read though hidden",
        "the key behind the last in sight",
    ),
}  # fmt: skip


def target(name: str) -> Target:
    return adopt(getattr(large_programs, name), name)


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_is_seen_and_named(name: str) -> None:
    call, said, common = CALLS[name]
    told = ask(target(name), call, "eager")
    assert told.failed
    assert said in told.message
    assert told.needs == common
    assert not ask(target("right"), call, "eager").failed


@pytest.mark.parametrize(
    ("members", "said"),
    [(1, "got key 1998 of entry 0"), (2, "got those of entry 0"), (LOUD, "got those of entry 0")],
)
def test_an_entry_that_reads_another_is_named(members: int, said: str) -> None:
    call = Large(batch=3, kv_len=2000, q_len=4, members=members, stream=2, at=1998)
    told = ask(target("last_entry_reads_the_first"), call, "eager")
    assert said in told.message
    assert told.needs == "entry 2"
    assert not ask(target("right"), call, "eager").failed


def test_an_unscaled_sum_is_seen_by_counting() -> None:
    call = Large("counts", q_len=4, kv_len=2000, levels=4, stream=1)
    told = ask(target("not_rescaled"), call, "eager")
    assert "of the weight lies on the keys that column" in told.message
    assert not ask(target("right"), call, "eager").failed


def test_a_wrong_scale_is_seen_by_sampled_rows_alone() -> None:
    def scaled(query: Any, key: Any, value: Any) -> Any:
        return large_programs.right(query * np.float32(1.001), key, value)

    off = adopt(scaled, "scaled")
    call = Large("sampled", q_len=40, kv_len=300, heads=2, groups=2, stream=1)
    assert {sample.rows[0] for sample in samples(call)} == {39}
    told = certified(call, "eager", ask(off, call, "eager"))
    assert told.wrong
    assert told.message.startswith("output[0, ")
    assert "times what is allowed (NUM-1)" in told.message
    assert not certified(call, "eager", ask(target("right"), call, "eager")).failed
    assert not ask(off, replace(call, family="address"), "eager").failed


@pytest.mark.parametrize("name", ["right", "half", "short"])
def test_a_right_program_raises_no_alarm(name: str) -> None:
    program = target(name)
    claims = Claims(
        program.hello.operations, frozenset(program.hello.features), program.hello.dtypes, "large"
    )
    asked = 0
    for number in range(300):
        drawn = draw(claims, 1, number)
        assert drawn is not None
        call = drawn[1]
        if call.memory < 2**26 and call.work < 2**28:
            asked += 1
            told = ask(program, call, program.hello.accuracy)
            told = certified(call, program.hello.accuracy, told) if told.pieces is not None else told
            assert told.kind == "judged"
            assert not told.wrong, (token(call), told.message)
    assert asked


def everything(size: str = "large") -> Claims:
    return Claims((SDPA, SDPA_VJP), frozenset(FEATURES), DTYPES, size)


def test_a_draw_follows_from_its_numbers() -> None:
    drawn = [draw(everything(), 7, number) for number in range(400)]
    assert drawn == [draw(everything(), 7, number) for number in range(400)]
    calls = [found[1] for found in drawn if found is not None]
    assert len(calls) == len(drawn)
    assert all(read_token(token(call)) == call for call in calls)
    assert max(len(token(call)) for call in calls) < 200
    assert {call.family for call in calls} == {"address", "counts", "sampled"}
    assert {call.members for call in calls} == {1, 2, LOUD}
    assert {found[0].name for found in drawn if found is not None} == {
        shape.name for shape in SHAPES if not shape.layer
    }
    assert max(call.elements["key"] for call in calls) > 2**31
    assert max(call.batch * call.heads for call in calls) > 2**16
    assert max(call.kv_len for call in calls if call.q_len == 1) > 2**17


def test_what_a_target_does_not_claim_is_not_drawn() -> None:
    claims = Claims((SDPA,), frozenset({"is_causal"}), ("float32",), "large")
    for number in range(100):
        found = draw(claims, 1, number)
        assert found is not None
        assert needs(found[1]) <= {"is_causal"}


def test_a_token_is_read_or_refused_in_a_line() -> None:
    call = Large("counts", SDPA_VJP, "bfloat16", 3, 8, 2, window=(None, 4), offset=-3, mask="k", stream=9)
    assert read_token(token(call)) == call
    assert is_token(token(call))
    assert "window=(None, 4), q_offset=-3" in line(call)
    for wrong in ("L1_b3_0000", token(call)[:-1], "L1_fnothing_9d3e", "x1_b3_0000"):
        with pytest.raises(UsageError, match="--replay wants a token"):
            read_token(wrong)


def test_operands_stand_in_the_layout_of_the_target() -> None:
    class Turned:
        layout = "blhd"

        def scaled_dot_product_attention(self, query: Any, key: Any, value: Any) -> Any:
            return large_programs.right(*(x.swapaxes(1, 2) for x in (query, key, value))).swapaxes(1, 2)

    turned = adopt(Turned(), "turned")
    call = Large(batch=2, heads=3, groups=3, q_len=5, kv_len=70, stream=1)
    assert given(turned, call, host("float32"))["key"].shape == (2, 70, 3, 64)
    assert not ask(turned, call, "eager").failed


def test_full_memory_is_no_failure() -> None:
    def full(query: Any, key: Any, value: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 40.00 GiB")

    assert ask(adopt(full, "full"), SMALL_PLAIN, "eager").kind == "memory"


SMALL_PLAIN = Large(q_len=5, kv_len=70, stream=1)


def test_what_is_wrong_in_shape_or_dtype_is_told() -> None:
    def flat(query: Any, key: Any, value: Any) -> Any:
        return query[..., 0]

    def wide(query: Any, key: Any, value: Any) -> Any:
        return large_programs.right(query, key, value).astype(np.float64)

    assert "SHAPE-1" in ask(adopt(flat, "flat"), SMALL_PLAIN, "eager").message
    assert "output is float64, wanted float32" in ask(adopt(wide, "wide"), SMALL_PLAIN, "eager").message


REPLAY = token(Large(batch=2, heads=2, groups=2, q_len=64, kv_len=8192, stream=1))


def test_a_failure_is_reduced_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("r.json", "r.xml", "r.html")}
    arguments = [
        "--report",
        str(files["r.json"]),
        "--junit",
        str(files["r.xml"]),
        "--html",
        str(files["r.html"]),
    ]
    wrong = f"{PROGRAMS}:keys_from_4096"
    assert main(["explore", wrong, "--replay", REPLAY, "--memory", "1", *arguments]) == 1
    out = capsys.readouterr().out
    assert "reduced: scaled_dot_product_attention(query 1x1x" in out
    assert "fails if: key 4,096 or more, kv_len " in out
    assert "it does not depend on the batch, heads and q_len" in out
    (row,) = read_report(files["r.json"]).results
    assert row.replay in out
    assert read_token(row.replay) == replace(
        read_token(REPLAY), batch=1, heads=1, groups=1, q_len=1, kv_len=4097, at=4096
    )
    assert json.loads(files["r.json"].read_text())["mode"] == "explore"
    assert 'failures="1"' in files["r.xml"].read_text()
    assert "as if what was asked were not there" in files["r.html"].read_text()
    assert main(["explore", wrong, "--replay", row.replay, "--memory", "1", "-q"]) == 1
    assert main(["explore", f"{PROGRAMS}:right", "--replay", row.replay, "--memory", "1", "-q"]) == 0


def test_a_program_of_the_line_protocol_is_asked_what_a_line_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = f"{sys.executable} -P -m conformance.running.worker {PROGRAMS}:keys_from_4096"
    assert main(["explore", "--command", command, "--replay", REPLAY, "--memory", "1"]) == 1
    assert "fails if: key 4,096 or more" in capsys.readouterr().out


@pytest.mark.parametrize("operation", [SDPA, SDPA_VJP])
def test_sampled_rows_are_judged_outside_of_the_process_of_the_target(
    operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = Large("sampled", operation, q_len=4, kv_len=300, stream=1)
    assert main(["explore", "numpy", "--replay", token(call), "--memory", "1"]) == 0
    assert "1 call judged of 1 drawn" in capsys.readouterr().out


def test_python_takes_the_same_options() -> None:
    report = conformance.explore(large_programs.right, size="large", memory=0.1, seed=1, cases=12)
    assert report.drawing is not None
    assert report.drawing.drawn == 12
    assert not report.failed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--memory", "2"], "--memory goes with --size large, not with kernel: leave it out"),
        (["--size", "large", "--memory", "0"], "--memory must be more than 0 GiB"),
        (["--size", "large", "--memory", "1e9"], "more than the"),
        (["--size", "large", "--save", "failures"], "one of --size large is its token"),
        (["--replay", REPLAY, "--memory", "0.001"], "give --memory"),
        (["--replay", REPLAY[:-1]], "--replay wants a token"),
        (["--replay", token(Large(causal=True, mask="k"))], "the token needs mask"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", f"{PROGRAMS}:right", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err.splitlines()[-1]
