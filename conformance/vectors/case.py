"""A case and its golden values: what one vector holds, as plain data."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from conformance.dtypes import cast
from conformance.names import DTYPES, LSES, MHA_VJP, POSITIONAL, REDUCED_POLICIES, SDPA_VJP
from conformance.vectors.seeded import Seed

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Bound:
    """What one output may err, per element (spec/numerics.md)."""

    worst: Array  # W, worst case, same shape as Golden.hi
    rms: Array  # s, predicted RMS error, same shape as Golden.hi


@dataclass(frozen=True)
class Signature:
    """A direction in which a systematic error moves one output, and how far along it an answer may lie."""

    direction: Array  # g, float64, same shape as Golden.hi
    limits: Mapping[str, Mapping[str, float]]  # dtype -> policy -> largest |delta|; rule 3 asks no other


@dataclass(frozen=True)
class Golden:
    """The exact value of one output, as hi + lo in float64, and what may be erred around it."""

    shape: tuple[int, ...]  # of the whole output
    rows: tuple[int, ...] | None  # indices that hi and lo hold of the axis of rows; None = all of them
    hi: Array  # float64, shape with the axis of rows reduced to them
    lo: Array  # float64, same shape
    rms_applies: bool  # whether rule 2 may be asked of this output
    bounds: Mapping[str, Mapping[str, Bound]]  # dtype -> policy -> Bound
    signatures: Mapping[str, Signature] = field(default_factory=dict)  # by name; few outputs have any
    finite: bool = False  # whether every element outside of the rows is known to be finite


@dataclass(frozen=True)
class Case:
    """One call of one operation, with its golden outputs."""

    id: str  # chapter/name
    note: str  # one sentence: what it exposes
    operation: str
    covers: tuple[str, ...]  # requirement IDs
    features: tuple[str, ...]  # what a target must claim to be asked
    dtypes: tuple[str, ...]  # those that can hold it
    excluded: Mapping[str, str]  # "dtype" or "dtype/policy" -> why it has no row
    options: Mapping[str, Any]  # JSON scalars and lists
    inputs: Mapping[str, Array]  # exact values in the storage dtype
    expected: Mapping[str, Golden]  # by output name; empty for a case that must raise
    raises: bool = False  # any exception but NotImplementedError passes
    memory: Mapping[str, str] = field(default_factory=dict)  # operand -> how it lies in memory
    repeat: int = 1  # how many times the call is made; the last answer counts
    dtype_of: Mapping[str, str] = field(
        default_factory=dict
    )  # operand -> dtype that replaces the one under test
    seeded: Mapping[str, Seed] = field(default_factory=dict)  # operand -> how it is made; not stored

    @property
    def chapter(self) -> str:
        """The part of the ID before the slash."""
        return self.id.split("/", 1)[0]

    @property
    def gradients(self) -> bool:
        """Whether the outputs are gradients, named after the arguments that they belong to."""
        return self.operation in (SDPA_VJP, MHA_VJP)

    def label(self, output: str) -> str:
        """An output as messages call it."""
        return f"gradient of {output}" if self.gradients else output

    @property
    def described(self) -> dict[str, Any]:
        """What is asked, of whom and why, as JSON values: all but the arrays and how the call is made."""
        return {
            "id": self.id,
            "note": self.note,
            "operation": self.operation,
            "covers": list(self.covers),
            "features": list(self.features),
            "dtypes": list(self.dtypes),
            "excluded": dict(sorted(self.excluded.items())),
            "options": dict(self.options),
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every operand, without making one."""
        return {x: self.seeded[x].shape if x in self.seeded else self.inputs[x].shape for x in self.inputs}

    @property
    def elements(self) -> int:
        """How many elements go in, which is what a call costs."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def floating(self) -> tuple[str, ...]:
        """The operands that have a floating dtype."""
        return tuple(
            x
            for x in self.inputs
            if (self.seeded[x].share is None if x in self.seeded else self.inputs[x].dtype.kind == "f")
        )

    def operands(self, dtype: str) -> dict[str, Array]:
        """The input arrays in the dtype under test; bool and integer ones as they are."""
        return {
            name: cast(array, self.dtype_of.get(name) or held_in(name, dtype))
            if array.dtype.kind == "f"
            else array.copy()
            for name, array in self.inputs.items()
        }

    def policy(self, dtype: str, accuracy: str) -> str:
        """The policy that judges a dtype under a target's accuracy: the reduced ones concern float32 alone."""
        return "eager" if accuracy in REDUCED_POLICIES and dtype != "float32" else accuracy

    def judged(self, dtype: str, accuracy: str) -> bool:
        """Whether the case has a row for this dtype and accuracy."""
        if dtype not in self.dtypes:
            return False
        policy = self.policy(dtype, accuracy)
        return self.raises or all(policy in golden.bounds[dtype] for golden in self.expected.values())

    def judged_dtypes(self, accuracy: str) -> tuple[str, ...]:
        """The dtypes that the case has a row for under an accuracy."""
        return tuple(dtype for dtype in DTYPES if self.judged(dtype, accuracy))


def held_in(name: str, dtype: str) -> str:
    """The dtype of an operand where a dtype is tested: an lse is float32 for 16 bits (DTYPE-6, MERGE-2)."""
    return "float32" if name in LSES and dtype in ("float16", "bfloat16") else dtype


def lacking(operation: str, inputs: Collection[str]) -> list[str]:
    """The operands that every call of an operation has, and this one has not."""
    return [name for name in POSITIONAL[operation] if name not in inputs]


def query_axis(output: str, rank: int) -> int:
    """The axis that sampled rows are taken from: the last of lse, the last but one of the others."""
    return rank - 1 if output == "lse" else rank - 2
