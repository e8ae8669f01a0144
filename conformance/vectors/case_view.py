"""What one case holds, as the table of coverage asks for it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from conformance.names import MHA, MHA_VJP, OPTIONS
from conformance.vectors.case import Array, Case


class View:
    """A case that returns something, with what follows from its arrays."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.layer = case.operation in (MHA, MHA_VJP)

    @cached_property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return self.case.inputs["query"].shape[: -2 if self.layer else -3]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes by name; batch is the product of its axes, or -1 without any."""
        x = self.case.inputs
        past = x["past_key"].shape[-2] if "past_key" in x else 0
        return {
            "kv_len": x["key"].shape[-2] + past,
            "q_len": x["query"].shape[-2],
            "d_k": (x["w_q"] if self.layer else x["query"]).shape[-1],
            "d_v": (x["w_v"] if self.layer else x["value"]).shape[-1],
            "heads": x["w_q"].shape[0] if self.layer else x["query"].shape[-3],
            "kv_heads": x["w_k"].shape[0] if self.layer else x["key"].shape[-3],
            "batch": int(np.prod(self.batch)) if self.batch else -1,
            "past": past,
        }

    @cached_property
    def given(self) -> set[str]:
        """The options that are given."""
        options = {name for name, x in self.case.options.items() if x is not None and x is not False}
        return options | (set(self.case.inputs) & set(OPTIONS))

    @property
    def biases(self) -> set[str]:
        """The biases of the layer that are given."""
        return {name for name in self.case.inputs if name.startswith("b_")}

    # -- numbers ---------------------------------------------------------------------------------

    def number(self, option: str) -> float:
        """An option that is a number; NaN if it is not given or is an array."""
        x = self.case.options.get(option)
        return float(x) if isinstance(x, (int, float)) else float("nan")

    def ranks(self, name: str, rank: int) -> bool:
        """Whether an input is there with so many axes."""
        return name in self.case.inputs and self.case.inputs[name].ndim == rank

    def dtype(self, name: str) -> Any:
        """The stored dtype of an input, None without it."""
        return self.case.inputs[name].dtype if name in self.case.inputs else None

    def has(self, name: str, test: Callable[[Array], Any]) -> bool:
        """Whether any element of an input passes."""
        return name in self.case.inputs and bool(np.any(test(self.case.inputs[name])))

    def one(self, name: str, test: Callable[[Array], Any]) -> bool:
        """Whether an input passes as a whole, if all of it is finite."""
        x = self.case.inputs[name].astype(np.float64)
        return bool(np.isfinite(x).all() and test(x))

    def every(self, test: Callable[[Array], Any]) -> bool:
        """Whether all of query, key and value pass, with something in each."""
        arrays = [self.case.inputs[name].astype(np.float64) for name in ("query", "key", "value")]
        return all(x.size and np.isfinite(x).all() and np.all(test(x)) for x in arrays)

    def bits(self, name: str) -> int:
        """How many significant bits an input needs at most: 8, 11 or 24."""
        if name not in self.case.inputs:
            return 0
        x = self.case.inputs[name].astype(np.float64)
        mantissa = np.frexp(np.where(np.isfinite(x), x, 0.0))[0]
        return next(n for n in (8, 11, 24, 53) if np.all(mantissa * 2.0**n % 1 == 0))

    def results(self, test: Callable[[Array], Any]) -> bool:
        """Whether any element of a result passes."""
        return any(bool(np.any(test(golden.hi))) for golden in self.case.expected.values())

    @cached_property
    def largest_logit(self) -> float:
        """The largest raw logit of plain attention, about; 0 for a layer."""
        x, y = self.case.inputs["query"].astype(np.float64), self.case.inputs["key"].astype(np.float64)
        if self.layer or not x.size or not y.size or not (np.isfinite(x).all() and np.isfinite(y).all()):
            return 0.0
        y = np.repeat(y, self.sizes["heads"] // self.sizes["kv_heads"], axis=-3)
        scale = self.case.options.get("scale", x.shape[-1] ** -0.5)
        return float(np.abs(scale * (x @ np.swapaxes(y, -1, -2))).max())

    # -- what hides ------------------------------------------------------------------------------

    @cached_property
    def shown(self) -> dict[str, Array]:
        """What each option shows of the keys, full rank [*batch, H, q_len, kv_len]."""
        x, options = self.case.inputs, self.case.options
        full = (*self.batch, self.sizes["heads"], self.sizes["q_len"], self.sizes["kv_len"])
        slot = np.arange(self.sizes["kv_len"])
        offset = np.asarray(x.get("q_offset", options.get("q_offset") or 0))
        place = np.arange(self.sizes["q_len"])[:, None] + offset.reshape(*offset.shape, 1, 1, 1)
        found: dict[str, Any] = {}
        if "mask" in x:
            found["mask"] = x["mask"]
        if "attn_bias" in x:
            found["attn_bias"] = ~np.isneginf(x["attn_bias"])
        if options.get("is_causal"):
            found["is_causal"] = slot <= place
        if options.get("window") is not None:
            left, right = options["window"]
            found["window"] = (slot >= place - left if left is not None else True) & (
                slot <= place + right if right is not None else np.ones(1, bool)
            )
        if "q_segments" in x:
            of_query, of_key = x["q_segments"], x["kv_segments"]
            found["segments"] = (of_query[..., :, None] == of_key[..., None, :])[..., None, :, :]
        if "kv_lengths" in x:
            found["kv_lengths"] = slot < x["kv_lengths"].reshape(*x["kv_lengths"].shape, 1, 1, 1)
        return {name: np.broadcast_to(np.asarray(shows), full) for name, shows in found.items()}

    @cached_property
    def visible(self) -> Array:
        """What all of them show."""
        full = (*self.batch, self.sizes["heads"], self.sizes["q_len"], self.sizes["kv_len"])
        together = np.ones(full, bool)
        for shows in self.shown.values():
            together &= shows
        return together

    @property
    def empty(self) -> bool:
        """Whether a row sees no key."""
        return bool((~self.visible.any(axis=-1)).any())

    @property
    def all_empty(self) -> bool:
        """Whether there are rows and none sees a key."""
        return bool(self.visible.shape[-2] and self.visible.size and not self.visible.any())

    def empties(self, options: set[str]) -> bool:
        """Whether one of these options hides all keys of a row by itself."""
        return self.sizes["kv_len"] > 0 and any(
            bool((~shows.any(axis=-1)).any()) for name, shows in self.shown.items() if name in options
        )

    def mask_kinds(self, name: str) -> set[str]:
        """How a mask or bias is shaped, and along which axes its values vary."""
        if name not in self.case.inputs:
            return set()
        x = self.case.inputs[name]
        found = {"rank 2" if x.ndim == 2 else "full rank"}
        if x.ndim > 2 and not self.batch:
            found.add("full rank, no batch axis")
        if x.ndim > 2 and len(self.batch) == 2:
            found.add("full rank, two batch axes")
        axes = {"of each query": -2, "of each head": -3, "of each batch entry": -4}
        found |= {kind for kind, axis in axes.items() if x.ndim >= -axis and _varies(x, axis)}
        whole = {-1: "one column", -2: "one row", -3: "shared by the heads", -4: "shared by the batch"}
        full = self.visible.shape
        for axis, kind in whole.items():
            if x.ndim >= -axis and len(full) >= -axis and x.shape[axis] == 1 < full[axis]:
                found.add(kind)
        return found

    # -- what is not finite ----------------------------------------------------------------------

    def _seen(self) -> Array:
        """Whether any query of any head sees a token or slot: [*batch, kv_len]."""
        return np.asarray(self.visible.any(axis=(-3, -2)))

    def _broken(self, name: str, test: Callable[[Array], Any]) -> Array:
        """Tokens or slots of key or value with an element that passes: [*batch, kv_len], the past in front."""
        x = self.case.inputs[name]
        bad = np.any(test(x), axis=-1)
        bad = bad if self.layer else np.any(bad, axis=-2)
        past = np.zeros((*bad.shape[:-1], self.sizes["past"]), bool)
        return np.concatenate([past, bad], axis=-1)

    def nonfinite(self, name: str, place: str) -> set[str]:
        """The kinds of non-finite numbers in hidden or visible keys or values."""
        if np.isfinite(self.case.inputs[name]).all():
            return set()
        kinds: dict[str, Callable[[Array], Any]] = {"nan": np.isnan, "inf": np.isposinf, "-inf": np.isneginf}
        seen = self._seen() if place == "visible" else ~self._seen()
        return {kind for kind, test in kinds.items() if (self._broken(name, test) & seen).any()}

    def behind(self, option: str) -> bool:
        """Whether one option alone hides a NaN from some query."""
        if option not in self.shown:
            return False
        hidden = (~self.shown[option]).any(axis=(-3, -2))
        return any(bool((self._broken(name, np.isnan) & hidden).any()) for name in ("key", "value"))


def _varies(x: Array, axis: int) -> bool:
    """Whether anything differs from the first entry along an axis."""
    return bool(x.size) and bool((x != np.take(x, [0], axis=axis)).any())
