"""Right programs on drawn calls: no rule may refuse one.

    python -m tests.exploring.soundness --seed 1 --calls 3000 --out sound.json

Goes on where the file left off. `--share 1/2` takes every second call, so that shares run beside each other.
`--merge A.json B.json` adds them up and runs nothing.
"""

import argparse
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.exploring.claims import Claims
from conformance.exploring.draw import draw
from conformance.exploring.entries import judged_entries
from conformance.exploring.needs import needs
from conformance.exploring.recipe import Recipe, token
from conformance.exploring.trial import certify_recipe
from conformance.names import DENSE, DTYPES, FEATURES, REDUCED_POLICIES, SERVING
from conformance.oracle import Certified, WrongOracleError
from conformance.running.invoke import call
from conformance.running.target import Target, adopt, load
from conformance.soundness.implementations import BACKWARD_STYLES, STYLES, implementation
from tests.exploring.flash import FLASHES

FRAMEWORKS = {
    "numpy": 1, "torch": 1, "torch-sdpa-math": 1, "torch-sdpa-flash": 1, "array-api-strict": 5, "jax": 10,
    "jax-jit": 100,
}  # fmt: skip
"""Each with how many drawn calls one is asked of: what compiles every shape anew takes seconds."""
WRONG: dict[str, Callable[[Recipe], bool]] = {
    "torch-sdpa-flash": lambda r: bool(r.broken) or (r.causal and r.scale is not None and r.scale <= 0),
    "torch-sdpa-math": lambda r: bool(r.broken),
}
"""Calls on which a framework is wrong by a snippet without the suite: spec/found.md."""
STYLE_WORK = 2**20
"""Products of two numbers up to which the styles are asked: their loops and pairs take time and memory."""
EVERY = 20
PLAIN = Claims(DENSE, frozenset(FEATURES) - {"validation", "strict_masking"}, DTYPES)
STRICT = Claims(DENSE, frozenset(FEATURES) - {"validation"}, DTYPES)
SERVED = Claims(SERVING, frozenset(FEATURES) - {"validation", "strict_masking"}, DTYPES)
"""Packed, paged, latent and merged attention, by programs that gather."""
GATHERING = {"numpy": 1, "torch": 1, "array-api-strict": 3, "jax": 20, "tests.running.gathering": 1}
STRICT_ONE_IN = 5
"""Few programs are right where hidden numbers are NaN: such calls are one in so many."""


