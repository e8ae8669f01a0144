"""The adapters to copy: what `init --adapter` writes passes on the library, or on a stand-in that follows its manual.

A stand-in has the layout, the arguments and the alignment of the library, and computes in float32.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import conformance
from conformance.cli import main
from conformance.cli.starting import ADAPTERS

torch = pytest.importorskip("torch")

TARGETS = (Path(__file__).parents[1] / "spec" / "targets.md").read_text("utf-8")
NEEDED = {  # features of which at least one test must pass
    "flash-attn": {"is_causal", "scale", "window", "kv_lengths", "softcap", "gqa", "packed", "paged"},
    "triton": {"is_causal", "scale"},
    "flex": {"mask", "attn_bias", "is_causal", "q_offset", "scale", "softcap", "gqa", "value_dim"},
    "xformers": {"attn_bias", "is_causal", "scale", "gqa"},
    "transformers": {"mask", "is_causal", "scale", "gqa"},
}
PART = "attention or causal or heads or mask/kv-lengths"
"""Of the suite: every feature that an adapter handles, in small calls."""
CASES = {
    "flex": "attention/bias or attention/softcap or attention/scale or causal or heads/grouped",
    "flash-attn": f"{PART} or serving/packed or serving/paged",
}
"""For one that is slow without a compiler, and one that has more."""
CAUSAL_TO_THE_LAST_KEY = object()


def attended(q: Any, k: Any, v: Any, scale: Any, seen: Any, bias: Any = 0.0, softcap: float = 0.0) -> Any:
    """Attention of (B, H, L, d) in float32, in the dtype of q; a row that sees nothing is 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1).float() for x in (k, v))
    logits = q.float() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    logits = (logits + bias).masked_fill(~seen, -torch.inf)
    weights = logits.softmax(-1).masked_fill(~seen.any(-1, keepdim=True), 0)
    return (weights @ v).to(q.dtype)


def seen_to_the_end(q_len: int, kv_len: int, causal: bool, window: tuple[int, int] = (-1, -1)) -> Any:
    """(q_len, kv_len): the last query is at the last key, as flash-attn has it since 2.1."""
    left, right = window
    place = torch.arange(q_len)[:, None] + kv_len - q_len
    keys = torch.arange(kv_len)[None]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool)
    seen &= (keys <= place + (0 if causal else right)) if causal or right >= 0 else seen
    return seen & (keys >= place - left) if left >= 0 else seen


def flash_attn_func(
    q: Any, k: Any, v: Any, softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1),
    softcap: float = 0.0,
) -> Any:  # fmt: skip
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.shape[-1] == k.shape[-1] == v.shape[-1]
    seen = seen_to_the_end(q.shape[1], k.shape[1], causal, window_size)
    out = attended(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale, seen, softcap=softcap)
    return out.transpose(1, 2)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, most_q: int, most_k: int, **options: Any
) -> Any:
    assert q.ndim == k.ndim == 3
    assert starts_q.dtype == starts_k.dtype == torch.int32
    assert int(starts_q[-1]) <= len(q)
    assert int(starts_k[-1]) <= len(k)
    output = torch.full_like(q, torch.nan)  # rows of no part
    for b in range(len(starts_q) - 1):
        i, j = (slice(int(starts[b]), int(starts[b + 1])) for starts in (starts_q, starts_k))
        assert i.stop - i.start <= most_q
        assert j.stop - j.start <= most_k
        output[i] = flash_attn_func(q[None, i], k[None, j], v[None, j], **options)[0]
    return output


