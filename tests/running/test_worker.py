"""The worker's own command line, served in this process."""

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from conformance.names import MHA, SDPA
from conformance.running import worker
from conformance.running.protocol import encode, start_message


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a worker with arguments: its exit status, and what it answers to the start."""

    def serve(*arguments: str) -> tuple[int, Any]:
        answers = io.BytesIO()
        monkeypatch.setattr(
            worker, "_take_over_streams", lambda: (io.BytesIO(encode(start_message())), Kept(answers))
        )
        monkeypatch.setattr(worker, "end_with_parent", lambda: None)
        with warnings.catch_warnings():
            return worker.main(arguments), json.loads(answers.getvalue())

    return serve


class Kept(io.RawIOBase):
    """A stream whose text outlives it."""

    def __init__(self, text: io.BytesIO) -> None:
        self._text = text

    def write(self, line: Any) -> int:
        return self._text.write(line)


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "helper_of_a_target.py").write_text("wide = True")
    path = tmp_path / "mine.py"
    path.write_text("def attention(query, key, value, *, w_q=0, w_k=0, w_v=0, w_o=0): ...")
    (tmp_path / "needy.py").write_text(
        "import helper_of_a_target\nattention = lambda query, key, value: query"
    )
    return str(path)


@pytest.mark.parametrize(("words", "operation"), [((), SDPA), (("--op", MHA), MHA)])
def test_the_operation_that_it_is_told(served: Any, source: str, words: Any, operation: str) -> None:
    status, hello = served(*words, "--", f"{source}:attention")
    assert (status, hello["operations"]) == (0, [operation])


def test_the_device_that_it_is_told(served: Any, source: str) -> None:
    assert served("--device", "cpu", f"{source}:attention")[0] == 0
    status, refusal = served("--device", "cuda", f"{source}:attention")
    assert status == 2
    assert refusal == {
        "error": "numpy makes no array on device 'cuda': ValueError: NumPy has the device 'cpu' only"
    }


def test_the_folders_that_it_is_told(served: Any, source: str, tmp_path: Path) -> None:
    needy = str(tmp_path / "needy.py:attention")
    status, refusal = served(needy)
    assert status == 2
    assert "no module named 'helper_of_a_target'" in refusal["error"]
    assert served("--path", str(tmp_path / "elsewhere"), "--path", str(tmp_path / "far"), needy)[0] == 0
