"""Vectors of anybody: an index and tensors that lie are refused in one line, and lead nowhere else."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from damage import EVIL, damaged, tried
from depth import examples
from hypothesis import given
from hypothesis import strategies as st

from conformance.errors import UsageError
from conformance.reading import read_bytes
from conformance.resources import vectors_directory
from conformance.vectors.load import INDEX, load_vectors


@pytest.fixture(scope="module")
def small() -> tuple[Any, dict[str, Any]]:
    """An index of one case, and its tensors."""
    shipped = vectors_directory()
    index = json.loads((shipped / INDEX).read_text())
    case = next(case for case in index["cases"] if case["id"] == "attention/scale-one")
    tensors = safetensors.numpy.load_file(shipped / case["file"])
    own = {name: tensors[name] for name in tensors if name.startswith("attention/scale-one:")}
    return {**index, "cases": [{**case, "file": "t.safetensors"}]}, own


def written(folder: Path, index: Any, raw: bytes, text: str | None = None) -> Path:
    (folder / "t.safetensors").write_bytes(raw)
    index = {**index, "files": {"t.safetensors": hashlib.sha256(raw).hexdigest()}}
    (folder / INDEX).write_text(json.dumps(index) if text is None else text, "utf-8")
    return folder


@given(data=st.data())
@examples(25)
@pytest.mark.covers("CONF-6")
def test_a_damaged_index_is_refused_in_a_line(small: Any, data: st.DataObject, tmp_path_factory: Any) -> None:
    index, tensors = small
    raw = safetensors.numpy.save(tensors)
    index = {**index, "files": {"t.safetensors": hashlib.sha256(raw).hexdigest()}}
    folder = written(tmp_path_factory.mktemp("v"), index, raw, data.draw(damaged(index)))
    loaded(folder)


@given(data=st.data())
@examples(40)
def test_a_file_of_tensors_that_lies(small: Any, data: st.DataObject, tmp_path_factory: Any) -> None:
    """Headers with other offsets, shapes, dtypes and lengths than the data has, under a hash that is right."""
    index, tensors = small
    raw = safetensors.numpy.save(tensors)
    length = int.from_bytes(raw[:8], "little")
    header = data.draw(damaged(json.loads(raw[8 : 8 + length]))).encode("utf-8", "surrogatepass")
    said = data.draw(st.sampled_from([len(header)] * 5 + [0, 1, len(header) + 1, 2**31, 2**63, 2**64 - 1]))
    body = raw[8 + length :][data.draw(st.sampled_from([0, 0, 0, 1, 8])) :]
    loaded(written(tmp_path_factory.mktemp("v"), index, said.to_bytes(8, "little") + header + body))


def loaded(folder: Path) -> None:
    """Vectors are refused in one line, or are such that all of them can be asked and judged."""
    found, refused = tried(UsageError, load_vectors, folder)
    if refused:
        assert refused.startswith("vector file ")
        return
    for case in found.cases:
        assert {"query", "key", "value"} <= set(case.inputs)
        assert type(case.repeat) is int
        for golden in case.expected.values():
            assert all(type(n) is int for n in (*golden.shape, *(golden.rows or ())))
            assert np.isfinite(golden.lo).all()


@pytest.mark.parametrize(
    "name",
    ["../t.safetensors", "/etc/passwd", "a/b.json", "t.pickle", "t.npy", "T.json", "t.json\n", "..json"],
)
def test_no_path_leads_out_of_the_folder_and_nothing_else_is_read(
    small: Any, tmp_path: Path, name: str
) -> None:
    index, tensors = small
    raw = safetensors.numpy.save(tensors)
    folder = tmp_path / "v"
    folder.mkdir()
    (tmp_path / "t.safetensors").write_bytes(raw)
    text = json.dumps({**index, "files": {name: hashlib.sha256(raw).hexdigest()}})
    with pytest.raises(UsageError, match="does not match"):
        load_vectors(written(folder, index, raw, text))


def test_what_is_read_is_what_has_the_hash(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes between two looks at it is looked at once."""
    index, tensors = small
    folder = written(tmp_path, index, safetensors.numpy.save(tensors))
    looked: list[str] = []
    once = read_bytes

    def counting(path: Path, *most: int) -> bytes:
        looked.append(path.name)
        raw = once(path, *most)
        path.write_bytes(b"another")
        return raw

    monkeypatch.setattr("conformance.vectors.load.read_bytes", counting)
    assert len(load_vectors(folder).cases) == 1
    assert looked == [INDEX, "t.safetensors"]


@pytest.mark.parametrize("text", EVIL[:9])
def test_names_from_elsewhere_are_refused_without_being_printed(
    small: Any, tmp_path: Path, text: str
) -> None:
    index, tensors = small
    index = {**index, "cases": [{**index["cases"][0], "id": f"a/{text}"}]}
    with pytest.raises(UsageError, match=r"cases\[0]\.id: .* does not match") as refused:
        load_vectors(written(tmp_path, index, safetensors.numpy.save(tensors)))
    assert not {"\x1b", "\u202e", "\n"} & set(str(refused.value))


def test_a_file_of_vectors_that_is_too_large(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, tensors = small
    folder = written(tmp_path, index, safetensors.numpy.save(tensors))
    monkeypatch.setattr("conformance.vectors.load.read_bytes", lambda path: read_bytes(path, 1000))
    with pytest.raises(UsageError, match="is damaged: it has more than 1000 bytes"):
        load_vectors(folder)