def flash_attn_with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any, block_table: Any, return_softmax_lse: bool,
    **options: Any,
) -> Any:  # fmt: skip
    assert k_cache.shape[1] % 256 == 0
    assert cache_seqlens.dtype == block_table.dtype == torch.int32
    rows, lses = [], []
    for b, length in enumerate(cache_seqlens.tolist()):
        used = block_table[b, : -(-length // k_cache.shape[1])]
        k, v = (pages[used].flatten(0, 1)[None, :length] for pages in (k_cache, v_cache))
        rows.append(flash_attn_func(q[b : b + 1], k, v, **options))
        k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        logits = torch.einsum("bqhd,bkhd->bhqk", q[b : b + 1].float(), k.float()) * q.shape[-1] ** -0.5
        lses.append(logits.logsumexp(-1))  # (1, H, q_len); of calls that hide nothing
    return (torch.cat(rows), torch.cat(lses)) if return_softmax_lse else torch.cat(rows)


def attention_forward(q: Any, k: Any, v: Any, out: Any, scale: float, causal: bool) -> None:
    assert all(x.is_contiguous() and x.shape[-1] in (16, 32, 64, 128) for x in (q, k, v, out))
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    out.copy_(attended(q, k, v, scale, seen.tril() if causal else seen))


def memory_efficient_attention(q: Any, k: Any, v: Any, attn_bias: Any = None, scale: Any = None) -> Any:
    assert q.shape[2] == k.shape[2] == v.shape[2]
    causal = attn_bias is CAUSAL_TO_THE_LAST_KEY
    if not causal and attn_bias is not None:
        assert attn_bias.shape == (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    bias = 0.0 if causal or attn_bias is None else attn_bias.float()
    seen = seen_to_the_end(q.shape[1], k.shape[1], causal)
    return attended(*(x.transpose(1, 2) for x in (q, k, v)), scale, seen, bias).transpose(1, 2)


def sdpa_attention_forward(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, dropout: float
) -> Any:
    assert module.num_key_value_groups * key.shape[1] == query.shape[1]
    assert attention_mask is None or attention_mask.dtype == query.dtype
    bias = 0.0 if attention_mask is None else attention_mask
    seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    return attended(query, key, value, scaling, seen, bias).transpose(1, 2), None


STAND_INS: dict[str, dict[str, dict[str, Any]]] = {
    "flash-attn": {
        "flash_attn": {
            "flash_attn_func": flash_attn_func,
            "flash_attn_varlen_func": flash_attn_varlen_func,
            "flash_attn_with_kvcache": flash_attn_with_kvcache,
        }
    },
    "triton": {"my_kernels": {"attention_forward": attention_forward}},
    "flex": {},
    "xformers": {
        "xformers": {"__version__": "0"},
        "xformers.ops": {
            "memory_efficient_attention": memory_efficient_attention,
            "LowerTriangularFromBottomRightMask": lambda: CAUSAL_TO_THE_LAST_KEY,
        },
    },
    "transformers": {
        "transformers": {},
        "transformers.integrations": {},
        "transformers.integrations.sdpa_attention": {"sdpa_attention_forward": sdpa_attention_forward},
    },
}


@pytest.fixture(params=ADAPTERS)
def adapter(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """Its name and its file, with a stand-in where the library is not installed or has no kernel for a CPU."""
    wanted = request.param
    stand_ins = STAND_INS[wanted]
    if wanted == "transformers" and importlib.util.find_spec("transformers"):
        stand_ins = {}
    for module, members in stand_ins.items():
        stand_in = ModuleType(module)
        stand_in.__dict__.update(members)
        monkeypatch.setitem(sys.modules, module, stand_in)
    path = tmp_path / "mine.py"
    assert main(["init", str(path), "--adapter", wanted]) == 0
    return wanted, path


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_an_adapter_to_copy_passes_and_tests_what_it_claims(
    adapter: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path = adapter
    # Without it each shape is traced anew, which takes seconds; the numbers are the same.
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    dtype = "float16" if name in ("flash-attn", "triton") else "float32"
    report = conformance.run(
        str(path),
        device="cpu",
        dtype=dtype,
        k=CASES.get(name, PART),
        fresh="off",
        in_process=True,
        no_diagnose=True,
    )
    wrong = [(row.case, row.message) for row in report.results if row.failed]
    assert not [row for row in wrong if name != "transformers"], wrong
    # Models add the lowest number, so an empty row is the mean of the values: what the library is known for.
    assert all("empty" in case or "MASK" in case for case, _ in wrong), wrong
    passed = {feature for row in report.results if row.passed for feature in row.features}
    assert passed >= NEEDED[name], NEEDED[name] - passed


def test_it_is_short_and_the_guide_names_it(adapter: tuple[str, Path]) -> None:
    name, path = adapter
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 120
    assert f"`--adapter {name}`" in TARGETS


def test_an_unknown_adapter_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "a.py"), "--adapter", "flash"]) == 2
    assert "flash-attn" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "a.py"), "--adapter", "flex", "--torch"]) == 2
    assert not list(tmp_path.iterdir())
