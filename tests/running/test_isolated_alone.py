"""What becomes of a process that fails in each way, told without one: verdicts, allowances, who is started again."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from conformance.errors import UsageError
from conformance.names import SDPA
from conformance.running import subprocess_target
from conformance.running.messages import Answer, Hello, Question
from conformance.running.process import DiedError, TimedOutError
from conformance.running.protocol import ProtocolError, answer_message, encode, hello_message
from conformance.running.subprocess_target import FIRST_CASE_SECONDS, Isolated
from conformance.vectors.case import Case

Make = Callable[..., Case]
HELLO = encode(hello_message(Hello("fake", "1", ("float32",), (), (SDPA,), "eager")))


def outputs(case_id: str) -> bytes:
    return encode(answer_message(case_id, Answer("unsupported", "not today")))


class Fake:
    """A process that answers what its script says, and dies of what it raises."""

    scripts: ClassVar[list[list[Any]]] = []
    made: ClassVar[list["Fake"]] = []

    def __init__(self, command: Sequence[str], echo: Any) -> None:
        self.script, self.alive, self.allowed = Fake.scripts.pop(0), True, list[float]()
        self.stopped = self.killed = 0
        Fake.made.append(self)

    def ask(self, line: bytes, timeout: float) -> bytes:
        self.allowed.append(timeout)
        said = self.script.pop(0)
        if isinstance(said, BaseException):
            self.alive = not isinstance(said, DiedError)
            raise said
        return said  # type: ignore[no-any-return]

    def kill(self) -> None:
        self.alive, self.killed = False, self.killed + 1

    def stop(self, line: bytes) -> str:
        self.alive, self.stopped = False, self.stopped + 1
        return "more"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Isolated]:
    def make(*scripts: list[Any]) -> Isolated:
        Fake.scripts, Fake.made = [[HELLO, *script] for script in scripts], []
        monkeypatch.setattr(subprocess_target, "Process", Fake)
        return Isolated(["fake"], "fake", 3.0)

    return make


@pytest.mark.parametrize(
    ("said", "kind", "message", "killed"),
    [
        (DiedError("the process exited with status 3"), "crash", "the process exited with status 3", 0),
        (TimedOutError(), "timeout", "no answer within 23 s", 1),
        (ProtocolError("cut off"), "wrong", "invalid reply: cut off", 1),
        (b"hello\n", "wrong", "invalid reply: 'hello' is not a line of JSON (does it print to stdout?)", 1),
        (LookupError("odd"), "wrong", "the answer cannot be read: LookupError: odd", 1),
    ],
)
def test_one_that_fails_is_told_and_replaced(
    scripted: Callable[..., Isolated], make_case: Make, said: Any, kind: str, message: str, killed: int
) -> None:
    question = Question(make_case(), "float32")
    asker = scripted([said], [outputs("core/plain")])
    answer = asker.ask(question)
    assert (answer.kind, answer.message) == (kind, message)
    assert (Fake.made[0].alive, Fake.made[0].killed) == (False, killed)
    assert answer.seconds > 0
    assert asker.ask(question).message == "not today"
    assert len(Fake.made) == 2


def test_the_first_question_of_each_process_has_more_time(
    scripted: Callable[..., Isolated], make_case: Make
) -> None:
    question, answer = Question(make_case(), "float32"), outputs("core/plain")
    asker = scripted([answer, answer, DiedError("gone")], [answer, answer])
    for _ in range(5):
        asker.ask(question)
    first, second = Fake.made
    assert first.allowed[1:] == [3.0 + FIRST_CASE_SECONDS, 3.0, 3.0]
    assert second.allowed[1:] == [3.0 + FIRST_CASE_SECONDS, 3.0]


def test_one_that_cannot_be_started_again_says_so_of_every_question(
    scripted: Callable[..., Isolated], make_case: Make
) -> None:
    question = Question(make_case(), "float32")
    asker = scripted([DiedError("gone")], [])
    Fake.scripts[1] = [encode({"error": "no such device"})]
    assert asker.ask(question).message == "gone"
    for _ in range(2):
        answer = asker.ask(question)
        assert (answer.kind, answer.message) == ("crash", "it could not be started again: no such device")
    assert asker.broken
    assert len(Fake.made) == 2


def test_another_group_gets_another_process_and_the_old_one_ends(
    scripted: Callable[..., Isolated], make_case: Make
) -> None:
    asker = scripted([outputs("core/plain")] * 2, [outputs("core/plain")])
    plain, alone = (
        Question(make_case(), "float32"),
        Question(make_case(), "float64", group=frozenset({"float64"})),
    )
    for question in (plain, plain, alone):
        assert asker.ask(question).kind == "unsupported"
    assert [fake.stopped for fake in Fake.made] == [1, 0]
    assert asker.close() == "more"


def test_one_that_says_something_else_at_its_start(scripted: Callable[..., Isolated]) -> None:
    asker = scripted([])
    Fake.scripts[0] = [ProtocolError("an endless line")]
    with pytest.raises(UsageError, match=r"^fake sent an invalid reply to `start`: an endless line; "):
        asker.start()
    assert Fake.made[0].killed == 1


def test_one_that_says_nothing_at_its_start_is_told_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_target, "Process", Fake)
    for died, message in (
        (TimedOutError(), "fake did not start within 120 s; do this"),
        (DiedError("the process exited", silent=True), "fake did not start: the process exited; do this"),
        (DiedError("its last line was: x"), "fake did not start: its last line was: x"),
    ):
        Fake.scripts, Fake.made = [[died]], []
        with pytest.raises(UsageError, match=f"^{message}$"):
            Isolated(["fake"], "fake", 3.0, remedy="; do this").start()


def test_what_the_process_writes_goes_to_whoever_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def made(command: Sequence[str], echo: Any) -> Any:
        given.append((command, echo))
        raise UsageError("not today")

    monkeypatch.setattr(subprocess_target, "Process", made)
    with pytest.raises(UsageError, match="not today"):
        Isolated(["fake"], "fake", 3.0, print).start()
    assert given == [(["fake"], print)]
