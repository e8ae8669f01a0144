"""A problem: what is asked of a program, and how the program is called."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.names import MHA, REDUCED_POLICIES
from conformance.reading import TooLargeError, flaw, read_bytes, validator
from conformance.resources import schema
from conformance.running.suggestions import nearest

FOLDER = Path(__file__).resolve().parent
MOST_BYTES = 2**16
PLAIN = ("query", "key", "value", "mask", "attn_bias", "kv_lengths", "sinks")
"""Arguments that are arrays of the operation as they stand."""
OPTIONS = ("scale", "softcap", "is_causal", "window", "q_offset")
"""Arguments that are no arrays."""
LATENT = ("query_content", "query_rope", "latent", "rope")
"""Parts of the query and of what keys and values share."""
RAGGED = ("q_starts", "kv_starts")
PAGED = ("key_pages", "value_pages", "latent_pages", "rope_pages", "page_starts", "page_list", "last_page")
LAYER = ("input", "w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
STATE = ("w_qkv", "b_qkv", "w_out", "b_out")
"""What a module's parameter may hold: the projections of all heads, as a linear layer of torch stores them."""


@dataclass(frozen=True)
class Sizes:
    """The shape of the problem."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    d_k: int
    d_v: int
    d_model: int = 0  # of a layer
    page: int = 0  # of a paged call: slots of a page


@dataclass(frozen=True)
class Options:
    """What is asked in each call beside the operands."""

    is_causal: bool = False
    offset: str = "none"  # none; end: the last query stands at the last key
    window: tuple[int | None, int | None] | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    mask: str = ""  # the axes that it has, as `bhqk`
    attn_bias: str = ""
    kv_lengths: bool = False


@dataclass(frozen=True)
class Argument:
    """One argument of the program: its own name, where it is given by name, and what it is."""

    what: str
    name: str = ""


@dataclass(frozen=True)
class Calling:
    """How the program is called."""

    kind: str  # module or function
    names: tuple[str, ...]
    arrays: str  # torch or numpy
    layout: str  # bhld or blhd
    form: str  # plain, ragged or paged
    arguments: tuple[Argument, ...]
    results: tuple[str, ...]
    one_tuple: bool = False  # all arguments in one tuple
    init: tuple[Any, ...] = ()
    state: Mapping[str, str] = field(default_factory=dict)  # parameter of a module -> what it holds
    one_query: bool = False  # the one query of each entry has no axis of its own


@dataclass(frozen=True)
class Problem:
    """What is asked of a program."""

    name: str
    title: str
    about: str
    operation: str
    dtypes: tuple[str, ...]
    policy: str
    gradients: bool
    finite: bool
    own: bool  # the program may not call the attention of a library
    free: frozenset[str]  # sizes that may differ from call to call
    multiple: int  # of which every length is one
    latent: bool  # values are the first columns of the keys
    sizes: Sizes
    options: Options
    call: Calling

    @property
    def layer(self) -> bool:
        """Whether projections stand around the attention."""
        return self.operation == MHA

    @property
    def tied(self) -> bool:
        """Whether there are as many queries as keys, in every call."""
        return "length" in self.free or self.layer


def problems() -> dict[str, Path]:
    """The problems that come with the suite, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def find(named: str) -> Problem:
    """The problem of a name or a file.

    Raises:
        UsageError: there is none, or the file is no problem.
    """
    shipped = problems()
    if named in shipped:
        return read(shipped[named])
    path = Path(named)
    if path.suffix == ".toml" or path.is_file():
        return read(path)
    hint = nearest(named, shipped) or "; `mha-conformance list problems` names those that come with the suite"
    raise UsageError(f"no problem and no file named {named!r}{hint}")


