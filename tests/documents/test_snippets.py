"""The three pieces of code of the documents, each as it stands and with the smallest mend."""

import dataclasses

import numpy as np
import pytest
from document_layers import draw, layer, tokens

from conformance.judging.judge import judge
from conformance.vectors.load import load_vectors

LOOP = """
def multi_head_attention(Q, K, V, W_Q, W_K, W_V, W_O, h):
    heads = []
    for i in range(h):
        Q_i = Q @ W_Q[i]  # Project to subspace
        K_i = K @ W_K[i]
        V_i = V @ W_V[i]
        head_i = scaled_dot_product_attention(Q_i, K_i, V_i)
        heads.append(head_i)
    
    concat = concatenate(heads, axis=-1)
    output = concat @ W_O
    return output
"""  # noqa: W293 -- as it stands

BATCHED = """
# Efficient: Single batched operation
Q_all = Q @ W_Q.view(d_model, h, d_k)  # (seq, h, d_k)
K_all = K @ W_K.view(d_model, h, d_k)
V_all = V @ W_V.view(d_model, h, d_v)

# Compute all heads in parallel
attn_scores = torch.einsum('ihd,jhd->hij', Q_all, K_all)
"""

MODULE = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_k = d_model // num_heads
        self.h = num_heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        bs = q.size(0)
        q = self.q_linear(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        k = self.k_linear(k).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        v = self.v_linear(v).view(bs, -1, self.h, self.d_k).transpose(1, 2)

        scores = attention(q, k, v, mask, self.dropout)
        concat = scores.transpose(1, 2).contiguous().view(bs, -1, self.d_model)
        return self.out(concat)
"""

PLAIN = (
    "projection/plain",
    "example/heads-as-computed",
    "example/printed-concatenation",
    "example/output-projection",
)
BIASED = (
    "projection/square",
    "example/layer-64-as-4-of-16",
    "example/layer-256-as-4-of-64",
    "example/layer-512-as-8-of-64",
)
CASES = {case.id: case for case in load_vectors().cases}


def need_torch():
    return pytest.importorskip("torch", reason="the snippet is written for torch, which is not installed")


def judged(case_id, dtype, output):
    """The suite's verdict on an output alone: the snippets return nothing else."""
    case = CASES[case_id]
    case = dataclasses.replace(case, expected={"output": case.expected["output"]}, options={})
    return judge(case, dtype, "eager", {"output": np.asarray(output)}).verdict


def attend_numpy(q, k, v):
    logits = q @ k.swapaxes(-1, -2) / np.asarray(np.sqrt(q.shape[-1]), q.dtype)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def attend_torch(q, k, v, mask=None, dropout=None):
    torch = need_torch()
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    weights = logits.softmax(-1)
    return (weights if dropout is None else dropout(weights)) @ v


def run_loop(names, query, key, value, w_q, w_k, w_v, w_o):
    scope = dict(names)
    exec(LOOP, scope)
    return scope["multi_head_attention"](
        query, key, value, w_q, w_k, w_v, w_o.reshape(-1, w_o.shape[-1]), w_q.shape[0]
    )


MENDED_NAMES = {"scaled_dot_product_attention": attend_numpy, "concatenate": np.concatenate}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case_id", PLAIN)
def test_loop_over_heads(case_id, dtype):
    assert judged(case_id, dtype, run_loop(MENDED_NAMES, **CASES[case_id].operands(dtype))) == "pass"


def test_loop_over_heads_against_the_core():
    x, source = tokens(0, 3, 6), tokens(1, 5, 6)
    weights = draw(2, 3, 6, 2, d_v=4)
    np.testing.assert_allclose(
        run_loop(MENDED_NAMES, x, source, source, *weights),
        layer(x, *weights, source),
        rtol=1e-12,
        atol=1e-13,
    )


def test_loop_over_heads_needs_two_names():
    operands = CASES["projection/plain"].operands("float64")
    for missing in MENDED_NAMES:
        names = {name: function for name, function in MENDED_NAMES.items() if name != missing}
        with pytest.raises(NameError, match=missing):
            run_loop(names, **operands)


def run_batched(text, query, key, value, w_q, w_k, w_v, w_o):
    """The snippet on tensors of one batch entry; the fused weights hold the heads side by side."""
    torch = need_torch()
    heads, d_model, d_k = w_q.shape
    scope = {"torch": torch, "d_model": d_model, "h": heads, "d_k": d_k, "d_v": w_v.shape[-1]}
    scope |= {"Q": torch.tensor(query), "K": torch.tensor(key), "V": torch.tensor(value)}
    for name, w in (("W_Q", w_q), ("W_K", w_k), ("W_V", w_v)):
        scope[name] = torch.tensor(w).transpose(0, 1).reshape(d_model, -1).contiguous()
    exec(text, scope)
    weights = (scope["attn_scores"] / d_k**0.5).softmax(-1)  # from here on ours: the snippet stops
    z = torch.einsum("hij,jhd->ihd", weights, scope["V_all"]).flatten(1)
    return (z @ torch.tensor(w_o).flatten(0, 1)).numpy()


def mended_batched():
    text = BATCHED
    for name in "QKV":
        width = "d_v" if name == "V" else "d_k"
        text = text.replace(
            f"{name} @ W_{name}.view(d_model, h, {width})", f"({name} @ W_{name}).view(-1, h, {width})"
        )
    return text


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case_id", PLAIN)
def test_batched_heads(case_id, dtype):
    operands = CASES[case_id].operands(dtype)
    entries = {name: operands.pop(name) for name in ("query", "key", "value")}
    if entries["query"].ndim == 2:
        output = run_batched(mended_batched(), **entries, **operands)
    else:
        rows = [dict(zip(entries, row, strict=True)) for row in zip(*entries.values(), strict=True)]
        output = np.stack([run_batched(mended_batched(), **row, **operands) for row in rows])
    assert judged(case_id, dtype, output) == "pass"


def test_batched_heads_against_the_core():
    x, source = tokens(0, 3, 6), tokens(1, 5, 6)
    weights = draw(2, 3, 6, 2, d_v=4)
    output = run_batched(mended_batched(), x, source, source, *weights)
    np.testing.assert_allclose(output, layer(x, *weights, source), rtol=1e-12, atol=1e-13)


def test_batched_heads_do_not_multiply_as_written():
    x = tokens(0, 3, 6)
    need_torch()
    with pytest.raises(RuntimeError, match="size"):
        run_batched(BATCHED, x, x, x, *draw(1, 3, 6, 2))


def test_batched_heads_run_wrongly_where_widths_agree():
    torch = need_torch()
    seq, d_model, h, d_k = 5, 4, 4, 1  # h = d_model: the product is legal, and is over the wrong axis
    w = torch.tensor(draw(0, 1, d_model, h * d_k)[0][0])
    x = torch.tensor(tokens(1, seq, d_model))
    scope = {"torch": torch, "d_model": d_model, "h": h, "d_k": d_k, "d_v": d_k, "Q": x, "K": x, "V": x}
    exec(BATCHED, scope | {"W_Q": w, "W_K": w, "W_V": w}, scope)
    assert tuple(scope["Q_all"].shape) == (d_model, seq, d_k) != (seq, h, d_k)
    assert tuple(scope["attn_scores"].shape) == (seq, d_model, d_model) != (h, seq, seq)


def test_batched_heads_may_not_view_the_stacked_weights():
    torch = need_torch()
    stacked = torch.tensor(draw(0, 2, 4, 2)[0])  # (h, d_model, d_k), as the loop has them
    viewed = stacked.contiguous().view(4, 2, 2)  # (d_model, h, d_k) by name only
    right = stacked.transpose(0, 1)
    assert abs(viewed - right).max() > 0.1
    np.testing.assert_array_equal(right.reshape(4, 4)[:, :2], stacked[0])


def test_einsum_scores():
    torch = need_torch()
    q, k = torch.tensor(tokens(0, 3, 8)).view(3, 2, 4), torch.tensor(tokens(1, 5, 8)).view(5, 2, 4)
    scores = torch.einsum("ihd,jhd->hij", q, k)
    np.testing.assert_allclose(scores, q.transpose(0, 1) @ k.permute(1, 2, 0), rtol=1e-12)
    assert scores.shape == (2, 3, 5)


MENDS = {"self.h = num_heads": "self.h = num_heads; self.d_model = d_model; self.dropout = None"}


def module_class(text, **names):
    torch = need_torch()
    scope = {"nn": torch.nn, "attention": attend_torch} | names
    exec(text, scope)
    return scope["MultiHeadAttention"]


def mended_module(without=""):
    """The module with both attributes set, or without one of them."""
    text = MODULE
    for old, new in MENDS.items():
        text = text.replace(
            old, "; ".join(part for part in new.split("; ") if not without or without not in part)
        )
    return text


def loaded(module, operands):
    """The module in the dtype of the operands, with their weights, each transposed as nn.Linear keeps it."""
    torch = need_torch()
    module = module.to(torch.tensor(operands["query"]).dtype)
    heads, d_model, _ = operands["w_q"].shape
    for name in "qkv":
        w = operands[f"w_{name}"].swapaxes(0, 1).reshape(d_model, -1)
        b = operands.get(f"b_{name}", np.zeros((heads, d_model // heads)))
        linear = getattr(module, f"{name}_linear")
        linear.weight.data[:], linear.bias.data[:] = torch.tensor(w.T), torch.tensor(b.reshape(-1))
    module.out.weight.data[:] = torch.tensor(operands["w_o"].reshape(-1, d_model).T)
    module.out.bias.data[:] = torch.tensor(operands.get("b_o", np.zeros(d_model)))
    return module


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case_id", PLAIN[1:] + BIASED)
def test_module(case_id, dtype):
    torch = need_torch()
    operands = CASES[case_id].operands(dtype)
    heads, d_model, _ = operands["w_q"].shape
    module = loaded(module_class(mended_module())(d_model, heads), operands)
    batched = operands["query"].ndim == 3
    inputs = [torch.tensor(operands[name]) for name in ("query", "key", "value")]
    with torch.no_grad():
        output = module(*(x if batched else x[None] for x in inputs))
    assert judged(case_id, dtype, output if batched else output[0]) == "pass"


def test_module_with_mask_against_the_core():
    torch = need_torch()
    x, source = tokens(0, 3, 6)[None], tokens(1, 5, 6)[None]
    w_q, w_k, w_v, w_o = draw(2, 3, 6, 2)
    operands = {"query": x, "w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    mask = np.tri(3, 5, 2, dtype=bool)
    module = loaded(module_class(mended_module())(6, 3), operands)
    with torch.no_grad():
        output = module(*(torch.tensor(a) for a in (x, source, source)), mask=torch.tensor(mask))
    np.testing.assert_allclose(
        output, layer(x, w_q, w_k, w_v, w_o, source, mask=mask), rtol=1e-11, atol=1e-12
    )


def test_module_lacks_two_attributes_and_a_function():
    torch = need_torch()
    x = torch.ones(1, 2, 4)
    with pytest.raises(AttributeError, match="dropout"):
        module_class(MODULE)(4, 2)(x, x, x)
    for attribute in ("dropout", "d_model"):
        with pytest.raises(AttributeError, match=attribute):
            module_class(mended_module(without=f"self.{attribute}"))(4, 2)(x, x, x)
    scope = {"nn": torch.nn}
    exec(mended_module(), scope)
    with pytest.raises(NameError, match="attention"):
        scope["MultiHeadAttention"](4, 2)(x, x, x)


def test_module_mixes_tokens_where_heads_do_not_divide_the_width():
    torch = need_torch()
    module = module_class(mended_module())(5, 2)  # d_k = 2, one feature over
    with pytest.raises(RuntimeError, match="invalid for input"):
        module(*[torch.ones(1, 3, 5)] * 3)
    x = torch.tensor(tokens(0, 4, 5), dtype=torch.float32)[None]  # 4 tokens of 5 are 5 "tokens" of 2 times 2
    seen = []
    with torch.no_grad():
        output = module_class(mended_module(), attention=lambda q, *rest: seen.append(q.shape) or q)(5, 2)(
            x, x, x
        )
    assert output.shape == x.shape  # nothing to notice outside
    assert tuple(seen[0]) == (1, 2, 5, 2)  # yet five tokens attended instead of four


def test_module_has_no_value_width():
    torch = need_torch()
    with pytest.raises(TypeError, match="d_v"):
        module_class(mended_module())(8, 2, d_v=6)
    module = module_class(mended_module())(8, 2)
    assert module.v_linear.weight.shape == module.k_linear.weight.shape == torch.Size([8, 8])
