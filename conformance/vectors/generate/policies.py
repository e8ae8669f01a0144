"""What an implementation may round, per dtype and policy: the constants of spec/numerics.md."""

from dataclasses import dataclass

from conformance.dtypes import MAX_FINITE, UNIT_ROUNDOFF
from conformance.names import DTYPES, REDUCED_POLICIES

OPERAND_ROUNDOFF = {"tf32": (2.0**-11, 11), "tf32t": (2.0**-10, 11), "bf16x1": (2.0**-8, 8)}
"""Matmul operands under a reduced policy: largest relative error, and the significant bits kept."""

SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""What one rounding may lose to underflow. Float32 and wider, and bfloat16, may flush subnormal numbers to
zero; float16 rounds to its subnormals, so that it loses half of the smallest one at most."""


@dataclass(frozen=True)
class Policy:
    """The roundings that one policy admits at one dtype."""

    name: str
    dtype: str
    storage: float  # u_s: a tensor stored in the dtype
    accumulation: float  # u_a: a sum, a product, an elementary function
    operand: float  # u_o: a matmul operand
    operand_bits: int  # significant bits of a matmul operand
    eager: bool  # logits and softmax may be stored in the dtype as well
    underflow: float  # eta_s: what storing one number may lose
    accumulation_underflow: float  # eta_a: the same for an intermediate result

    @property
    def stored_logits(self) -> float:
        """u_s where the logits and the softmax may be stored in the dtype, else 0."""
        return self.storage if self.eager else 0.0

    @property
    def drift(self) -> float:
        """Mean relative error of one operand: truncation moves all of them the same way, rounding none."""
        return self.operand / 2 if self.name == "tf32t" else 0.0

    @property
    def second_order(self) -> float:
        """What products of two roundings may add to a bound that is of first order."""
        return 1 + 4 * self.storage + self.operand

    @property
    def max_finite(self) -> float:
        """Largest number of the dtype."""
        return MAX_FINITE[self.dtype]

    @property
    def max_logit(self) -> float:
        """Largest number that an unscaled logit may be stored in."""
        return MAX_FINITE[
            self.dtype if self.eager else "float32"
        ]  # only 16-bit dtypes have a fused policy of their own


def _policy(name: str, dtype: str) -> Policy:
    storage = UNIT_ROUNDOFF[dtype]
    operand, bits = OPERAND_ROUNDOFF.get(name, (0.0, 53))
    return Policy(
        name=name,
        dtype=dtype,
        storage=storage,
        accumulation=min(storage, UNIT_ROUNDOFF["float32"]),
        operand=operand,
        operand_bits=bits,
        # at float64 and float32 a fused kernel stores what it accumulates: the two policies coincide
        eager=name != "fused",
        underflow=SMALLEST_NORMAL[dtype],
        accumulation_underflow=SMALLEST_NORMAL["float64" if dtype == "float64" else "float32"],
    )


def policies(dtype: str) -> dict[str, tuple[str, ...]]:
    """The distinct policies of a dtype, each with the policies that it stands for."""
    if dtype == "float64":
        return {"eager": ("eager", "fused")}
    if dtype == "float32":
        return {"eager": ("eager", "fused"), **{name: (name,) for name in REDUCED_POLICIES}}
    return {"eager": ("eager",), "fused": ("fused",)}


POLICY = {(dtype, name): _policy(name, dtype) for dtype in DTYPES for name in policies(dtype)}
"""Every distinct policy, by dtype and name."""
