"""What a case needs to fail, in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from conformance.diagnosis.finding import Diagnosed
from conformance.exploring.changed import Changed
from conformance.exploring.explain import joined
from conformance.exploring.refine import refined
from conformance.exploring.refute import unrefuted
from conformance.names import MHA, MHA_VJP
from conformance.vectors.case import Case

DOUBTED = 0.35
"""The share of the passing rows it was tried on that a mistake may fail, beside what an experiment found."""


@dataclass(frozen=True)
class Needs:
    """What one case needs to fail."""

    case: str
    dtype: str
    verb: str  # how it fails
    operation: str
    options: tuple[str, ...]
    sizes: tuple[str, ...]
    free: tuple[str, ...]  # what it fails without as well
    alone: bool = False  # whether it passes if it is asked alone
    others: str = ""  # what other failing calls do alone
    behind: str = ""  # what a call before it of the same shapes has otherwise, so that it fails
    there: str = ""  # which results are wrong, and where in them
    untried: tuple[str, ...] = ()  # what time did not allow to leave out
    changed: Changed = field(
        default_factory=Changed, compare=False, repr=False
    )  # what was asked to find it out

    @property
    def sentence(self) -> str:
        """`By experiment OPERATION is wrong only with a past and kv_len 65 or more; the same without mask (...)`."""
        if self.alone:
            others = f" {self.others}" if self.others else ""
            if self.behind:
                return (
                    f"By experiment {self.case} at {self.dtype} fails behind a call of the same shapes with "
                    f"{self.behind}, and passes alone: something is kept from one call to the next (IND-4).{others}"
                )
            return (
                f"By experiment {self.case} at {self.dtype} passes when it is asked alone in a new process: "
                f"earlier calls leave something behind (IND-4).{others}"
            )
        what = [*self.options, *self.sizes]
        takes = f"only with {joined(what)}" if what else "whatever is left out of the call"
        takes += f", and there {self.there}" if self.there else ""
        free = f"; the same without {joined(self.free)}" if self.free else ""
        left = f"; not tried without {joined(self.untried)}" if self.untried else ""
        return f"By experiment {self.operation} {self.verb} {takes}{free}{left} ({self.case}, {self.dtype})."


def settled(found: Diagnosed, needs: Sequence[Needs], policy: str) -> Diagnosed:
    """A diagnosis with what was found by experiment, without mistakes that this makes unlikely.

    What earlier calls leave behind is no mistake of a formula: one that explains few of the rows does so by chance.
    """
    found = unrefuted(found, [each.changed for each in needs], policy)
    findings, results = found.findings, found.results
    if any(each.alone for each in needs):
        found, results = replace(found, places=()), ()  # what is left behind may lie anywhere
        findings = tuple(f for f in findings if not f.contradicted and 2 * f.explains > found.failed)
    if any(
        each.options or each.sizes for each in needs
    ):  # a condition is known, and a look-alike would mislead
        findings = tuple(f for f in findings if f.contradicted <= DOUBTED * f.looked_at)
    return replace(
        found,
        experiments=tuple(each.sentence for each in needs),
        splits=refined(found.splits, needs),
        findings=findings,
        results=results,
    )


def covered(case: Case, needs: Needs) -> bool:
    """Whether a case has the options that another one needs, so that it may fail for the same reason."""
    layer = case.operation in (MHA, MHA_VJP), needs.operation in (MHA, MHA_VJP)
    if needs.alone:
        return False
    if layer[0] != layer[1] or case.gradients != needs.operation.endswith("_vjp"):
        return False
    names = {words.split("`")[1] for words in needs.options if words.startswith("`")}
    return names <= {*case.inputs, *case.options}
