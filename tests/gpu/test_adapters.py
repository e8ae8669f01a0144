"""Adapters of kernels that need a GPU, with libraries of the same names and signatures, computed on the CPU."""

import importlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import stand_ins

import mha_core

ROOT = Path(__file__).parents[2]
torch = pytest.importorskip("torch", reason="torch is not installed")

ADAPTERS = {
    "flash-attn": "flash_attn",
    "flashinfer": "flashinfer",
    "vllm": "vllm",
    "xformers": "xformers",
}
DRAWS = 15
"""Calls that each adapter is asked."""


@pytest.fixture(params=ADAPTERS)
def adapter(request, monkeypatch):
    """An adapter whose library is a fake."""
    stand_ins.installed(monkeypatch, ADAPTERS[request.param])
    name = f"backends.{ADAPTERS[request.param]}_backend"
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    yield module
    sys.modules.pop(name, None)


def draw(rng, count, longest):
    """Options that kernels have, and lengths of queries and keys, the last query at the last key."""
    options = {"scale": [None, 0.3][rng.integers(2)], "return_lse": True}
    q_lens = rng.integers(1, 4, count)
    kv_lens = q_lens + rng.integers(0, longest, count)
    if rng.random() < 0.5:
        options |= {"is_causal": True, "q_offset": torch.tensor(kv_lens - q_lens)}
    return options, q_lens, kv_lens


def extras(rng, adapter, options):
    """A softcap or a window, where an adapter has them."""
    if "softcap" in adapter.features and rng.random() < 0.3:
        options["softcap"] = 1.5
    if "window" in adapter.features and options.get("is_causal") and rng.random() < 0.5:
        options["window"] = (2, 0)


def same(got, wanted):
    """Output and log-sum-exp to what a half holds."""
    for name in ("output", "lse"):
        x, y = got[name].float(), getattr(wanted, name).float()
        assert x.shape == y.shape
        torch.testing.assert_close(x, y, rtol=2e-3, atol=2e-3)


def halves(rng, *shape):
    return torch.tensor(rng.standard_normal(shape), dtype=torch.float16)


def test_what_it_declares(adapter):
    operations = {"packed_attention", "paged_attention", "append_to_pages", "merge_attention"}
    assert {name.split("_")[0] for name in operations & set(adapter.__all__)} <= adapter.features
    assert (adapter.array_type, adapter.device) == ("torch", "cuda")
    named = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert named["mha_conformance.implementations"][adapter.name] == adapter.__name__


def test_packed(adapter):
    if "packed" not in adapter.features:
        assert not hasattr(adapter, "packed_attention")
        return
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        options, q_lens, kv_lens = draw(rng, 3, 5)
        extras(rng, adapter, options)
        starts = [torch.tensor([0, *np.cumsum(x)]) for x in (q_lens, kv_lens)]
        query, (key, value) = halves(rng, 4, starts[0][-1], 8), halves(rng, 2, 2, starts[1][-1], 8)
        given = {"q_starts": starts[0], "kv_starts": starts[1], **options}
        same(
            adapter.packed_attention(query, key, value, **given),
            mha_core.packed_attention(query, key, value, **given),
        )


def test_paged(adapter):
    if "paged" not in adapter.features:
        assert not hasattr(adapter, "paged_attention")
        return
    size = getattr(adapter, "PAGE", 3)
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        options, _, kv_lens = draw(rng, 3, 2 * size)
        kv_lens = np.maximum(kv_lens, 2)
        if "q_offset" in options:
            options["q_offset"] = torch.tensor(kv_lens - 2)
        extras(rng, adapter, options)
        pages = halves(rng, 2, 9, size, 2, 8)
        table = torch.tensor(rng.permutation(9).reshape(3, 3))
        table[torch.arange(3) * size >= torch.tensor(kv_lens)[:, None]] = 2**31 - 1
        given = {"page_table": table, "kv_lengths": torch.tensor(kv_lens), **options}
        query = halves(rng, 3, 4, 2, 8)
        same(
            adapter.paged_attention(query, *pages, **given), mha_core.paged_attention(query, *pages, **given)
        )


def test_append(adapter):
    if "append" not in adapter.features:
        assert not hasattr(adapter, "append_to_pages")
        return
    rng = np.random.default_rng(1)
    pages, rows = halves(rng, 2, 5, 16, 2, 8), halves(rng, 2, 4, 2, 8)
    kept, slots = pages.clone(), torch.tensor([17, -1, 0, 79])
    got, wanted = (f(*pages, *rows, slots=slots) for f in (adapter.append_to_pages, mha_core.append_to_pages))
    for x, y in zip(got, wanted, strict=True):
        assert torch.equal(x, y)
    assert torch.equal(pages, kept), "the operands stay as they are"


def test_merge(adapter):
    if "merge" not in adapter.features:
        assert not hasattr(adapter, "merge_attention")
        return
    rng = np.random.default_rng(2)
    outputs, lses = (
        halves(rng, 3, 2, 4, 5, 8),
        torch.tensor(rng.standard_normal((3, 2, 4, 5)), dtype=torch.float32),
    )
    lses[1, 0, 1], lses[0, 1] = -torch.inf, 40.0
    output, lse = adapter.merge_attention([*outputs], [*lses])
    same({"output": output, "lse": lse}, mha_core.merge_attention([*outputs], [*lses]))
    with pytest.raises(NotImplementedError, match="sinks"):
        adapter.merge_attention([*outputs], [*lses], sinks=torch.zeros(4))


def test_another_alignment_is_not_supported(adapter):
    rows, starts = torch.zeros((2, 4, 8)), torch.tensor([0, 4])
    pages, table, lengths = (
        torch.zeros((1, 256, 2, 8)),
        torch.zeros((1, 1), dtype=torch.int64),
        torch.tensor([9]),
    )
    packed = {"q_starts": starts, "kv_starts": starts, "is_causal": True, "q_offset": 1}
    paged = {"page_table": table, "kv_lengths": lengths, "is_causal": True, "q_offset": 0}
    has = "packed" in adapter.features
    operation, arrays = (
        (adapter.packed_attention, (rows, rows, rows))
        if has
        else (adapter.paged_attention, (rows[None], pages, pages))
    )
    with pytest.raises(NotImplementedError, match="aligned with the last key"):
        operation(*arrays, **packed if has else paged)
