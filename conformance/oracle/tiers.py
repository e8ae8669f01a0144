"""The first tier: values in NumPy, and what they may be off by."""

import numpy as np

from conformance.oracle.backward import gradients
from conformance.oracle.forward import Bounded, Kind, outputs
from conformance.oracle.near import Near
from conformance.oracle.twofold import Twofold
from conformance.vectors.case import Array
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.normal_form import Problem
from conformance.vectors.generate.oracle import Pair
from conformance.vectors.generate.whole import Values, place_of

Places = tuple[slice, slice]


class First:
    """Finds the values of one call, and keeps how far each may be off: float64 for what has fewer bits, else two."""

    def __init__(self, dtype: str) -> None:
        self.kind: Kind = Twofold if dtype == "float64" else Near
        self.values = Values(self._outputs, self._gradients)
        self._errors: list[tuple[str, Places, Array]] = []

    def error(self, problem: Problem, name: str, shape: tuple[int, ...]) -> Array:
        """A bound on the errors of one result, in the shape of its golden."""
        parts = [(places, error) for of, places, error in self._errors if of == name]
        if len(parts) == 1:
            return parts[0][1].reshape(shape)
        whole = np.zeros((problem.size, *shape[len(problem.batch) :]))
        for places, error in parts:
            whole[place_of(problem, name, *places)] = error
        return whole.reshape(shape)

    def _outputs(
        self, problem: Problem, a: Approximation, wanted: tuple[str, ...], places: Places
    ) -> dict[str, Pair]:
        return self._kept(outputs(problem, a, wanted, self.kind), places)

    def _gradients(
        self, problem: Problem, a: Approximation, bias_shape: tuple[int, ...], wanted: tuple[str, ...]
    ) -> dict[str, Pair]:
        found = gradients(problem, a, bias_shape, wanted, self.kind)
        return self._kept(found, (slice(None), slice(None)))

    def _kept(self, found: dict[str, Bounded], places: Places) -> dict[str, Pair]:
        """Remembers the errors. One that is not finite says that the value is worth nothing."""
        pairs = {}
        for name, (high, low, error) in found.items():
            sound = np.isfinite(high) & np.isfinite(low) | ~np.isfinite(high) & (error == 0)
            error = np.where(sound & ~np.isnan(error), error, np.inf)
            self._errors.append((name, places, error))
            # what is worth nothing stands as zero until the second tier says it
            pairs[name] = np.where(sound, high, 0.0), np.where(sound, low, 0.0)
        return pairs
