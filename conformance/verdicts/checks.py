"""The checks of a verdict, each a question with yes or no, in the order in which they are made."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from conformance.exploring.counter import Dice
from conformance.problems.problem import Problem
from conformance.verdicts import address
from conformance.verdicts.calls import Call
from conformance.verdicts.hearing import Hearing, Wrong

Found = Wrong | str | None
"""What is wrong: an answer, something that was seen, or nothing."""
LAYOUTS = ("transposed", "stepped", "heads", "packed")
"""How operands may lie in memory, beside in one piece."""


@dataclass(frozen=True)
class Check:
    """A question on a program."""

    name: str
    asks: str  # what it asks, in words
    look: Callable[[Hearing], Found]
    last: bool = False  # made when everything else has been asked


# Numbers: fresh in each call


def _values(name: str, asks: str, size: str = "any", **families: str) -> Check:
    def look(hearing: Hearing) -> Found:
        return hearing.wrong(hearing.draw.call(name, _families(hearing.problem, families), size))

    return Check(name, asks, look)


def _families(problem: Problem, families: Mapping[str, str]) -> dict[str, str]:
    """Of a layer the projections make query, key and value: only what comes in is drawn."""
    if problem.layer:
        return {"query": families["query"]} if families.get("query") in ("f0", "n1", "i") else {}
    if problem.latent:  # values are columns of the keys
        return {name: family for name, family in families.items() if name != "value"}
    return dict(families)


VALUES = (
    _values("signed", "numbers of both signs, the smallest size", "least"),
    _values("signed-more", "numbers of both signs, another size"),
    _values("sharp", "logits so large that few keys count", query="n2"),
    _values("mantissa", "numbers with every bit of the dtype in use", query="f0", key="f0", value="f0"),
    _values("integers", "small whole numbers", query="i", key="i", value="i"),
    _values("loud", "one key that outweighs the others", "edge", key="l"),
    _values(
        "loud-query",
        "one query whose logits are far larger than those of the others",
        "edge",
        query="l",
        key="n1",
    ),
    _values("cancelling", "values that cancel but for a small rest", "edge", value="c"),
    _values("edge", "a length beside the edge of a tile", "edge"),
    _values("edge-more", "another length beside the edge of a tile", "edge", query="n1"),
)


def _far(hearing: Hearing) -> Found:
    families = hearing.draw.far(hearing.problem.dtypes[0])
    return hearing.wrong(hearing.draw.call("far", families))


def _addressed(size: str) -> Callable[[Hearing], Found]:
    def look(hearing: Hearing) -> Found:
        call = hearing.draw.call(f"address-{size}", size=size)
        return hearing.wrong(replace(call, address=True, lse=False))

    return look


def _own(hearing: Hearing) -> Found:
    return hearing.wrong(hearing.draw.own("own"))


def _own_address(hearing: Hearing) -> Found:
    return hearing.wrong(replace(hearing.draw.own("own-address"), address=True, lse=False))


def _hidden(hearing: Hearing) -> Found:
    return hearing.wrong(replace(hearing.draw.call("hidden", size="edge"), hidden=True))


# Gradients


def _gradient(name: str, asks: str, size: str = "any", **families: str) -> Check:
    return Check(name, asks, lambda hearing: hearing.wrong(hearing.draw.gradient(name, families, size)))


def _gradient_again(hearing: Hearing) -> Found:
    call = hearing.draw.gradient("gradient-again")
    return hearing.wrong(call) or hearing.wrong(replace(call, change="number value"))


GRADIENTS = (
    _gradient("gradient", "gradients of query, key and value, the smallest size", "least"),
    _gradient("gradient-sharp", "gradients where few keys count", query="n2"),
    _gradient("gradient-edge", "gradients at a length beside the edge of a tile", "edge"),
    Check(
        "gradient-again",
        "gradients of a call that differs in one number from the one before",
        _gradient_again,
    ),
)


# The same shapes with other data: what is remembered shows


def _small(hearing: Hearing, change: str) -> Call:
    """A small call that is asked before and after a change; checks of the same change share what is certified."""
    return hearing.draw.call(f"changed-{change}", size="small")


def _again(hearing: Hearing) -> Found:
    call = _small(hearing, "number key")
    return hearing.wrong(call) or hearing.wrong(call)


def _changed(change: str, **beside: bool) -> Callable[[Hearing], Found]:
    def look(hearing: Hearing) -> Found:
        call = _small(hearing, change)
        hearing.ask(call)
        hearing.ask(call)
        # there and back, so that a program which skips every second call is met on either foot
        found = hearing.wrong(replace(call, change=change), **beside) or hearing.wrong(call)
        return found and replace(
            found, text=f"asked after a call that differs in {SAID[change]}: {found.text}"
        )

    return look


SAID = {
    "number value": "one number of value",
    "number key": "one number of key",
    "number query": "one number of query",
    "swap value": "the order of two rows of value",
    "swap key": "the order of two rows of key",
}


def _in_place(hearing: Hearing) -> Found:
    call = _small(hearing, "number value")
    hearing.ask(call)
    found = hearing.wrong(replace(call, change="number value"), in_place=True)
    return found and replace(
        found, text=f"asked with the same arrays, in which one number is another one: {found.text}"
    )


def _moved(hearing: Hearing) -> Found:
    call = hearing.draw.call("moved", size="small")
    dice = Dice("moved", hearing.draw.seed)
    memory = [dice.choice(LAYOUTS) if argument.what in ("query", "key", "value", "input") else None
              for argument in hearing.problem.call.arguments]  # fmt: skip
    found = hearing.wrong(call, memory=memory)
    return found and replace(found, text=f"asked with operands that do not lie in one piece: {found.text}")


def _unwritten(hearing: Hearing) -> Found:
    call = hearing.draw.call("unwritten", size="small")
    hearing.ask(call)
    found = hearing.wrong(call, poison=hearing.shapes(call))
    return found and replace(found, text=f"asked when freed memory holds NaN: {found.text}")


def _thread(hearing: Hearing) -> Found:
    found = hearing.wrong(hearing.draw.call("thread", size="small"), thread=True)
    return found and replace(found, text=f"asked from another thread: {found.text}")


def _stream(hearing: Hearing) -> Found:
    found = hearing.wrong(hearing.draw.call("stream", size="small"), stream=True)
    return found and replace(found, text=f"asked in another stream of the device: {found.text}")


def _late(hearing: Hearing) -> Found:
    found = hearing.wrong(hearing.draw.call("late", size="small"), late=True)
    return found or hearing.seen.get("late")


def _last(hearing: Hearing) -> Found:
    found = hearing.wrong(hearing.draw.call("last", {}, "small"))
    return found and replace(found, text=f"asked last, after everything else: {found.text}")


STATE = (
    Check("again", "the same call twice", _again),
    Check("one-value", "one number of value is another one", _changed("number value")),
    Check("one-key", "one number of key is another one", _changed("number key")),
    Check("one-query", "one number of query is another one", _changed("number query")),
    Check("swapped", "two rows of value change places, so that sums stay the same", _changed("swap value")),
    Check("in-place", "the same arrays with another number in them", _in_place),
    Check("moved", "operands that do not lie in one piece", _moved),
    Check("unwritten", "freed memory holds NaN", _unwritten),
    Check("thread", "asked from another thread", _thread),
    Check("late", "the answer stays as it was returned", _late),
)


# What is seen beside the numbers


def _seen(name: str, asks: str) -> Check:
    return Check(name, asks, lambda hearing: hearing.seen.get(name), last=True)


def _library(hearing: Hearing) -> Found:
    hearing.ask(hearing.draw.call("library"), profile=True)
    text = hearing.seen.get("library")
    return text and f"it {text}: the problem asks for attention of the program's own"


CONDUCT = (
    _seen("inputs", "operands are left as they were"),
    _seen("storage", "the answer has memory of its own"),
    _seen("plain", "the answer is a plain array"),
    _seen("earlier", "earlier answers are left as they were"),
    _seen("suite", "nothing of the suite is read"),
)


def checks(problem: Problem, own: bool, device: str | None) -> Iterator[Check]:
    """The checks of a problem; `own` adds that no attention of a library is called."""
    yield from VALUES
    sample = _sample(problem)
    if not (problem.layer or problem.latent or problem.options.scale == 0):
        yield Check("far", "logits far from zero", _far)
    if address.possible(sample.recipe):
        yield Check("address", "each query asks one key, whose value is its address", _addressed("edge"))
        yield Check("own-address", "the same at the problem's own size", _own_address)
    if problem.free:
        yield Check("own", "the problem's own size", _own)
    if not problem.finite and problem.options.kv_lengths:
        yield Check("hidden", "NaN in slots that kv_lengths leaves out", _hidden)
    if problem.gradients:
        yield from GRADIENTS
    yield from STATE
    if (device or "").startswith("cuda"):
        yield Check("stream", "asked in another stream of the device", _stream)
    yield Check("last", "numbers of both signs, asked after everything else", _last)
    yield from CONDUCT
    if own:
        yield Check("library", "no attention of a library is called", _library, last=True)


def _sample(problem: Problem) -> Call:
    from conformance.verdicts.calls import Draw

    return Draw(problem, 0).own("sample")