@dataclass
class Sound:
    """What came so far."""

    seed: int
    share: str
    next: int = 0  # the call that is drawn next
    drawn: int = 0
    certified: int = 0
    whole: int = 0  # answers that a first look does not say enough of
    doubted: int = 0  # the two tiers of the oracle disagree
    seconds: float = 0.0  # of processor time
    judged: dict[str, int] = field(default_factory=dict)  # program -> answers that were judged
    refused: dict[str, int] = field(default_factory=dict)  # program -> answers that were none
    alarms: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Answers that were judged."""
        return sum(self.judged.values())

    def line(self) -> str:
        """How it stands."""
        return (
            f"{self.total} answers of {len(self.judged)} right programs to {self.certified} drawn calls: "
            f"{len(self.alarms)} false alarms, {self.doubted} calls on which the tiers of the oracle disagree; "
            f"{self.seconds:.0f} CPU s"
        )


class Programs:
    """The right programs."""

    def __init__(self, frameworks: Iterable[str], sound: Sound, serving: bool = False) -> None:
        self._forward: list[tuple[Target, str]] = []
        self._backward: list[tuple[Target, str]] = []
        if not serving:
            self._forward = [(adopt(implementation(s), s.name), s.policy) for s in STYLES]
            self._forward += [(adopt(f, f.name), f.accuracy) for f in FLASHES]
            self._backward = [(adopt(implementation(s), s.name), s.policy) for s in BACKWARD_STYLES]
        self._frameworks: list[tuple[str, Target, int]] = []
        for name in frameworks:
            try:
                self._frameworks.append((name, load(name), {**FRAMEWORKS, **GATHERING}[name]))
            except UsageError as error:
                sound.absent[name] = str(error)

    def of(self, recipe: Recipe, number: int) -> Iterator[tuple[Target, str]]:
        """Those that are asked a call, with the policy each is held to."""
        styles = self._backward if recipe.gradients else self._forward
        hidden = bool(recipe.poison) or "strict_masking" in needs(recipe)
        if not hidden and recipe.work <= STYLE_WORK and recipe.entries < 1000:
            for target, policy in styles:
                if policy not in REDUCED_POLICIES or recipe.dtype == "float32":
                    yield target, policy
        for name, target, one_in in self._frameworks:
            if number % one_in == 0 and not (name in WRONG and WRONG[name](recipe)):
                yield target, target.hello.accuracy


def run(
    sound: Sound, programs: Programs, calls: int, seconds: float, claims: Claims | None = None
) -> Iterator[None]:
    """Goes on with a share until so many calls were drawn; stops after each for whoever keeps it."""
    of = int(sound.share.partition("/")[2])
    began = time.process_time()
    while sound.drawn < calls and time.process_time() - began < seconds:
        before = time.process_time()
        number = sound.next
        sound.next, sound.drawn = number + of, sound.drawn + 1
        recipe = draw(claims or (PLAIN if number // of % STRICT_ONE_IN else STRICT), sound.seed, number)
        if recipe is not None and claims is None:
            recipe = replace(recipe, poison="") if number // of % STRICT_ONE_IN else recipe
        if recipe is not None:
            _tried(sound, programs, recipe, number // of)
        sound.seconds += time.process_time() - before
        yield


def _tried(sound: Sound, programs: Programs, recipe: Recipe, number: int) -> None:
    asked = list(programs.of(recipe, number))
    policies = tuple(dict.fromkeys(policy for _, policy in asked))
    entries = judged_entries(recipe)
    if entries is not None or not policies:
        return
    certified = certify_recipe(recipe, f"explore/{number}", policies, look=True)
    if certified is None:
        return
    sound.certified += 1
    whole: dict[str, Certified | None] = {}  # by policy, where a first look does not do
    for target, policy in asked:
        name = target.hello.name
        if not certified.case.judged(recipe.dtype, certified.case.policy(recipe.dtype, policy)):
            continue
        outputs = _answer(target, certified, recipe)
        if outputs is None:
            continue
        if isinstance(outputs, str):
            sound.refused[name] = sound.refused.get(name, 0) + 1
            continue
        try:
            message = ""
            if certified.passes(outputs, policy) is None:
                if policy not in whole:
                    whole[policy] = certify_recipe(recipe, f"explore/{number}", (policy,))
                judge = whole[policy]
                assert judge is not None
                message = judge.judge(outputs, policy).message
                sound.whole += 1
        except WrongOracleError as error:
            sound.doubted += 1
            sound.alarms.append(f"oracle: {token(recipe)}: {error}")
            return
        sound.judged[name] = sound.judged.get(name, 0) + 1
        if message:
            sound.alarms.append(f"{name}: {policy}: {token(recipe)}: {message}")


def _answer(target: Target, certified: Certified, recipe: Recipe) -> Mapping[str, Any] | str | None:
    """Outputs, why there are none, or None where the call is not claimed."""
    case = certified.case
    if not needs(recipe) <= set(target.hello.features) or case.operation not in target.calls:
        return None
    if recipe.dtype not in target.hello.dtypes:
        return None
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = call(target, case.operation, case.operands(recipe.dtype), case.options, case.memory)
    return answer.outputs if answer.kind == "outputs" else answer.message or answer.kind


def merged(sounds: Iterable[Sound]) -> Sound:
    """Shares added up."""
    whole = Sound(-1, "all")
    for each in sounds:
        whole.drawn, whole.certified = whole.drawn + each.drawn, whole.certified + each.certified
        whole.whole += each.whole
        whole.doubted, whole.seconds = whole.doubted + each.doubted, whole.seconds + each.seconds
        whole.alarms += each.alarms
        for mine, theirs in ((whole.judged, each.judged), (whole.refused, each.refused)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count
    return whole


def read(path: Path) -> Sound:
    """What a file holds."""
    return Sound(**json.loads(path.read_text()))


def main() -> None:
    """Prints how it stands now and then; exit 1 after a false alarm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=300, help="drawn by this share")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of processor time")
    parser.add_argument("--share", default="1/1")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--serving", action="store_true", help="the operations of spec/serving.md instead")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--merge", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.merge:
        sound = merged(map(read, asked.merge))
    else:
        part, _ = map(int, asked.share.split("/"))
        if asked.out is not None and asked.out.exists():
            sound = read(asked.out)
            if (sound.seed, sound.share) != (asked.seed, asked.share):
                parser.error(f"{asked.out} is of seed {sound.seed} and share {sound.share}")
        else:
            sound = Sound(asked.seed, asked.share, next=part - 1)
        programs = Programs(
            asked.framework or (GATHERING if asked.serving else FRAMEWORKS), sound, asked.serving
        )
        claims = SERVED if asked.serving else None
        for number, _ in zip(itertools.count(1), run(sound, programs, asked.calls, asked.seconds, claims)):
            if asked.out is not None and number % EVERY == 0:
                keep(sound, asked.out)
                print(sound.line(), flush=True)
        if asked.out is not None:
            keep(sound, asked.out)
    for name, count in sorted(sound.judged.items()):
        print(f"{count:8} {name}")
    for line in sound.alarms:
        print(line)
    print(sound.line())
    sys.exit(1 if sound.alarms else 0)


def keep(sound: Sound, path: Path) -> None:
    """Writes the file whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(asdict(sound), indent=1))
    beside.replace(path)


if __name__ == "__main__":
    main()
