"""Importers and exporters of weights: round trips bit for bit, layouts by their formulas, and what is refused."""

import numpy as np
import pytest
from array_libraries import library

import mha_core
from mha_core.weights import FORMS, export_weights, import_weights
from mha_core.weights.convert import _flattened

LIBRARIES = ("numpy", "array-api-strict", "torch", "jax")
PAIRS = [
    (form, name)
    for name in LIBRARIES
    for form in FORMS
    if name != "jax" or form in ("llama", "onnx-attention")
]
BIASES = ("b_q", "b_k", "b_v", "b_o")
H = 4
MERGED = {"num_heads": H}


def drawn(form, biases=BIASES, seed=0):
    """Weights that the form can hold, all sizes different where it lets them: random bits, NaN and -0 among them."""
    rule = FORMS[form]
    g = 2 if rule.grouped else H
    d_q, d_kv, d_vv, d_k, d_v, d_out = (12, 5, 7, 3, 3, 12) if rule.square else (6, 5, 7, 3, 2, 9)
    if form in ("pytorch", "onnx-attention"):  # one tensor holds all three
        d_kv = d_vv = d_q
    shapes = {
        "w_q": (H, d_q, d_k),
        "w_k": (g, d_kv, d_k),
        "w_v": (g, d_vv, d_v),
        "w_o": (H, d_v, d_out),
        "b_q": (H, d_k),
        "b_k": (g, d_k),
        "b_v": (g, d_v),
        "b_o": (d_out,),
    }
    rng = np.random.default_rng(seed)
    names = [name for name in shapes if name.startswith("w_") or name in biases]
    return {
        name: rng.integers(0, 2**32, shapes[name], dtype=np.uint32).view(np.float32)
        if seed == 0
        else rng.standard_normal(shapes[name])
        for name in names
    }


def bits(arrays):
    return {name: (x.shape, x.dtype.name, np.ascontiguousarray(x).tobytes()) for name, x in arrays.items()}


def flat(form, tensors):
    return dict(_flattened(tensors, FORMS[form].separator))


@pytest.mark.parametrize("form", FORMS)
def test_round_trip_is_bit_for_bit(form):
    weights = drawn(form)
    assert any(np.isnan(x).any() for x in weights.values())
    tensors = export_weights(form, weights, prefix="layer.0.")
    again = import_weights(form, tensors, prefix="layer.0.", **MERGED)
    assert bits(again) == bits(weights)
    assert list(again) == list(weights)
    there = export_weights(form, again, prefix="layer.0.")
    assert bits(flat(form, there)) == bits(flat(form, tensors))
    assert sum(x.size for x in flat(form, tensors).values()) == sum(x.size for x in weights.values())


@pytest.mark.parametrize(("form", "name"), PAIRS)
def test_every_library(form, name):
    lib = library(name)
    weights = drawn(form, seed=1)
    given = {part: lib.array(x, "float32") for part, x in weights.items()}
    again = import_weights(form, export_weights(form, given), **MERGED)
    assert {type(x) for x in again.values()} == {type(x) for x in given.values()}
    for part, x in again.items():
        np.testing.assert_array_equal(lib.numpy(x), weights[part].astype(np.float32))


def test_bfloat16_is_not_widened():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weights = {name: torch.asarray(x).to(torch.bfloat16) for name, x in drawn("llama", seed=1).items()}
    again = import_weights("llama", export_weights("llama", weights), **MERGED)
    assert all(torch.equal(again[name], x) and x.dtype == torch.bfloat16 for name, x in weights.items())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("biases", [(), ("b_q", "b_k", "b_v"), ("b_o",), ("b_q",)])
def test_biases_that_are_there(form, biases):
    weights = drawn(form, biases)
    rule = FORMS[form].biases
    packed = any(len(tensor.parts) == 3 and tensor.is_bias for tensor in FORMS[form].tensors)
    refused = rule == "needed" or (rule == "all" and biases) or (packed and biases == ("b_q",))
    if refused:
        with pytest.raises(ValueError, match=r"b_\w+.* missing: .*zeros"):
            export_weights(form, weights)
    else:
        again = import_weights(form, export_weights(form, {**weights, "b_v": weights.get("b_v")}), **MERGED)
        assert bits(again) == bits(weights)


