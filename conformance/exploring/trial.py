"""One call: made, asked, judged by what is certified on the spot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.exploring import laid
from conformance.exploring.arrays import arrays, options
from conformance.exploring.counter import Dice
from conformance.exploring.earlier import earlier
from conformance.exploring.entries import judged_entries, of_entries, placed
from conformance.exploring.recipe import Recipe, token
from conformance.judging.verdict import Judgement, Row
from conformance.names import APPEND, LATENT, MERGE, MHA, PACKED, PAGED, POLICIES, REDUCED_POLICIES, SDPA
from conformance.oracle import Certified, UnjudgedError, certify
from conformance.oracle.certified import WrongOracleError
from conformance.running.messages import Answer, Hello, Question
from conformance.running.runner import VERDICT_OF, Asker
from conformance.running.select import group
from conformance.running.stored_output import keep
from conformance.vectors.case import Array, Case

COVERS = {
    "mask": "MASK-1", "attn_bias": "ATT-7", "is_causal": "MASK-6", "q_offset": "MASK-8", "window": "MASK-10",
    "kv_lengths": "MASK-12", "scale": "ATT-4", "softcap": "ATT-5", "sinks": "ATT-12",
    "return_weights": "ATT-13", "return_lse": "ATT-14", "cache": "CACHE-1", "gqa": "HEAD-2",
    "value_dim": "SHAPE-3", "broadcast": "SHAPE-8", "empty": "MASK-3", "strict_masking": "MASK-5",
    "segments": "MASK-17", "grad_lse": "GRAD-16", "append": "PAGE-7",
}  # fmt: skip
"""The requirement that each feature stands for."""
FIRST = {
    SDPA: "ATT-1", MHA: "PROJ-1", PACKED: "PACK-1", PAGED: "PAGE-1", APPEND: "PAGE-7", LATENT: "LAT-1",
    MERGE: "MERGE-1",
}  # fmt: skip
"""The requirement that each operation without gradients stands for."""
WHOLE = 2**20
"""Products of two numbers up to which every query row is judged; of more, as many rows as they take."""
NOT_TWICE = "not the same twice"


@dataclass(frozen=True)
class Tried:
    """What became of a call."""

    recipe: Recipe
    row: Row | None  # None where nothing is derived for the call
    case: Case | None = None
    outputs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the target is wrong here."""
        return self.row is not None and self.row.failed

    @property
    def kind(self) -> str:
        """The verdict, and of a failure that is no number what it is."""
        if self.row is None:
            return ""
        if self.row.verdict == "error":
            return f"error {self.row.message.partition(':')[0]}"
        twice = self.row.message.startswith(NOT_TWICE)
        return f"{self.row.verdict} twice" if twice else self.row.verdict


class Trials:
    """Asks one target, one call after another."""

    def __init__(
        self, asker: Asker, hello: Hello, policy: str, another: Callable[[], Asker] | None = None
    ) -> None:
        self._askers = {frozenset[str](): asker}
        self._another = another  # makes one for dtypes that need a process of their own
        self._hello, self._policy = hello, policy
        self.calls = 0
        self.doubted = 0  # calls on which the two tiers of the oracle disagree, which are not judged

    @property
    def policy(self) -> str:
        """What the target may round."""
        return self._policy

    @property
    def hello(self) -> Hello:
        """What the target says of itself."""
        return self._hello

    def restart(self) -> None:
        """The next call goes to a new process, which has seen none before."""
        for asker in self._askers.values():
            asker.close()

    def kill(self) -> None:
        """Ends every process at once."""
        for asker in self._askers.values():
            asker.kill()

    def ask(self, recipe: Recipe, name: str = "explore/reduced", look: bool = False) -> Tried:
        """Asks a call, and judges the answer: by a first look, where one is asked for and says that it passes."""
        entries = judged_entries(recipe)
        certified = certify_recipe(recipe, name, (self._policy,), entries, look)
        if certified is None:
            return Tried(recipe, None)
        case = certified.case if entries is None else replace(certified.case, inputs=arrays(recipe))
        question = Question(case, recipe.dtype, "", group(case, recipe.dtype, self._hello))
        before: Answer | None = None
        for inputs, given in earlier(recipe, case.inputs):
            before = self._asked(replace(question, case=replace(case, inputs=inputs, options=given)))
        answer = self._asked(question)
        row = _row(case, recipe, answer)
        if answer.kind != "outputs":
            return Tried(recipe, row, case)
        if look:
            judged = [answer] if before is None or recipe.again != "same" else [answer, before]
            seen = [self._looked(certified, recipe, each, entries) for each in judged]
            if passed := all(seen) and seen[0]:
                row = replace(row, verdict="pass", grade=passed.grade, worst=passed.worst)
                return Tried(recipe, row, case)
            certified = certify_recipe(recipe, name, (self._policy,), entries)
            assert certified is not None
            case = certified.case if entries is None else replace(certified.case, inputs=case.inputs)
        if entries is not None:
            return self._some(recipe, certified, case, row, answer, entries)
        try:
            judgement = certified.judge(answer.outputs, self._policy)
        except (UnjudgedError, WrongOracleError) as error:
            self.doubted += isinstance(error, WrongOracleError)
            return Tried(recipe, None)
        case = certified.case  # the second tier may have put its values in it
        failed = judgement.verdict == "fail"
        if recipe.again == "same" and before is not None and self._other(certified, before, failed):
            row = replace(row, verdict="fail", message=f"{NOT_TWICE}: {_difference(before, answer)} (IND-4)")
            return Tried(recipe, row, case, answer.outputs)
        got, left_out = keep(answer.outputs) if failed else ((), "")
        row = replace(
            row, verdict=judgement.verdict, message=judgement.message, worst=judgement.worst, got=got,
            error_over_bound=judgement.error_over_bound, rms_over_sigma=judgement.rms_over_sigma,
            grade=judgement.grade, got_left_out=left_out,
        )  # fmt: skip
        return Tried(recipe, row, case, answer.outputs)

    def _looked(
        self, certified: Certified, recipe: Recipe, answer: Answer, entries: tuple[int, ...] | None
    ) -> Judgement | None:
        """What a first look says of an answer, if it says anything."""
        if answer.kind != "outputs":
            return None
        outputs = answer.outputs if entries is None else of_entries(answer.outputs, entries, recipe.entries)
        return certified.passes(outputs, self._policy)

    def _some(
        self,
        recipe: Recipe,
        certified: Certified,
        case: Case,
        row: Row,
        answer: Answer,
        entries: tuple[int, ...],
    ) -> Tried:
        """What becomes of a call of which some entries are judged; its arrays are too large to be kept."""
        try:
            judgement = certified.judge(of_entries(answer.outputs, entries, recipe.entries), self._policy)
        except (UnjudgedError, WrongOracleError) as error:
            self.doubted += isinstance(error, WrongOracleError)
            return Tried(recipe, None)
        row = replace(
            row, verdict=judgement.verdict, message=judgement.message, worst=judgement.worst,
            error_over_bound=judgement.error_over_bound,
            got_left_out=f"{recipe.entries} batch entries, of which {len(entries)} are judged"
            if judgement.verdict == "fail"
            else "",
        )  # fmt: skip
        return Tried(recipe, placed(row, entries), case)

    def _other(self, certified: Certified, first: Answer, failed: bool) -> bool:
        """Whether the first answer is right and the second wrong, or the other way round.

        Two right answers may differ by roundings: the specification asks for no equal bits (spec/untested.md).
        """
        if first.kind != "outputs":
            return True
        return (certified.judge(first.outputs, self._policy).verdict == "fail") != failed

    def _asked(self, question: Question) -> Answer:
        self.calls += 1
        place = question.group if self._another is not None else frozenset[str]()
        if self._another is not None and place not in self._askers:
            self._askers[place] = self._another()
        return self._askers[place].ask(question)


