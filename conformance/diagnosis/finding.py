"""What a diagnosis says: models that reproduce failures, and how far."""

from dataclasses import dataclass

from conformance.defects.defect import Defect
from conformance.diagnosis.failing import Failure
from conformance.diagnosis.model import Model
from conformance.diagnosis.places import Place
from conformance.diagnosis.results import Results
from conformance.diagnosis.split import Split


@dataclass(frozen=True)
class Finding:
    """A model that reproduces failures of a run."""

    model: Model
    explained: tuple[Failure, ...]
    of: int  # every failing row of the run
    alike: tuple[Model, ...] = ()  # models that say the same of everything that was looked at
    contradicted: int = 0  # passing rows that the model would fail
    looked_at: int = 0  # passing rows that it was asked
    partly: bool = False  # whether other elements of these rows are right, which the model has wrong

    @property
    def explains(self) -> int:
        """How many failing rows it reproduces."""
        return len(self.explained)

    @property
    def worth(self) -> float:
        """How many it reproduces, less by the share of the passing rows that it would fail, and if only in part."""
        return self.explains * (1 - self.contradicted / max(self.looked_at, 1)) * (0.5 if self.partly else 1)

    @property
    def defects(self) -> tuple[Defect, ...]:
        """The mistakes that are made: one, or two at once."""
        return self.model.defects


@dataclass(frozen=True)
class Note:
    """What is said of failing rows without a model: by the size of their errors, by a second answer, by a library."""

    kind: str  # in a word
    sentence: str  # without a full stop
    violates: tuple[str, ...]
    explained: tuple[Failure, ...]
    ids: tuple[str, ...] = ()  # mistakes of the bank that are of this kind
    beside: int = 0  # rows of the same kind that it does not explain
    first: bool = False  # whether it is said first, whatever else fits


@dataclass(frozen=True)
class Diagnosed:
    """What was found, the most telling first; nothing if no model reproduces anything."""

    findings: tuple[Finding, ...]
    failed: int  # failing rows
    compared: int  # those that show something to compare
    single: tuple[Model, ...] = ()  # what would explain the only case that fails: too little to tell by
    hurried: bool = False  # whether time ran out
    cases: int = 0  # cases of the failing rows that show something to compare
    raised: bool = False  # whether all that these show is that the target raised
    left: tuple[Failure, ...] = ()  # what no finding reproduces, of that which can be compared
    splits: tuple[Split, ...] = ()  # what failing rows have in common, whatever the mistake
    notes: tuple[Note, ...] = ()  # what is said without a model
    places: tuple[Place, ...] = ()  # which rows of failing calls are wrong, where others are right
    results: tuple[Results, ...] = ()  # which of several results are wrong, and where in them
    experiments: tuple[str, ...] = ()  # what failing cases need, by asking the target changed ones
    numbers: int = 0  # failing rows that gave numbers, or were refused in vain

    @property
    def explained(self) -> int:
        """How many failing rows some finding reproduces, or some note tells of."""
        told = [*(each.explained for each in self.findings), *(each.explained for each in self.notes)]
        return len({(f.case.id, f.dtype) for rows in told for f in rows})
