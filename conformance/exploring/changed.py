"""The changed calls of an experiment, together: what those that fail have in common, beside those that pass."""

from dataclasses import replace

import numpy as np

from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.results import by_results
from conformance.running.messages import Answer
from conformance.vectors.case import Bound, Case


class Changed:
    """Calls that were asked, each with its own name."""

    def __init__(self) -> None:
        self.failing, self.passing = list[Failure](), list[Asked]()

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.failing) + len(self.passing)

    def add(self, case: Case, dtype: str, answer: Answer, failed: bool) -> None:
        """One more, of which an answer was judged."""
        if failed:
            outputs = answer.outputs if answer.kind == "outputs" else None
            self.failing.append(Failure(case, dtype, answer.kind == "error", outputs=outputs))
        else:
            self.passing.append(Asked(case, dtype))

    def there(self, policy: str) -> str:
        """Which results are wrong, and where in them: `only in the gradient of key, behind the first 16 keys`."""
        with np.errstate(all="ignore"):
            return "".join(each.there("") for each in by_results(self.failing, self.passing, policy))


def by_worst(case: Case) -> Case:
    """The case with W alone for its gradients: s of a first look says that an answer is right, not that it is wrong."""
    if not case.gradients:
        return case
    wide = {
        name: replace(
            golden,
            bounds={
                dtype: {policy: Bound(bound.worst, bound.worst) for policy, bound in of.items()}
                for dtype, of in golden.bounds.items()
            },
        )
        for name, golden in case.expected.items()
    }
    return replace(case, expected=wide)
