"""One planted defect, as a record."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.names import DTYPES

Change = dict[str, Any]
"""Steps of the reference by name, replaced."""

WIDE, HALF = ("float64", "float32"), ("float16", "bfloat16")


def at(dtypes: tuple[str, ...] | str, reason: str) -> dict[str, str]:
    """One reason for several dtypes."""
    return dict.fromkeys((dtypes,) if isinstance(dtypes, str) else dtypes, reason)


NARROW = at(WIDE, "the dtype of the call is no narrower than float32")
"""Why a rounding to the dtype of the call does not show there."""


def varied(made: Mapping[str, Any], here: str) -> dict[str, Any]:
    """Changes by detail, of which one is that of the bank and the others are its variants, as fields of a Defect."""
    return {
        "change": made[here],
        "detail": here,
        "variants": {detail: change for detail, change in made.items() if detail != here},
    }


def by_detail(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of such fields again, that of the bank first."""
    return {fields["detail"]: fields["change"], **fields["variants"]}


@dataclass(frozen=True)
class Defect:
    """A mistake that somebody made or may make, and how the reference makes it."""

    id: str  # kebab-case, named for the mistake
    sentence: str  # what was done wrong, said to whoever did it
    violates: tuple[str, ...]  # requirement IDs
    change: Change | Callable[[], Change]  # a function where steps share a memory: fresh for each target
    origin: str = "slip"  # owner/repository#number, or the framework that does so, or "slip"
    features: tuple[str, ...] = ()  # what a case has to use for it to show
    detail: str = ""  # the number in it that a diagnosis names, "in blocks of 16"
    variants: Mapping[str, Change | Callable[[], Change]] = field(
        default_factory=dict
    )  # the same with other numbers: detail -> change
    variant: bool = False  # whether it is one of those
    stateful: bool = (
        False  # whether an answer depends on what was asked before, so that it takes more than one call
    )
    beyond: tuple[str, Mapping[str, int]] | None = (
        None  # an axis, and by detail the length up to which none shows
    )
    equivalent: str | None = None  # why no result differs, if none does
    admitted: Mapping[str, str] = field(
        default_factory=dict
    )  # dtype or dtype/policy -> why the policy admits it
    unobservable: Mapping[str, str] = field(default_factory=dict)  # the same -> why it cannot show there

    def excuse(self, dtype: str, policy: str) -> str | None:
        """Why nothing need show it at a dtype under a policy; None where something must."""
        if self.equivalent:
            return self.equivalent
        for reasons in (self.admitted, self.unobservable):
            for key in (dtype, f"{dtype}/{policy}"):
                if key in reasons:
                    return reasons[key]
        return None

    @property
    def observable(self) -> tuple[str, ...]:
        """The dtypes at which some case must show it, under every policy or under `fused`."""
        return tuple(dtype for dtype in DTYPES if self.excuse(dtype, "fused") is None)

    @property
    def family(self) -> tuple["Defect", ...]:
        """Itself and the same mistake with other numbers, of which only a diagnosis makes use."""
        others = (
            replace(self, change=to, detail=of, variants={}, variant=True) for of, to in self.variants.items()
        )
        return (self, *others)

    @property
    def said(self) -> str:
        """The sentence with its number."""
        return f"{self.sentence[:-1]} ({self.detail})." if self.detail else self.sentence

    def implementation(self) -> Implementation:
        """A target that makes the mistake and is right in all else."""
        change = self.change() if callable(self.change) else self.change
        return Implementation(replace(REFERENCE, **change), self.id)


def needing(feature: str, defects: Iterable[Defect]) -> tuple[Defect, ...]:
    """Defects that show in calls which use a feature only, next to those that each of them names."""
    return tuple(replace(defect, features=(feature, *defect.features)) for defect in defects)
