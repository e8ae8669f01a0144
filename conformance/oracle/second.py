"""The second tier as the judge asks it: some elements of a result, by their places in its golden."""

from dataclasses import dataclass, field

import numpy as np

from conformance.oracle.backward import gradients
from conformance.oracle.exact import elements, every_gradient, gradient_row
from conformance.oracle.twofold import Twofold
from conformance.vectors.case import Array, Golden
from conformance.vectors.generate.approximate import approximate
from conformance.vectors.generate.problem import Problem

MOST_PAIRS = 1 << 16
"""Pairs of a query and a key, up to which balls form every gradient: beyond, numbers of two floats do."""
MOST_NUMBERS = 1 << 21
"""Numbers of the keys, up to which balls form the gradient of one query."""


@dataclass
class Second:
    """Values of the second tier for one call."""

    problem: Problem
    bias_shape: tuple[int, ...]
    names: tuple[str, ...]
    gradients: bool
    _every: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def at_once(self, most: int) -> int:
        """How many elements may be asked for together: of long rows, which take a minute each, as few as will do."""
        p = self.problem
        return most if p.kv_len * (p.d_k + p.d_v) <= MOST_NUMBERS else 1

    def __call__(self, name: str, golden: Golden, flat: Array) -> tuple[Array, Array]:
        """Hi and lo of the elements at flat places of a result."""
        if self.gradients:
            return self._gradients(name, flat)
        shape = golden.hi.shape
        flattened = (self.problem.size, *shape[len(self.problem.batch) :])
        places = [tuple(int(i) for i in np.unravel_index(i, flattened)) for i in flat]
        found = elements(self.problem, name, places)
        both = np.array([found[place] for place in places]).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _gradients(self, name: str, flat: Array) -> tuple[Array, Array]:
        if name == "query" and not self.problem.layer and self._of_rows:
            query = self.problem.inputs["query"]
            places = [tuple(int(i) for i in np.unravel_index(i, query.shape)) for i in flat]
            rows = {row: gradient_row(self.problem, row) for row in {place[:-1] for place in places}}
            both = np.array([[part[place[-1]] for part in rows[place[:-1]]] for place in places]).reshape(
                -1, 2
            )
            return both[:, 0], both[:, 1]
        if not self._every:
            self._every = self._formed()
        hi, lo = self._every[name]
        return hi.ravel()[flat], lo.ravel()[flat]

    @property
    def _of_rows(self) -> bool:
        p = self.problem
        return p.visible.size > MOST_PAIRS and p.kv_len * (p.d_k + p.d_v) <= MOST_NUMBERS

    def _formed(self) -> dict[str, tuple[Array, Array]]:
        if self.problem.visible.size <= MOST_PAIRS:
            return every_gradient(self.problem, self.bias_shape, self.names)
        found = gradients(self.problem, approximate(self.problem), self.bias_shape, self.names, Twofold)
        return {name: (high, low) for name, (high, low, _) in found.items()}
