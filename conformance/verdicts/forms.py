"""Canonical arrays to the arguments of a program, and its results back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.dtypes import NUMPY_DTYPES, cast
from conformance.exploring.counter import Dice
from conformance.exploring.counts import lengths
from conformance.problems.problem import Problem
from conformance.vectors.case import Array
from conformance.verdicts.calls import Call, inputs_of

SPARE = 3
"""Pages that belong to nobody, whose slots hold NaN."""


class WrongFormError(Exception):
    """What was returned cannot be the answer; the text says why."""


@dataclass(frozen=True)
class Given:
    """What a program is called with: arrays as NumPy's, everything else as it stands."""

    arguments: tuple[tuple[str, Any], ...]  # name or empty -> value
    state: Mapping[str, Array]


def given(problem: Problem, call: Call) -> Given:
    """The arguments of a call."""
    made = _Made(problem, call)
    return Given(
        tuple((argument.name, made(argument.what)) for argument in problem.call.arguments),
        {name: made.state(what) for name, what in problem.call.state.items()},
    )


class _Made:
    """What each argument is made of."""

    def __init__(self, problem: Problem, call: Call) -> None:
        self._problem, self._call, self._recipe = problem, call, call.recipe
        kept = {"kv_lengths": "int32", "mask": "bool", "q_offset": "int32"}
        self._arrays = {
            name: cast(array, kept.get(name, call.recipe.dtype)) for name, array in inputs_of(call).items()
        }
        self._ends = lengths(call.recipe) if call.recipe.lengths is not None else None

    def __call__(self, what: str) -> Any:
        r, options = self._recipe, self._problem.options
        plain = {
            "scale": r.d_k**-0.5 if options.scale is None else options.scale,
            "softcap": options.softcap,
            "is_causal": options.is_causal,
            "window": list(options.window) if options.window else None,
            "q_offset": r.offset,
        }
        if what in plain:
            return plain[what]
        if what == "input":
            return self._arrays["query"]
        if self._problem.layer:
            return self._arrays[what]
        if what in ("mask", "attn_bias", "kv_lengths", "sinks"):
            return self._arrays[what]
        if self._problem.call.form == "plain":
            return self._laid_out(self._part(what))
        return self._gathered(what)

    def _part(self, what: str) -> Array:
        """An operand, or a part of its width, [B, H or G, L, d]."""
        content = self._recipe.d_v
        return {
            "query_content": lambda: self._arrays["query"][..., :content],
            "query_rope": lambda: self._arrays["query"][..., content:],
            "latent": lambda: self._arrays["key"][:, 0, :, :content],
            "rope": lambda: self._arrays["key"][:, 0, :, content:],
        }.get(what, lambda: self._arrays[what])()

    def _laid_out(self, array: Array) -> Array:
        if array.ndim == 4 and array.shape[1] == self._recipe.heads and self._problem.call.one_query:
            return np.ascontiguousarray(array[:, :, 0])
        if array.ndim == 4 and self._problem.call.layout == "blhd":
            array = array.swapaxes(1, 2)
        return np.ascontiguousarray(array)

    # Ragged and paged: entries one behind another, tokens before heads

    def _gathered(self, what: str) -> Any:
        r = self._recipe
        own = self._call.q_lens or (r.q_len,) * r.entries
        ends = (r.kv_len,) * r.entries if self._ends is None else tuple(map(int, self._ends))
        if what == "q_starts":
            return np.cumsum([0, *own], dtype=np.int32)
        if what == "kv_starts":
            return np.cumsum([0, *ends], dtype=np.int32)
        if what.startswith("query"):
            part = self._part(what)
            return packed(part, own)
        if what in ("key", "value", "latent_packed"):
            return packed(self._part(what), ends)
        return self._paged(what, ends)

    def _paged(self, what: str, ends: Sequence[int]) -> Array:
        size = self._problem.sizes.page
        counts = [-(-int(end) // size) for end in ends]
        total = sum(counts) + SPARE
        pages = np.array(Dice("pages", self._call.order, total).order(range(total))[: sum(counts)], np.int32)
        if what == "page_starts":
            return np.cumsum([0, *counts], dtype=np.int32)
        if what == "page_list":
            return pages
        if what == "last_page":
            return np.array([(int(end) - 1) % size + 1 for end in ends], np.int32)
        if what in ("latent_pages", "rope_pages"):
            source = self._part(what.removesuffix("_pages"))[:, :, None]  # [B, L, 1, d]
        else:
            source = self._arrays[what.removesuffix("_pages")].swapaxes(1, 2)  # [B, L, G, d]
        # what belongs to nobody is no number, where the problem has such; else a large one
        blank = np.nan if not self._problem.finite else 1e4
        made = np.full((total, size, *source.shape[2:]), blank, source.dtype)
        first = 0
        for entry, (end, count) in enumerate(zip(ends, counts, strict=True)):
            for number in range(count):
                slots = source[entry, number * size : min((number + 1) * size, int(end))]
                made[pages[first + number], : len(slots)] = slots
            first += count
        return made[:, :, 0] if what in ("latent_pages", "rope_pages") else made

    # The parameters of a module, as torch's linear layers hold them: (out, in)

    def state(self, what: str) -> Array:
        """What a parameter holds."""
        a = self._arrays
        if what == "w_qkv":  # each [heads, d_model, d] -> [heads * d, d_model]
            return np.concatenate([_rows(a[name]) for name in ("w_q", "w_k", "w_v")])
        if what == "b_qkv":
            return np.concatenate([a[name].reshape(-1) for name in ("b_q", "b_k", "b_v")])
        if what == "w_out":  # [heads, d_v, d_out] -> [d_out, heads * d_v]
            return np.ascontiguousarray(a["w_o"].reshape(-1, a["w_o"].shape[-1]).T)
        return a["b_o"]


def _rows(weights: Array) -> Array:
    return np.ascontiguousarray(weights.swapaxes(1, 2).reshape(-1, weights.shape[1]))


def packed(array: Array, own: Sequence[int]) -> Array:
    """The first tokens of each entry, one entry behind another: [B, H, L, d] -> [T, H, d]."""
    return np.concatenate([array[entry, :, : int(n)].swapaxes(0, 1) for entry, n in enumerate(own)])


def results(
    problem: Problem, call: Call, returned: Sequence[Array], fill: Mapping[str, Array]
) -> dict[str, Array]:
    """What was returned, by output and in canonical layout; rows that were not asked are those of `fill`.

    Raises:
        WrongFormError: it does not have the number or the shapes of results that the problem asks for.
    """
    wanted = problem.call.results
    if len(returned) != len(wanted):
        raise WrongFormError(f"returned {len(returned)} results, wanted {len(wanted)}: {', '.join(wanted)}")
    found: dict[str, Array] = {}
    for name, array in zip(wanted, returned, strict=True):
        if array.dtype.kind not in "f" and array.dtype != NUMPY_DTYPES["bfloat16"]:
            raise WrongFormError(f"{name} has dtype {array.dtype.name}, wanted {call.recipe.dtype}")
        if name == "lse2":  # to base 2
            array = (array.astype(np.float64) * math.log(2.0)).astype(array.dtype)
        found["output" if name == "output" else "lse"] = _canonical(problem, call, array, name, fill)
    return found


def _canonical(problem: Problem, call: Call, array: Array, name: str, fill: Mapping[str, Array]) -> Array:
    r, width = call.recipe, (call.recipe.d_v,) if name == "output" else ()
    if problem.layer:
        return array
    if problem.call.one_query and problem.call.form == "plain":
        _check(array, (r.entries, r.heads, *width), name)
        return array[:, :, None]
    if problem.call.form == "plain":
        if problem.call.layout == "blhd" and array.ndim == 4:
            return array.swapaxes(1, 2)
        return array
    own = call.q_lens or (r.q_len,) * r.entries
    _check(array, (sum(own), r.heads, *width), name)
    whole = np.zeros((r.entries, r.heads, r.q_len, *width), array.dtype)
    if fill:
        whole[...] = fill["output" if name == "output" else "lse"]
    first = 0
    for entry, count in enumerate(own):
        whole[entry, :, :count] = array[first : first + count].swapaxes(0, 1)
        first += count
    return whole


def _check(array: Array, shape: tuple[int, ...], name: str) -> None:
    if array.shape != shape:
        raise WrongFormError(f"{name} has shape {array.shape}, wanted {shape}")