def certify_recipe(
    recipe: Recipe,
    name: str,
    policies: tuple[str, ...] = POLICIES,
    entries: tuple[int, ...] | None = None,
    look: bool = False,
) -> Certified | None:
    """The call with its expected values; None where nothing is derived for it."""
    inputs = arrays(recipe)
    if entries is not None:
        inputs = of_entries(inputs, entries, recipe.entries)
    own = tuple("eager" if p in REDUCED_POLICIES and recipe.dtype != "float32" else p for p in policies)
    try:
        certified = certify(
            recipe.operation, inputs, options(recipe), recipe.dtype, rows=rows_of(recipe), name=name,
            policies=own, look=look,
        )  # fmt: skip
    except UnjudgedError:
        return None
    case = replace(
        certified.case, covers=covers(recipe, certified.case), note=token(recipe), memory=dict(recipe.memory)
    )
    return replace(certified, case=case)


def rows_of(recipe: Recipe) -> tuple[int, ...] | None:
    """The query rows that are judged: all, or the first, the last, both sides of tile edges and some others."""
    r = recipe
    if r.operation in (PACKED, APPEND, MERGE):
        return None
    if r.gradients or r.work <= WHOLE or r.q_len < 3:
        return None
    count = max(WHOLE // max(r.work // r.q_len, 1), 2)
    edges = [n for tile in (128, 64, 32, 16) for n in range(tile - 1, r.q_len, tile)]
    wanted = dict.fromkeys([r.q_len - 1, 0])
    dice = Dice("rows", r.stream, r.q_len)
    while len(wanted) < min(count, r.q_len):
        row = dice.choice(edges) + dice.below(2) if edges and dice.chance(50) else dice.below(r.q_len)
        wanted[min(row, r.q_len - 1)] = None
    return tuple(sorted(wanted)) if len(wanted) < r.q_len else None


def covers(recipe: Recipe, case: Case) -> tuple[str, ...]:
    """The requirements that a call is about."""
    first = "GRAD-1" if recipe.gradients else FIRST[recipe.operation]
    found = [first, *(COVERS[name] for name in case.features if name in COVERS)]
    found += ["IND-2"] if recipe.memory else []
    found += ["IND-4"] if recipe.again else []
    return tuple(dict.fromkeys([*found, *(laid.COVERS[recipe.operation, x] for x in recipe.layout)]))


def _row(case: Case, recipe: Recipe, answer: Answer) -> Row:
    return Row(
        case=case.id, operation=case.operation, dtype=recipe.dtype, verdict=VERDICT_OF[answer.kind],
        covers=case.covers, features=case.features, message=answer.message, seconds=answer.seconds,
    )  # fmt: skip


def _difference(one: Answer, other: Answer) -> str:
    """What came the first time and the second."""
    if one.kind != "outputs":
        return f"first {one.kind} ({one.message}), then outputs"
    for name in other.outputs:
        if name not in one.outputs:
            return f"{name} came the second time only"
        first, second = one.outputs[name], other.outputs[name]
        if first.shape != second.shape:
            return f"{name} has shape {first.shape}, then {second.shape}"
        apart = (first != second) & ~((first != first) & (second != second))
        if apart.any():
            place = tuple(int(i) for i in np.argwhere(apart)[0])
            index = ", ".join(map(str, place))
            return f"{name}[{index}] is {float(first[place]):.9g}, then {float(second[place]):.9g}"
    return "other outputs"
