"""The changed calls of an experiment, together: what those that fail have in common, beside those that pass."""

import numpy as np

from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.results import by_results
from conformance.running.messages import Answer
from conformance.vectors.case import Case


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