def sides(form, tensors, x, heads):
    """Query heads (H, n, d_k) of tokens x and the sum of heads through the output projection, by the formulas."""
    n = x.shape[0]
    first = {
        "pytorch": ("in_proj_weight", lambda w: x @ w[: w.shape[0] // 3].T),
        "pytorch-separate": ("q_proj_weight", lambda w: x @ w.T),
        "keras": ("query/kernel", lambda w: np.einsum("ni,ihd->nhd", x, w)),
        "flax": ("query/kernel", lambda w: np.einsum("ni,ihd->nhd", x, w)),
        "equinox": ("query_proj.weight", lambda w: x @ w.T),
        "haiku": ("query/w", lambda w: x @ w),
        "bert": ("self.query.weight", lambda w: x @ w.T),
        "llama": ("q_proj.weight", lambda w: x @ w.T),
        "onnx-attention": ("weights", lambda w: x @ w[:, :12]),
        "onnx-multi-head-attention": ("query.weight", lambda w: x @ w),
    }
    last = {
        "pytorch": ("out_proj.weight", lambda z, w: z @ w.T),
        "pytorch-separate": ("out_proj.weight", lambda z, w: z @ w.T),
        "keras": ("attention_output/kernel", lambda z, w: z @ w.reshape(-1, w.shape[2])),
        "flax": ("out/kernel", lambda z, w: z @ w.reshape(-1, w.shape[2])),
        "equinox": ("output_proj.weight", lambda z, w: z @ w.T),
        "haiku": ("linear/w", lambda z, w: z @ w),
        "bert": ("output.dense.weight", lambda z, w: z @ w.T),
        "llama": ("o_proj.weight", lambda z, w: z @ w.T),
        "onnx-attention": ("out.weight", lambda z, w: z @ w),
        "onnx-multi-head-attention": ("out.weight", lambda z, w: z @ w),
    }
    name, project = first[form]
    query = project(tensors[name]).reshape(n, H, -1).swapaxes(0, 1)
    name, back = last[form]
    side_by_side = heads.swapaxes(0, 1).reshape(n, -1)
    return query, back(side_by_side, tensors[name])


@pytest.mark.parametrize("form", FORMS)
def test_layout_by_the_formulas(form):
    weights = drawn(form, seed=1)
    rng = np.random.default_rng(2)
    x, heads = (
        rng.standard_normal((3, weights["w_q"].shape[1])),
        rng.standard_normal((H, 3, weights["w_o"].shape[1])),
    )
    query, output = sides(form, flat(form, export_weights(form, weights)), x, heads)
    np.testing.assert_allclose(query, x @ weights["w_q"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(output, (heads @ weights["w_o"]).sum(0), rtol=1e-12, atol=1e-12)


def test_packed_tensors_hold_query_key_value_in_this_order():
    weights = drawn("onnx-attention", seed=1)
    packed = export_weights("onnx-attention", weights)
    d = H * 3
    for name, cut in (("q", slice(0, d)), ("k", slice(d, 2 * d)), ("v", slice(2 * d, None))):
        np.testing.assert_array_equal(packed["weights"][:, cut], np.hstack(list(weights[f"w_{name}"])))
        np.testing.assert_array_equal(packed["bias"][cut], weights[f"b_{name}"].ravel())


TENSORS = [(form, tensor.name) for form in FORMS for tensor in FORMS[form].tensors]


@pytest.mark.parametrize(("form", "tensor"), TENSORS)
def test_a_missing_tensor_is_named(form, tensor):
    tensors = flat(form, export_weights(form, drawn(form), prefix="a."))
    del tensors[f"a.{tensor}"]
    rule = FORMS[form]
    if rule.biases == "each" and next(t for t in rule.tensors if t.name == tensor).is_bias:
        assert len(import_weights(form, tensors, prefix="a.", **MERGED)) < 8
        return
    with pytest.raises(ValueError, match=f"a.{tensor} missing: form {form} wants .*a.{tensor}"):
        import_weights(form, tensors, prefix="a.", **MERGED)


@pytest.mark.parametrize("form", FORMS)
def test_an_extra_tensor_is_named(form):
    tensors = export_weights(form, drawn(form), prefix="a.")
    extra = {**tensors, "a.norm": np.ones(3), "b.other": np.ones(3)}
    with pytest.raises(ValueError, match=r"^a.norm not known: .* `ignore`"):
        import_weights(form, extra, prefix="a.", **MERGED)
    again = import_weights(form, extra, prefix="a.", ignore=["norm"], **MERGED)
    assert bits(again) == bits(drawn(form))


@pytest.mark.parametrize(("form", "tensor"), TENSORS)
def test_a_misshapen_tensor_is_refused(form, tensor):
    tensors = flat(form, export_weights(form, drawn(form)))
    whole = tensors[tensor]
    for axis in range(whole.ndim):
        shape = list(whole.shape)
        shape[axis] += 1
        if free(form, tensor, axis):
            continue
        with pytest.raises(ValueError, match=r"has shape \(.*wants") as error:
            import_weights(form, {**tensors, tensor: np.zeros(shape)}, **MERGED)
        assert any(str(error.value).startswith(t.name) for t in FORMS[form].tensors)
    with pytest.raises(ValueError, match=f"{tensor} has shape .*wants {whole.ndim} axes"):
        import_weights(form, {**tensors, tensor: whole[None]}, **MERGED)


def free(form, tensor, axis):
    """Whether nothing else in the form says how long this axis is: the width of an input, or of a head of 1 more."""
    rule = next(t for t in FORMS[form].tensors if t.name == tensor)
    size = {"w_q": "d_q", "w_k": "d_kv", "w_v": "d_vv"}.get(rule.parts[0])
    return size is not None and rule.axes[axis] == (1,) and not (FORMS[form].square and size == "d_q")


def test_a_misshapen_tensor_is_told_with_what_is_wanted():
    tensors = export_weights("llama", drawn("llama"))
    tensors["k_proj.weight"] = np.zeros((7, 5))
    told = r"^k_proj.weight has shape \(7, 5\) but form llama wants a length of 3 \* num_kv_heads in place of 7, for"
    with pytest.raises(ValueError, match=told):
        import_weights("llama", tensors, **MERGED)
    with pytest.raises(ValueError, match=r"k_proj.weight has shape \(6, 5\) but form llama wants \(12, 5\)"):
        import_weights("llama", export_weights("llama", drawn("llama")), num_kv_heads=4, **MERGED)


def test_heads_are_asked_for_only_where_they_are_hidden():
    for form in FORMS:
        tensors = export_weights(form, drawn(form))
        if form in ("keras", "flax"):
            assert bits(import_weights(form, tensors)) == bits(drawn(form))
        else:
            with pytest.raises(ValueError, match=r"num_heads=None .* give their number"):
                import_weights(form, tensors)
    with pytest.raises(ValueError, match="num_heads=0 but at least 1"):
        import_weights("keras", export_weights("keras", drawn("keras")), num_heads=0)


def test_names_of_initialisers():
    names = {"weights": "MatMul_12", "out.weight": "onnx::MatMul_40"}
    weights = drawn("onnx-attention", ())
    tensors = export_weights("onnx-attention", weights, names=names)
    assert set(tensors) == {"MatMul_12", "onnx::MatMul_40"}
    assert bits(import_weights("onnx-attention", tensors, names=names, **MERGED)) == bits(weights)
    with pytest.raises(ValueError, match="names has 'weight' but form onnx-attention has weights"):
        import_weights("onnx-attention", tensors, names={"weight": "x"})


def test_nested_forms():
    assert set(export_weights("flax", drawn("flax"))["query"]) == {"kernel", "bias"}
    haiku = export_weights("haiku", drawn("haiku"), prefix="net/mha/")
    assert set(haiku) == {"net/mha/query", "net/mha/key", "net/mha/value", "net/mha/linear"}
    assert set(haiku["net/mha/query"]) == {"w", "b"}


@pytest.mark.parametrize(
    ("form", "change", "told"),
    [
        ("pytorch", {"w_k": np.zeros((4, 5, 3))}, "d_kv=5 but form pytorch wants d_q=12"),
        ("pytorch-separate", {"w_v": np.zeros((4, 7, 2)), "w_o": np.zeros((4, 2, 12)), "b_v": np.zeros((4, 2))},
         "d_v=2 but form pytorch-separate wants d_k=3"),
        ("bert", {"b_o": None}, "b_o missing: form bert has all biases"),
        ("equinox", {"w_k": np.zeros((2, 5, 3)), "b_k": None, "w_v": np.zeros((2, 7, 2)), "b_v": None},
         "num_heads=4 but form equinox wants num_kv_heads=2"),
        ("keras", {"w_o": None}, "w_o is missing"),
        ("keras", {"w_z": np.zeros(3)}, "w_z is no weight of a layer"),
        ("keras", {"b_q": np.zeros(12)}, "b_q has shape (12,) but needs (H, d_k)"),
        ("keras", {"b_q": np.zeros((4, 2))}, "b_q has shape (4, 2) but the other arrays need (4, 3)"),
        ("keras", {"b_o": "bias"}, "b_o is a str but needs an array"),
        ("tensor-flow", {}, "form='tensor-flow' but known are pytorch, "),
    ],
)  # fmt: skip
def test_export_refuses_what_the_form_cannot_hold(form, change, told):
    weights = drawn(form if form in FORMS else "keras")
    with pytest.raises((ValueError, TypeError)) as error:
        export_weights(form, {**weights, **change})
    assert str(error.value).startswith(told)


def test_two_libraries_are_refused():
    strict = library("array-api-strict")
    tensors = export_weights("llama", drawn("llama"))
    tensors["v_proj.weight"] = strict.array(tensors["v_proj.weight"])
    with pytest.raises(TypeError, match=r"v_proj.weight is an array of array_api_strict but q_proj.weight"):
        import_weights("llama", tensors, **MERGED)


def test_the_imported_layer_runs():
    weights = import_weights("llama", export_weights("llama", drawn("llama", seed=1)), **MERGED)
    rng = np.random.default_rng(3)
    query, key, value = (rng.standard_normal((3, d)) for d in (6, 5, 7))
    assert mha_core.multi_head_attention(query, key, value, **weights).shape == (3, 9)
