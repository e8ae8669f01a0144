"""The official test cases of the ONNX operator Attention, put to an attention of the suite's signature.

python -m backends.onnx_cases [TARGET]    runs them all on a target, backends.numpy_backend by default
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

Attention = Callable[..., Any]
"""Takes query, key, value and the options by keyword; returns a mapping or a named tuple."""
BEFORE_SOFTCAP, AFTER_SOFTCAP, BIASED, WEIGHTS = range(4)
"""What qk_matmul_output holds, by qk_matmul_output_mode."""


@dataclass(frozen=True)
class OnnxCase:
    """One case: a single node, its inputs and what it is to give."""

    name: str
    inputs: Mapping[str, Any]  # by the operator's names
    attributes: Mapping[str, Any]
    wanted: Mapping[str, Any]
    rtol: float
    atol: float

    @property
    def mode(self) -> int:
        """What qk_matmul_output is asked to hold."""
        return int(self.attributes.get("qk_matmul_output_mode", BEFORE_SOFTCAP))

    def problem(self, got: Mapping[str, Any]) -> str:
        """Why ONNX's own comparison refuses an answer; empty if it does not."""
        if set(got) != set(self.wanted):
            return f"{sorted(got)} was returned, {sorted(self.wanted)} is wanted"
        try:
            Runner.assert_similar_outputs(
                [self.wanted[name] for name in self.wanted],
                [got[name] for name in self.wanted],
                rtol=self.rtol,
                atol=self.atol,
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
        return ""


def official_cases() -> list[OnnxCase]:
    """Those of the operator itself: the `_expanded` ones run its decomposition on the same numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other operators' cases, which are made as well
        loaded = load_model_tests(kind="node")
    mine = (case for case in loaded if case.name.startswith("test_attention_"))
    return [_read(case) for case in mine if not case.name.endswith("_expanded")]


def _read(case: Any) -> OnnxCase:
    (node,) = case.model.graph.node
    ((inputs, outputs),) = case.data_sets
    return OnnxCase(
        name=case.name.removeprefix("test_"),
        inputs=dict(zip(filter(None, node.input), inputs, strict=True)),
        attributes={a.name: helper.get_attribute_value(a) for a in node.attribute},
        wanted=dict(zip(filter(None, node.output), outputs, strict=True)),
        rtol=case.rtol,
        atol=case.atol,
    )


def call_of(case: OnnxCase) -> dict[str, Any]:
    """The call that means the same: operands and options by the suite's names, the outputs aside."""
    inputs, attributes = case.inputs, case.attributes
    call = {
        "query": _heads(inputs["Q"], attributes.get("q_num_heads")),
        "key": _heads(inputs["K"], attributes.get("kv_num_heads")),
        "value": _heads(inputs["V"], attributes.get("kv_num_heads")),
    }
    call |= {name: inputs[name] for name in ("past_key", "past_value") if name in inputs}
    q_len, kv_len = call["query"].shape[-2], call["key"].shape[-2]
    place: Any = 0  # of the first query
    if "past_key" in inputs:
        place = inputs["past_key"].shape[-2]
        kv_len += place
    elif "nonpad_kv_seqlen" in inputs:
        call["kv_lengths"] = inputs["nonpad_kv_seqlen"]
        place = inputs["nonpad_kv_seqlen"] - q_len
    if "attn_mask" in inputs:
        mask = _full(inputs["attn_mask"], q_len, kv_len)
        call["mask" if mask.dtype == bool else "attn_bias"] = mask
    window = [attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if attributes.get("is_causal"):
        call["is_causal"] = True
    if max(window) >= 0:
        call["window"] = [None if side < 0 else side for side in window]
    if "is_causal" in call or "window" in call:
        call["q_offset"] = place
    if "scale" in attributes:
        call["scale"] = attributes["scale"]
    if attributes.get("softcap"):  # 0 stands for none
        call["softcap"] = attributes["softcap"]
    if "qk_matmul_output" in case.wanted and case.mode == WEIGHTS:
        call["return_weights"] = True
    return call


def _heads(x: Any, num_heads: int | None) -> Any:
    """(B, length, heads * d) -> (B, heads, length, d)."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)


def _full(mask: Any, q_len: int, kv_len: int) -> Any:
    """Rank 2 or 4, and as wide as the keys: what a mask does not reach is hidden."""
    short = kv_len - mask.shape[-1]
    if short:
        hidden = False if mask.dtype == bool else -np.inf
        mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, short)], constant_values=hidden)
    return mask[None] if mask.ndim in (1, 3) else mask


def answer(attention: Attention, case: OnnxCase) -> dict[str, Any]:
    """What an attention answers, in the operator's form."""
    call = call_of(case)
    return form_of(case, named(attention(**call)), attention, call)


def form_of(
    case: OnnxCase, got: Mapping[str, Any], attention: Attention, call: Mapping[str, Any]
) -> dict[str, Any]:
    """Outputs by the operator's names; logits, which no attention returns, take a second call."""
    output = got["output"]
    if case.inputs["Q"].ndim == 3:
        output = output.swapaxes(1, 2).reshape(*output.shape[::2], -1)
    found = {"Y": output}
    found |= {name: got[name] for name in ("present_key", "present_value") if name in case.wanted}
    if "qk_matmul_output" in case.wanted:
        found["qk_matmul_output"] = (
            got.get("weights") if case.mode == WEIGHTS else _logits(attention, call, case.mode)
        )
    return found


def _logits(attention: Attention, call: Mapping[str, Any], mode: int) -> Any:
    """Logits at a stage of the computation, from weights and log-sum-exp of what precedes it: log w + lse."""
    after = [] if mode == BIASED else ["attn_bias", "mask", "is_causal", "window", "kv_lengths", "q_offset"]
    after += ["softcap"] if mode == BEFORE_SOFTCAP else []
    before = {name: x for name, x in call.items() if name not in after}
    got = named(attention(**before, return_weights=True, return_lse=True))
    with np.errstate(divide="ignore"):
        logits: Any = np.log(got["weights"]) + got["lse"][..., None]
    return logits.astype(call["query"].dtype)


def named(returned: Any) -> Mapping[str, Any]:
    """The outputs by name."""
    if isinstance(returned, Mapping):
        return returned
    if hasattr(returned, "_asdict"):
        fields: Mapping[str, Any] = returned._asdict()
        return fields
    return {"output": returned}


def problems(attention: Attention, cases: Iterable[OnnxCase]) -> dict[str, str]:
    """Case -> why its answer is refused, for those that are."""
    found = {case.name: case.problem(answer(attention, case)) for case in cases}
    return {name: problem for name, problem in found.items() if problem}


def main(arguments: Sequence[str]) -> int:
    """Prints how many cases a module's attention passes."""
    module = importlib.import_module(arguments[0] if arguments else "backends.numpy_backend")
    cases = official_cases()
    with np.errstate(all="ignore"):
        refused = problems(module.scaled_dot_product_attention, cases)
    for name, problem in refused.items():
        print(f"{name}: {problem}")
    print(f"{len(cases) - len(refused)} of {len(cases)} official ONNX cases of Attention pass")
    return 1 if refused or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
