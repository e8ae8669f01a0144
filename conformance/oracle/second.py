"""The second tier as the judge asks it: some elements of a result, by their places in its golden."""

from dataclasses import dataclass, field

import numpy as np

from conformance.oracle.backward import gradients
from conformance.oracle.exact import elements, every_gradient, gradient_elements
from conformance.oracle.twofold import Twofold
from conformance.vectors.case import Array, Golden
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import Problem

MOST_PAIRS = 1 << 16
"""Pairs of a query and a key, up to which balls form every gradient: beyond, those of the elements in question."""
LONG = 1 << 21
"""Numbers of the keys, from which on a row takes a second and more."""
ELEMENTWISE = ("query", "key", "value")
"""Gradients whose elements balls form alone, of any size; of those of a bias, of sinks and of a layer numbers of two
floats form all that are beyond."""


@dataclass
class Second:
    """Values of the second tier for one call."""

    problem: Problem
    bias_shape: tuple[int, ...]
    names: tuple[str, ...]
    gradients: bool
    keys: tuple[int, ...] = ()  # the rows of the gradients of key and value that are held, if not all
    _every: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def at_once(self, most: int) -> int:
        """How many elements may be asked for together: of long rows, which take a second each, as few as will do."""
        p = self.problem
        long = p.kv_len * (p.d_k + p.d_v) > LONG or (self.gradients and p.visible.size > MOST_PAIRS)
        return 1 if long else most

    def __call__(self, name: str, golden: Golden, flat: Array) -> tuple[Array, Array]:
        """Hi and lo of the elements at flat places of a result."""
        if self.gradients:
            return self._gradients(name, golden, flat)
        shape = golden.hi.shape
        flattened = (self.problem.size, *shape[len(self.problem.batch) :])
        places = [tuple(int(i) for i in np.unravel_index(i, flattened)) for i in flat]
        found = elements(self.problem, name, places)
        both = np.array([found[place] for place in places]).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _gradients(self, name: str, golden: Golden, flat: Array) -> tuple[Array, Array]:
        if self.keys:
            *before, row, column = np.unravel_index(flat, golden.hi.shape)
            whole = self.problem.inputs[name].shape
            entry = np.ravel_multi_index(before[:-1], golden.hi.shape[:-3]) if len(before) > 1 else 0
            place = (entry, before[-1], np.array(self.keys)[row], column)
            flat = np.ravel_multi_index(np.broadcast_arrays(*place), whole)
        if name in ELEMENTWISE and not self.problem.layer and self.problem.visible.size > MOST_PAIRS:
            shape = self.problem.inputs[name].shape
            places = [tuple(int(i) for i in np.unravel_index(i, shape)) for i in flat]
            found = gradient_elements(self.problem, name, places)
            both = np.array([found[place] for place in places]).reshape(-1, 2)
            return both[:, 0], both[:, 1]
        if not self._every:
            self._every = self._formed()
        hi, lo = self._every[name]
        return hi.ravel()[flat], lo.ravel()[flat]

    def _formed(self) -> dict[str, tuple[Array, Array]]:
        if self.problem.visible.size <= MOST_PAIRS:
            return every_gradient(self.problem, self.bias_shape, self.names)
        found = gradients(self.problem, approximate(self.problem), self.bias_shape, self.names, Twofold)
        return {name: (high, low) for name, (high, low, _) in found.items()}