@cache
def read(path: Path) -> Problem:
    """Reads a problem.

    Raises:
        UsageError: it cannot be read, or is no problem.
    """
    try:
        found = tomllib.loads(read_bytes(path, MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"problem {path} cannot be read: {error.strerror or error}") from error
    except (TooLargeError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"problem {path} is no TOML: {error}") from error
    if wrong := flaw(validator(schema("problem")), found):
        raise UsageError(f"problem {path}: {wrong} (spec/schema/problem.json)")
    problem = _problem(path.stem, found)
    if wrong := _wrong(problem):
        raise UsageError(f"problem {path}: {wrong} (spec/judge.md)")
    return problem


def _problem(name: str, found: Mapping[str, Any]) -> Problem:
    sizes, options, call = found["sizes"], found.get("options", {}), found["call"]
    heads = sizes["heads"]
    window = options.get("window")
    return Problem(
        name=found.get("name", name),
        title=found["title"],
        about=found.get("about", ""),
        operation=found["operation"],
        dtypes=tuple(found["dtypes"]),
        policy=found.get("policy", "eager"),
        gradients=found.get("gradients", False),
        finite=found.get("finite", True),
        own=found.get("own", False),
        free=frozenset(found.get("free", ())),
        multiple=found.get("multiple", 1),
        latent=found.get("latent", False),
        sizes=Sizes(
            **{"kv_heads": heads, "d_v": sizes["d_k"], "kv_len": sizes["q_len"], **sizes},
        ),
        options=Options(
            **{
                **options,
                # TOML has no null: an open side is written as -1
                "window": None if window is None else tuple(None if n < 0 else n for n in window),
            }
        ),
        call=Calling(
            kind=call["kind"],
            names=tuple(call["names"]),
            arrays=call.get("arrays", "torch"),
            layout=call.get("layout", "bhld"),
            form=call.get("form", "plain"),
            arguments=tuple(_argument(text) for text in call["arguments"]),
            results=tuple(call.get("results", ["output"])),
            one_tuple=call.get("one_tuple", False),
            init=tuple(call.get("init", ())),
            state=dict(call.get("state", {})),
            one_query=call.get("one_query", False),
        ),
    )


def _argument(text: str) -> Argument:
    name, equals, what = text.partition("=")
    return Argument(what, name) if equals else Argument(text)


def _wrong(p: Problem) -> str:
    """What does not go together in a problem."""
    s, o = p.sizes, p.options
    known = {*PLAIN, *OPTIONS, *LAYER, *(LATENT if p.latent else ())}
    known |= {*RAGGED} if p.call.form != "plain" else set()
    known |= {*PAGED} if p.call.form == "paged" else set()
    for argument in p.call.arguments:
        if argument.what not in known:
            return f"argument {argument.what!r} is unknown{nearest(argument.what, known)}"
    if s.heads % s.kv_heads:
        return f"heads = {s.heads} is no multiple of kv_heads = {s.kv_heads}"
    if {"length"} < p.free & {"length", "q_len", "kv_len"}:
        return "free has length, which is q_len and kv_len alike, and one of the two"
    if p.tied and s.q_len != s.kv_len:
        return f"q_len = {s.q_len} and kv_len = {s.kv_len} differ, but one length is free"
    if (o.is_causal or o.window) and s.q_len != s.kv_len and o.offset == "none":
        return 'is_causal and window need offset = "end" where q_len and kv_len differ'
    if p.layer and not s.d_model:
        return "multi_head_attention needs sizes.d_model"
    if p.latent and s.d_v > s.d_k:
        return "latent values are the first d_v columns of the keys, so that d_v is at most d_k"
    if p.call.form == "paged" and not s.page:
        return "a paged call needs sizes.page"
    if p.policy in REDUCED_POLICIES and set(p.dtypes) != {"float32"}:
        return f"policy {p.policy} is one of float32 alone"
    if o.scale is not None and not math.isfinite(o.scale):
        return "scale is no finite number"
    if p.gradients and (p.call.arrays != "torch" or p.call.form != "plain" or p.layer or p.latent):
        return "gradients are asked of plain attention in torch alone"
    if "attn_bias" in (a.what for a in p.call.arguments) and not o.attn_bias:
        return "an argument is attn_bias, and options.attn_bias does not say which axes it has"
    return ""
