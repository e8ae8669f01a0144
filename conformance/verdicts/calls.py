"""The calls of a problem: each a function of the seed and of the name of what it is for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from conformance.exploring.arrays import arrays, options
from conformance.exploring.counter import Dice
from conformance.exploring.drawn_numbers import FAR
from conformance.exploring.recipe import Recipe
from conformance.exploring.trial import rows_of
from conformance.names import MHA, SDPA, SDPA_VJP
from conformance.oracle import Certified, UnjudgedError, certify
from conformance.problems.problem import Problem
from conformance.vectors.case import Array
from conformance.verdicts.address import addressed

EDGES = (1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 130)
"""Lengths at and beside the edges of tiles."""
WORK = 2**22
"""Products of two numbers that a small call takes at most, where the problem admits so small a one."""
NUMBERS = 2**18
"""Numbers in the keys and values of a small call: entries and heads are few where they are wide."""
ELEMENTS = 2**21
"""Numbers in the operands of the problem's own size; batch and heads are cut to it."""
KEYS = 2**15
REDRAWN = 8


@dataclass(frozen=True)
class Call:
    """One call: its sizes and options, how its numbers are made, and what of it is asked."""

    recipe: Recipe
    address: bool = False  # one key is asked by each query, and the answer is its address
    latent: bool = False
    alike: bool = False  # query, key and value are one array
    q_lens: tuple[int, ...] = ()  # queries of each entry, where they differ
    lse: bool = False
    change: str = ""  # what differs from the same call without it
    order: int = 0  # in which order pages lie
    hidden: bool = False  # NaN in slots that no length counts

    @property
    def said(self) -> str:
        """The call in a few words."""
        r = self.recipe
        words = [f"batch {r.entries}", f"heads {r.heads}" + (f"/{r.groups}" if r.groups != r.heads else "")]
        words += [
            f"q_len {r.q_len}",
            f"kv_len {r.kv_len}",
            f"d {r.d_k}" + (f"/{r.d_v}" if r.d_k != r.d_v else ""),
        ]
        words += ["causal"] if r.causal else []
        words += [f"window {r.window}"] if r.window else []
        words += [f"kv_lengths {list(r.lengths)}"] if isinstance(r.lengths, tuple) else []
        return ", ".join([*words, r.dtype])


def inputs_of(call: Call) -> dict[str, Array]:
    """Every array of the call in canonical layout, float64 of numbers that the dtype holds."""
    made = dict(_made(replace(call, change="", order=0)))
    if call.change:
        made = changed(call, made)
    return made


@lru_cache(maxsize=4)
def _made(call: Call) -> Mapping[str, Array]:
    r = call.recipe
    made = arrays(r)
    if call.address:
        made |= addressed(call.recipe, call.latent)
    if call.latent:
        made["value"] = made["key"][..., : r.d_v].copy()
    if call.alike:
        made["key"] = made["value"] = made["query"]
    if call.hidden and isinstance(r.lengths, tuple):
        for entry, length in enumerate(r.lengths):
            for name in ("key", "value"):
                made[name][entry, :, length:] = np.nan
    return made


