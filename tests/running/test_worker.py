"""The worker's own command line, served in this process."""

import io
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.names import MHA, SDPA
from conformance.running import worker
from conformance.running.messages import Question
from conformance.running.protocol import decode_array, encode, run_message, start_message


@pytest.fixture(autouse=True)
def opened() -> Iterator[None]:
    """The suite can be imported again afterwards, which a worker closes to its target."""
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders


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


def replies(source: str, *messages: Any) -> list[Any]:
    answers = io.BytesIO()
    lines = io.BytesIO(b"".join(encode(message) for message in (start_message(), *messages, {"cmd": "stop"})))
    assert worker.serve(lines, answers, source, None, None) == 0
    return [json.loads(line) for line in answers.getvalue().splitlines()][1:]


def test_a_reply_has_the_id_of_its_question(targets: Path, make_case: Any) -> None:
    questions = [run_message(Question(make_case(f"core/n{i}"), "float32")) for i in range(3)]
    assert [reply["id"] for reply in replies(f"{targets}:good", *questions)] == [
        "core/n0",
        "core/n1",
        "core/n2",
    ]


def test_a_call_is_made_as_often_as_it_is_asked_for(tmp_path: Path, make_case: Any) -> None:
    path = tmp_path / "counting.py"
    path.write_text(
        "calls = []\n"
        "def counted(query, key, value):\n"
        "    calls.append(1)\n"
        "    return query * 0 + len(calls)\n"
    )
    (reply,) = replies(f"{path}:counted", run_message(Question(make_case(repeat=3), "float32")))
    assert set(decode_array("output", reply["outputs"]["output"]).ravel()) == {3.0}
    (reply,) = replies(f"{path}:counted", run_message(Question(make_case(), "float32")))
    assert set(decode_array("output", reply["outputs"]["output"]).ravel()) == {1.0}


def test_what_a_target_raises_is_told_in_a_line_and_in_full_on_stderr(
    targets: Path, make_case: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    question = run_message(Question(make_case(), "float32"))
    (reply,) = replies(f"{targets}:raising", question)
    assert (reply["error"][:29], reply["raised"]) == ("ValueError: no luck at all (r", True)
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert replies(f"{targets}:interrupting", question) == [
        {"id": "core/plain", "error": "KeyboardInterrupt", "raised": True}
    ]
