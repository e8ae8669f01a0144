"""Vector files: what is written is read back bit for bit, and every kind of damage is told in one line."""

import hashlib
import json
import math
import re
import shutil
from dataclasses import fields
from functools import cache

import jsonschema
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conformance.errors import UsageError
from conformance.resources import schema, vectors_directory
from conformance.vectors import load
from conformance.vectors.generate.build import build
from conformance.vectors.generate.cases import drafts
from conformance.vectors.generate.write import READABLE, write
from conformance.vectors.load import CHECKED, INDEX, load_vectors
from conformance.vectors.tensors import parse_tensors, write_tensors

QUICK = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
CHOSEN = (
    "attention/plain",
    "attention/hand-sized",
    "attention/bias-float16",
    "independence/readonly",
    "independence/repeated",
    "numerics/dk7",
    "mask/empty-row-weights-lse",
    "cache/past",
    "validation/softcap-zero",
)
BULK = "attention.safetensors"


@cache  # `nox -s mutation` asks these tests again and again in copies of one process
def chosen():
    return [(build(draft), draft.readable) for draft in drafts() if draft.id in CHOSEN]


@pytest.fixture(scope="module")
def built():
    return chosen()


@pytest.fixture(scope="module")
def written(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    write(folder, built)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    shutil.copytree(written, tmp_path / "data")
    return tmp_path / "data"


def edit(folder, change):
    """Changes the index in place."""
    index = json.loads((folder / INDEX).read_text("utf-8"))
    change(index)
    (folder / INDEX).write_text(json.dumps(index), "utf-8")


def rehash(folder, name):
    edit(
        folder,
        lambda index: index["files"].update({name: hashlib.sha256((folder / name).read_bytes()).hexdigest()}),
    )


def retensor(folder, name, change):
    """Changes the tensors of a file, and the hash with them: damage that only the content shows."""
    tensors = parse_tensors((folder / name).read_bytes(), (folder / name).suffix)
    change(tensors)
    write_tensors(folder / name, tensors)
    rehash(folder, name)


def refused(folder, name):
    """The message, after a check that it is one line that names the file and a remedy."""
    with pytest.raises(UsageError) as caught:
        load_vectors(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    assert str(folder / name if name else folder) in message
    assert re.search(r"reinstall mha-conformance|restore the file", message)
    return message


# -- round trips ---------------------------------------------------------------------------------


def equal(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def test_what_is_written_is_read_back(built, written):
    loaded = load_vectors(written)
    assert [case.id for case in loaded.cases] == sorted(CHOSEN)
    assert loaded.sha256 == hashlib.sha256((written / INDEX).read_bytes()).hexdigest()
    assert set(loaded.files) == {path.name for path in written.iterdir()} - {INDEX, CHECKED}
    for case, _ in built:
        (back,) = (one for one in loaded.cases if one.id == case.id)
        for field in sorted({field.name for field in fields(case)} - {"inputs", "expected"}):
            assert (field, getattr(back, field)) == (field, getattr(case, field))
        assert set(back.inputs) == set(case.inputs)
        assert all(equal(back.inputs[name], array) for name, array in case.inputs.items())
        assert set(back.expected) == set(case.expected)
        for name, golden in case.expected.items():
            read = back.expected[name]
            assert (read.shape, read.rows, read.rms_applies) == (
                golden.shape,
                golden.rows,
                golden.rms_applies,
            )
            assert equal(read.hi, golden.hi)
            assert equal(read.lo, golden.lo)
            assert set(read.signatures) == set(golden.signatures)
            for name, signature in golden.signatures.items():
                assert equal(read.signatures[name].direction, signature.direction)
                assert read.signatures[name].limits == signature.limits
            assert {(d, p) for d, of in read.bounds.items() for p in of} == {
                (d, p) for d, of in golden.bounds.items() for p in of
            }
            for dtype, of in golden.bounds.items():
                for policy, bound in of.items():
                    assert equal(read.bounds[dtype][policy].worst, bound.worst)
                    assert equal(read.bounds[dtype][policy].rms, bound.rms)


def test_the_index_has_one_case_a_line(written):
    lines = (written / INDEX).read_text("utf-8").splitlines()
    index = json.loads((written / INDEX).read_bytes())
    read = [json.loads(line.rstrip(",")) for line in lines if line.startswith('{"id":')]
    assert read == index["cases"]
    assert len(lines) == len(index["cases"]) + len(index["files"]) + 8


def test_writing_twice_gives_the_same_bytes(built, written, tmp_path):
    for order in (built, built[::-1]):
        again = tmp_path / str(len(list(tmp_path.iterdir())))
        write(again, order)
        assert {p.name for p in again.iterdir()} == {p.name for p in written.iterdir()}
        for path in written.iterdir():
            assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_shipped_files_are_those_of_the_index():
    shipped = vectors_directory()
    index = json.loads((shipped / INDEX).read_text("utf-8"))
    assert {path.name for path in shipped.iterdir()} == {INDEX, CHECKED, *index["files"]}
    assert {case["file"] for case in index["cases"]} == set(index["files"])
    assert (
        sum(path.stat().st_size for path in shipped.iterdir()) < 40 * 2**20
    )  # a wheel holds two thirds of it


def test_the_form_of_the_shipped_index_was_checked():
    raw = (vectors_directory() / INDEX).read_bytes()
    assert (vectors_directory() / CHECKED).read_bytes() == load.checked_text(hashlib.sha256(raw).hexdigest())
    jsonschema.validate(json.loads(raw), schema("vectors"))


def test_only_what_ships_is_taken_as_checked(folder, monkeypatch):
    """A folder from elsewhere cannot vouch for itself, nor does an index that was changed since."""
    asked = []
    monkeypatch.setattr(load, "flaw", lambda *words: asked.append(words))
    monkeypatch.setattr(load, "vectors_directory", lambda: folder)
    load_vectors()
    assert not asked
    load_vectors(folder)
    assert len(asked) == 1
    with (folder / INDEX).open("a") as file:
        file.write(" ")
    load_vectors()
    assert len(asked) == 2


def test_of_what_ships_a_file_is_read_when_a_case_asks_for_it(folder, monkeypatch):
    monkeypatch.setattr(load, "vectors_directory", lambda: folder)
    (folder / BULK).unlink()
    cases = {case.id: case for case in load_vectors().cases}
    assert sorted(cases) == sorted(CHOSEN)
    assert set(cases["mask/empty-row-weights-lse"].expected["output"].bounds)
    with pytest.raises(UsageError, match="cannot be read"):
        cases["attention/plain"].inputs["query"]


def test_of_what_ships_the_hash_is_checked_when_a_file_is_read(folder, monkeypatch):
    monkeypatch.setattr(load, "vectors_directory", lambda: folder)
    raw = bytearray((folder / BULK).read_bytes())
    raw[-1] ^= 1
    (folder / BULK).write_bytes(raw)
    cases = {case.id: case for case in load_vectors().cases}
    for asked in (lambda case: case.inputs["query"], lambda case: case.expected["output"]):
        with pytest.raises(UsageError, match="sha256"):
            asked(cases["attention/plain"])


def test_what_ships_passes_every_check():
    """None of them is made where what ships is read: this one is instead of that."""
    assert len(load_vectors(vectors_directory()).cases) == len(load_vectors().cases)


def test_no_tensor_is_left_over():
    shipped = vectors_directory()
    index = json.loads((shipped / INDEX).read_text("utf-8"))
    named: dict[str, set[str]] = {name: set() for name in index["files"]}
    for case in index["cases"]:
        keys = named[case["file"]]
        stored = [name for name in case["inputs"] if name not in case.get("seeded", ())]
        keys |= {f"{case['id']}:input:{name}" for name in stored}
        for output, golden in case["expected"].items():
            keys |= {f"{case['id']}:{output}:{part}" for part in ("hi", "lo")}
            bounds = {key for of in golden["bounds"].values() for key in of.values()}
            keys |= {f"{case['id']}:{output}:{key}:{part}" for key in bounds for part in "Ws"}
            keys |= {f"{case['id']}:{output}:{name}:g" for name in golden["signatures"]}
    for name, keys in named.items():
        assert set(parse_tensors((shipped / name).read_bytes(), (shipped / name).suffix)) == keys


dtypes = st.sampled_from([np.float64, np.float32, np.float16, np.bool_, np.int64])
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


@given(array=arrays)
@QUICK
def test_tensors_of_both_encodings_round_trip(tmp_path, array):
    kinds = array if array.dtype.kind != "f" else np.where(np.isnan(array), array.dtype.type(np.nan), array)
    tensors = {"a/b:input:c": np.asarray(kinds, array.dtype), "other": np.zeros((0, 3))}
    for name in ("x.json", "x.safetensors"):
        write_tensors(tmp_path / name, tensors)
        back = parse_tensors((tmp_path / name).read_bytes(), (tmp_path / name).suffix)
        assert set(back) == set(tensors)
        assert all(equal(back[key], tensor) for key, tensor in tensors.items()), name


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_ends_of_the_range_round_trip(tmp_path, dtype):
    info = np.finfo(dtype)
    numbers = [
        0.0,
        -0.0,
        info.max,
        -info.max,
        info.tiny,
        info.smallest_subnormal,
        -info.smallest_subnormal,
        info.eps,
    ]
    array = np.array([*numbers, dtype(1) + info.eps, dtype(1) / dtype(3), np.nan, np.inf, -np.inf], dtype)
    for name in ("x.json", "x.safetensors"):
        write_tensors(tmp_path / name, {"x": array})
        assert equal(parse_tensors((tmp_path / name).read_bytes(), (tmp_path / name).suffix)["x"], array)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_readable_numbers_are_as_short_as_they_can_be(tmp_path, dtype):
    write_tensors(tmp_path / "x.json", {"x": np.array([0.1, 2.5, 1e-4], dtype)})
    tensor = json.loads((tmp_path / "x.json").read_text())["x"]
    assert list(map(str, tensor["data"])) == ["0.1", "2.5", "0.0001"]


def test_tensors_out_of_order_in_memory_are_written_in_order(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    for view in (array.T, array[::-1], array[:, ::2]):
        for name in ("x.json", "x.safetensors"):
            write_tensors(tmp_path / name, {"x": view})
            assert np.array_equal(
                parse_tensors((tmp_path / name).read_bytes(), (tmp_path / name).suffix)["x"], view
            )


# -- damage --------------------------------------------------------------------------------------


def test_the_undamaged_set_loads(folder):
    assert len(load_vectors(folder).cases) == len(CHOSEN)


def test_a_folder_that_is_not_there(tmp_path):
    refused(tmp_path / "nowhere", INDEX)


@pytest.mark.parametrize("name", [INDEX, BULK, READABLE])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    assert "cannot be read" in refused(folder, name)


@pytest.mark.parametrize("name", [INDEX, BULK, READABLE])
def test_a_folder_in_place_of_a_file(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    assert "cannot be read" in refused(folder, name)


@pytest.mark.parametrize("name", [BULK, READABLE])
@pytest.mark.parametrize("place", [0, 0.3, 0.5, 0.999])
def test_a_flipped_byte(folder, name, place):
    raw = bytearray((folder / name).read_bytes())
    raw[int(place * len(raw))] ^= 1
    (folder / name).write_bytes(raw)
    assert "sha256" in refused(folder, name)


@pytest.mark.parametrize("name", [BULK, READABLE])
@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b" ", lambda raw: b""])
def test_a_file_of_another_length(folder, name, change):
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    assert "sha256" in refused(folder, name)


def test_a_wrong_hash(folder):
    edit(folder, lambda index: index["files"].update({BULK: "0" * 64}))
    refused(folder, BULK)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b"NaN", b'"text"', b"[" * 100_000, b'{"a":' * 100_000],
    ids=range(9),
)
def test_an_index_that_is_not_one(folder, raw):
    (folder / INDEX).write_bytes(raw)
    refused(folder, INDEX)


def test_a_truncated_index(folder):
    raw = (folder / INDEX).read_bytes()
    for share in (0.2, 0.7, 0.99):
        (folder / INDEX).write_bytes(raw[: int(share * len(raw))])
        refused(folder, INDEX)


def _case(index, name="attention/plain"):
    return next(case for case in index["cases"] if case["id"] == name)


def _output(index):
    return _case(index)["expected"]["output"]


DAMAGED_INDEX = {
    "vectors version": lambda index: index.update(vectors_version="99"),
    "numeric version": lambda index: index.update(vectors_version=2),
    "no version": lambda index: index.pop("vectors_version"),
    "spec version": lambda index: index.update(spec_version="one"),
    "unknown field": lambda index: index.update(extra=1),
    "unknown field of a case": lambda index: _case(index).update(extra=1),
    "unknown field of a result": lambda index: _output(index).update(tolerance=1),
    "no cases": lambda index: index.update(cases=[]),
    "no files": lambda index: index.update(files={}),
    "a path out of the folder": lambda index: index["files"].update({"../x.json": "0" * 64}),
    "covers nothing": lambda index: _case(index).update(covers=[]),
    "unknown feature": lambda index: _case(index).update(features=["telepathy"]),
    "unknown dtype": lambda index: _case(index).update(dtypes=["float8"]),
    "no dtype": lambda index: _case(index).update(dtypes=[]),
    "unknown operation": lambda index: _case(index).update(operation="self_attention"),
    "unknown policy": lambda index: _output(index)["bounds"]["float32"].update(loose="float32.eager"),
    "no bounds": lambda index: _output(index).update(bounds={}),
    "no output": lambda index: _case(index).update(expected={}),
    "an answer to a refused call": lambda index: _case(index).update(raises=True),
    "negative shape": lambda index: _output(index).update(shape=[-1]),
    "a row twice": lambda index: _output(index).update(rows=[1, 1]),
    "repeat of zero": lambda index: _case(index).update(repeat=0),
    "unknown layout": lambda index: _case(index).update(memory={"query": "folded"}),
    "unknown option": lambda index: _case(index)["options"].update(dropout=0.5),
    "a file that the index does not list": lambda index: _case(index).update(file="other.safetensors"),
    "an input that no file holds": lambda index: _case(index)["inputs"].append("sinks"),
    "a bound that no file holds": lambda index: _output(index)["bounds"]["float32"].update(
        eager="float32.tight"
    ),
    "a result that no file holds": lambda index: _case(index)["expected"].update(lse=_output(index)),
}


@pytest.mark.parametrize("kind", DAMAGED_INDEX)
def test_a_damaged_index(folder, kind):
    edit(folder, DAMAGED_INDEX[kind])
    refused(folder, INDEX)


KEY = "attention/plain:output"
OTHER_SHAPE = f"{KEY}: a tensor has another shape than (2, 3, "
NOT_AGREEING = {
    "shape": (lambda index: _output(index).update(shape=[2, 3, 5, 5]), OTHER_SHAPE),
    "rank": (lambda index: _output(index).update(shape=[2, 3, 5]), OTHER_SHAPE),
    "rows that are not held": (lambda index: _output(index).update(rows=[0, 1]), OTHER_SHAPE),
    "rows out of range": (
        lambda index: _output(index).update(rows=[0, 1, 2, 3, 9]),
        f"{KEY}: rows 9 of shape (2, 3, 5, 4) do not exist",
    ),
    "the row after the last": (
        lambda index: _output(index).update(rows=[0, 1, 2, 3, 5]),
        f"{KEY}: rows 5 of shape (2, 3, 5, 4) do not exist",
    ),
    "a dtype without bounds": (
        lambda index: _output(index)["bounds"].pop("float16"),
        f"{KEY}: it has bounds for other dtypes than the case is about",
    ),
    "a case twice": (lambda index: index["cases"].append(_case(index)), "two of its cases have one ID"),
}


@pytest.mark.parametrize("kind", NOT_AGREEING)
def test_an_index_that_does_not_agree_with_its_tensors(folder, kind):
    change, why = NOT_AGREEING[kind]
    edit(folder, change)
    assert why in refused(folder, "")


def test_rows_that_are_all_of_them(folder):
    """Those of lse lie on its last axis, those of every other result on the last but one."""

    def listed(index):
        for golden in _case(index, "mask/empty-row-weights-lse")["expected"].values():
            golden["rows"] = list(range(5))

    edit(folder, listed)
    (case,) = (case for case in load_vectors(folder).cases if case.id == "mask/empty-row-weights-lse")
    assert {golden.rows for golden in case.expected.values()} == {(0, 1, 2, 3, 4)}


DAMAGED_TENSORS = {
    "no hi": lambda t: t.pop(f"{KEY}:hi"),
    "no input": lambda t: t.pop("attention/plain:input:key"),
    "hi of another shape": lambda t: t.update({f"{KEY}:hi": t[f"{KEY}:hi"][:1]}),
    "lo of another shape": lambda t: t.update({f"{KEY}:lo": t[f"{KEY}:lo"][..., :1]}),
    "NaN in lo": lambda t: t.update({f"{KEY}:lo": np.full_like(t[f"{KEY}:lo"], np.nan)}),
    "W of another shape": lambda t: t.update(
        {k: t[k].ravel() for k in t if k.startswith(KEY) and k.endswith(":W")}
    ),
    "s that is a scalar": lambda t: t.update(
        {k: np.float32(1).reshape(()) for k in t if k.startswith(KEY) and k.endswith(":s")}
    ),
    "infinite lo": lambda t: t.update({f"{KEY}:lo": np.full_like(t[f"{KEY}:lo"], np.inf)}),
    "hi in float32": lambda t: t.update({f"{KEY}:hi": t[f"{KEY}:hi"].astype(np.float32)}),
    "NaN in W": lambda t: t.update({k: t[k] * np.nan for k in t if k.startswith(KEY) and k.endswith(":W")}),
    "infinite W": lambda t: t.update({k: t[k] + np.inf for k in t if k.startswith(KEY) and k.endswith(":W")}),
    "negative W": lambda t: t.update({k: -t[k] for k in t if k.startswith(KEY) and k.endswith(":W")}),
    "NaN in s": lambda t: t.update({k: t[k] * np.nan for k in t if k.startswith(KEY) and k.endswith(":s")}),
}


@pytest.mark.parametrize("kind", DAMAGED_TENSORS)
def test_tensors_that_are_not_what_the_index_says(folder, kind):
    retensor(folder, BULK, DAMAGED_TENSORS[kind])
    refused(folder, "")


DAMAGED_JSON = {
    "empty": b"",
    "truncated": b'{"a": {"dtype": "F64", "shape": [1], "data": [1',
    "no object": b"[1, 2]",
    "no text": b"\xff\xff",
    "nested deeply": b'{"a":' * 100_000,
    "an entry that is a number": b'{"a": 1}',
    "an entry without data": b'{"a": {"dtype": "F64", "shape": [1]}}',
    "unknown dtype": b'{"a": {"dtype": "F8", "shape": [1], "data": [1]}}',
    "another shape": b'{"a": {"dtype": "F64", "shape": [2], "data": [1]}}',
    "unknown word": b'{"a": {"dtype": "F64", "shape": [1], "data": ["infinity"]}}',
    "data that is a number": b'{"a": {"dtype": "F64", "shape": [1], "data": 1}}',
    "an integer too large": b'{"a": {"dtype": "I64", "shape": [1], "data": [9223372036854775808]}}',
    "a number too large": b'{"a": {"dtype": "F64", "shape": [1], "data": [1' + b"0" * 400 + b"]}}",
}


@pytest.mark.parametrize("kind", DAMAGED_JSON)
def test_a_damaged_tensor_file_in_json(folder, kind):
    (folder / READABLE).write_bytes(DAMAGED_JSON[kind])
    rehash(folder, READABLE)
    refused(folder, READABLE)


@pytest.mark.parametrize(
    "raw", [b"", b"\x00" * 8, b"\xff" * 40, (10**6).to_bytes(8, "little") + b"{}"], ids=range(4)
)
def test_a_damaged_tensor_file(folder, raw):
    (folder / BULK).write_bytes(raw)
    rehash(folder, BULK)
    refused(folder, BULK)


def test_a_tensor_of_a_dtype_that_vectors_do_not_have(folder):
    tensors = parse_tensors((folder / BULK).read_bytes(), (folder / BULK).suffix)
    tensors["attention/plain:input:query"] = tensors["attention/plain:input:query"].astype(np.int8)
    (folder / BULK).write_bytes(safetensors.numpy.save(tensors))
    rehash(folder, BULK)
    refused(folder, "")


# -- what is shipped -----------------------------------------------------------------------------


def test_shipped_bounds_are_bounds():
    for case in load_vectors().cases:
        for name, golden in case.expected.items():
            assert set(golden.bounds) == set(case.dtypes), case.id
            for dtype, of in golden.bounds.items():
                for policy, bound in of.items():
                    where = f"{case.id} {name} {dtype} {policy}"
                    for array in (bound.worst, bound.rms):
                        assert array.dtype in (np.float32, np.float64), where
                        assert np.isfinite(array).all(), where
                        assert (array >= 0).all(), where
                        mantissa, _ = np.frexp(array.astype(np.float64))
                        assert np.all(mantissa * 2**8 % 1 == 0), where  # 8 significant bits
                    assert np.all((bound.worst > 0) == (bound.rms > 0)), where
                    finite = np.isfinite(golden.hi)
                    assert not bound.worst[~finite].any(), where
                    # the correctly rounded result is within every bound
                    if name in ("output", "lse", "weights"):
                        nearest = math.ldexp(
                            1, {"float64": -53, "float32": -24, "float16": -11, "bfloat16": -8}[dtype]
                        )
                        masked = finite & (golden.hi == 0) & (bound.worst == 0)
                        assert np.all(
                            bound.worst[finite & ~masked] >= nearest * np.abs(golden.hi[finite & ~masked])
                        ), where


def test_shipped_bounds_grow_with_what_a_policy_admits():
    for case in load_vectors().cases:
        for name, golden in case.expected.items():
            for dtype, of in golden.bounds.items():
                if "eager" in of and "fused" in of:
                    assert np.all(of["eager"].worst >= of["fused"].worst * (1 - 2**-10)), (
                        case.id,
                        name,
                        dtype,
                    )
                if dtype == "float32":
                    for policy in ("tf32", "tf32t", "bf16x1"):
                        if policy in of and "eager" in of:
                            assert np.all(of[policy].worst >= of["eager"].worst * (1 - 2**-10)), (
                                case.id,
                                name,
                            )
                if dtype in ("float64", "float32") and "eager" in of:
                    assert of["fused"].worst is of["eager"].worst or np.array_equal(
                        of["fused"].worst, of["eager"].worst
                    )