def changed(call: Call, made: dict[str, Array]) -> dict[str, Array]:
    """The same call but for one number in the middle of an operand, or for two rows that change places."""
    kind, _, name = call.change.partition(" ")
    if call.alike:
        name = "query"
    array = made[name].copy()
    if kind == "swap":  # sums, norms and extremes stay as they are
        middle = min(array.shape[-2] // 2, array.shape[-2] - 2)
        if middle >= 0:
            array[..., [middle, middle + 1], :] = array[..., [middle + 1, middle], :]
        else:
            array = array[..., ::-1].copy()
    else:
        flat = array.reshape(-1)
        middle = array.size // 2
        if isinstance(call.recipe.lengths, tuple):  # in a slot that exists
            middle = array[0, 0, 0].size // 2
        flat[middle] = 24.0 if flat[middle] != 24.0 else -24.0
    made[name] = array
    if call.latent:
        made["value"] = made["key"][..., : call.recipe.d_v].copy()
    if call.alike:
        made["key"] = made["value"] = made["query"]
    return made


@lru_cache(maxsize=64)
def certified(call: Call, policy: str) -> Certified | None:
    """The call with expected values and bounds; None where nothing is derived for it."""
    r = call.recipe
    given = options(r)
    if call.lse:
        given["return_lse"] = True
    try:
        return certify(
            r.operation,
            inputs_of(call),
            given,
            r.dtype,
            rows=rows_of(r),
            policies=(policy,),
            name="judge/call",
        )
    except UnjudgedError:
        return None


# Drawn


class Draw:
    """The calls of a problem for one seed."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem, self.seed = problem, seed

    def call(self, name: str, data: Mapping[str, str] | None = None, size: str = "any") -> Call:
        """A fresh call around the problem's shape that can be judged.

        Args:
            name: what it is for; another name draws other numbers.
            data: families of numbers by operand.
            size: `least`, `small`, `any` or `edge`; a size that is not free stays as the problem has it.
        """
        for attempt in range(REDRAWN):
            dice = Dice("judge", self._problem.name, self.seed, name, attempt)
            call = self._drawn(dice, data or {}, size)
            if certified(call, self._problem.policy) is not None:
                return call
        return call

    def own(self, name: str) -> Call:
        """A call of the problem's own size, cut in batch and heads to what is afforded."""
        s, dice = self._problem.sizes, Dice("judge", self._problem.name, self.seed, name)
        each = s.q_len * s.d_k + min(s.kv_len, KEYS) * (s.d_k + s.d_v)
        groups = max(1, min(s.kv_heads, ELEMENTS // max(each, 1)))
        while s.kv_heads % groups:
            groups -= 1
        heads = groups * (s.heads // s.kv_heads)
        if self._problem.layer or "heads" not in self._problem.free:
            groups, heads = s.kv_heads, s.heads
        batch = (
            max(1, min(s.batch, ELEMENTS // max(each * groups, 1)))
            if "batch" in self._problem.free
            else s.batch
        )
        sizes = (batch, heads, groups, s.q_len, min(s.kv_len, KEYS))
        return self._sized(dice, sizes, {})

    def gradient(self, name: str, data: Mapping[str, str] | None = None, size: str = "any") -> Call:
        """A call that asks for gradients."""
        for attempt in range(REDRAWN):
            dice = Dice("judge", self._problem.name, self.seed, name, attempt)
            call = self._drawn(dice, data or {}, size, most=40)
            call = replace(call, recipe=replace(call.recipe, operation=SDPA_VJP))
            if certified(call, self._problem.policy) is not None:
                return call
        return call

    def _drawn(self, dice: Dice, data: Mapping[str, str], size: str, most: int = 0) -> Call:
        p, s = self._problem, self._problem.sizes
        batch = dice.between(1, 3) if "batch" in p.free else s.batch
        heads, groups = s.heads, s.kv_heads
        share = s.heads // s.kv_heads
        if "heads" in p.free and not p.layer:
            groups = dice.between(1, 3) if s.kv_heads > 1 else 1
            share = share if share < 5 else dice.choice((share, 2, 4))
            heads = groups * share
        many = max(
            NUMBERS
            // max(
                (p.multiple if p.tied else s.kv_len if "kv_len" not in p.free else 1) * (s.d_k + s.d_v), 1
            ),
            1,
        )
        batch = min(batch, many) if "batch" in p.free else batch
        while "heads" in p.free and not p.layer and batch * groups > many and groups > 1:
            groups -= 1
            heads = groups * share
        room = WORK // max(batch * heads * (s.d_k + s.d_v), 1)
        longest = min(
            most or max(EDGES), max(p.multiple, int(room**0.5) if p.tied else room // max(s.q_len, 1))
        )
        q_len = kv_len = _length(dice, size, p.multiple, longest)
        if not p.tied:
            kv_len = kv_len if "kv_len" in p.free else s.kv_len
            q_len = min(_length(dice, size, p.multiple, longest), kv_len) if "q_len" in p.free else s.q_len
            kv_len = max(kv_len, q_len) if "kv_len" in p.free else kv_len
        elif "length" not in p.free and not p.layer:
            q_len, kv_len = s.q_len, s.kv_len
        return self._sized(dice, (batch, heads, groups, q_len, kv_len), data)

    def _sized(self, dice: Dice, sizes: tuple[int, int, int, int, int], data: Mapping[str, str]) -> Call:
        p, s, o = self._problem, self._problem.sizes, self._problem.options
        batch, heads, groups, q_len, kv_len = sizes
        ragged = p.call.form != "plain"
        lengths: tuple[int, ...] | None = None
        q_lens: tuple[int, ...] = ()
        if o.kv_lengths or ragged:
            lengths = tuple(kv_len if n == 0 else dice.between(q_len, kv_len) for n in range(batch))
        if ragged and q_len > 1 and "q_len" in p.free:
            q_lens = tuple(q_len if n == batch - 1 else dice.between(1, q_len) for n in range(batch))
        offset: int | tuple[int, ...] | None = None
        if (o.is_causal or o.window) and o.offset == "end":
            # those of an entry's own queries, which stand first
            ends = lengths or (kv_len,) * batch
            offset = tuple(end - own for end, own in zip(ends, q_lens or (q_len,) * batch, strict=True))
            if len(set(offset)) == 1 and not ragged:
                offset = offset[0]
        recipe = Recipe(
            operation=MHA if p.layer else SDPA,
            dtype=dice.choice(p.dtypes),
            batch=(batch,),
            heads=heads,
            groups=groups,
            q_len=q_len,
            kv_len=kv_len,
            d_k=s.d_k,
            d_v=s.d_v,
            widths=(s.d_model,) * 4 if p.layer else (),
            biases="qkvo" if "b_qkv" in p.call.state.values() else "",
            causal=o.is_causal,
            offset=offset,
            window=o.window,
            lengths=lengths,
            scale=o.scale,
            softcap=o.softcap,
            sinks=o.sinks,
            mask=f"{o.mask}-r" if o.mask else "",
            bias=f"{o.attn_bias}-n0" if o.attn_bias else "",
            data=tuple(sorted(data.items())),
            stream=dice.below(2**24),
        )
        return Call(
            recipe,
            latent=p.latent,
            alike=p.layer,
            q_lens=q_lens,
            lse=any(name in ("lse", "lse2") for name in p.call.results),
            order=dice.below(2**16),
        )

    def far(self, dtype: str) -> dict[str, str]:
        """Families of numbers whose logits lie far from zero, below it."""
        power = FAR[dtype][0] + (0 if dtype == "float16" else (self._problem.sizes.d_k.bit_length() - 1) // 2)
        return {"query": f"p{power // 2}", "key": f"p{-(power - power // 2)}"}


def _length(dice: Dice, size: str, multiple: int, longest: int) -> int:
    if multiple > 1:
        return multiple * (1 if size in ("least", "small") else dice.between(1, max(longest // multiple, 1)))
    fitting = [n for n in EDGES if n <= longest] or [1]
    if size == "least":
        return dice.choice([n for n in fitting if n <= 5])
    if size == "small":
        return dice.choice([n for n in fitting if 5 <= n <= 33] or fitting[-1:])
    if size == "edge":
        return dice.choice([n for n in fitting if n > 15] or fitting[-1:])
    return dice.choice(fitting)
