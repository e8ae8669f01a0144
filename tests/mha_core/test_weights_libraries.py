"""The layers of real libraries give what the core gives with their weights imported, and take exported ones back."""

import os

import numpy as np
import pytest

import mha_core
from mha_core.weights import export_weights, import_weights

pytestmark = pytest.mark.filterwarnings("default")  # what these libraries warn of is their own affair
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
RNG = np.random.default_rng(31)


def installed(name):
    """A library, or a visible skip."""
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def numpy(tree):
    """A mapping of mappings with NumPy arrays at its leaves."""
    return {k: numpy(x) if hasattr(x, "items") else np.asarray(x) for k, x in tree.items()}


def core(query, key, value, weights, **options):
    return mha_core.multi_head_attention(query, key, value, **weights, **options)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}])
def test_torch(widths, bias):
    torch = installed("torch")
    layer = torch.nn.MultiheadAttention(12, 4, bias=bias, batch_first=True, **widths)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.asarray(drawn(*parameter.shape)) / 2)
        shapes = (2, 3, 12), (2, 5, widths.get("kdim", 12)), (2, 5, widths.get("vdim", 12))
        query, key, value = (torch.asarray(drawn(*shape)) for shape in shapes)
        expected = layer(query, key, value, need_weights=False)[0]
    form = "pytorch-separate" if widths else "pytorch"
    weights = import_weights(form, layer.state_dict(), num_heads=4)
    assert len(weights) == (8 if bias else 4)
    torch.testing.assert_close(core(query, key, value, weights), expected, **CLOSE)
    layer.load_state_dict(export_weights(form, weights), strict=True)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_keras(grouped, bias, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "jax"))
    keras = installed("keras")
    if grouped:
        layer = keras.layers.GroupQueryAttention(3, 4, 2, use_bias=bias)
    else:
        layer = keras.layers.MultiHeadAttention(4, 3, output_shape=9, use_bias=bias)
    query, key, value = drawn(2, 3, 6), drawn(2, 5, 6 if grouped else 8), drawn(2, 5, 6 if grouped else 7)
    layer(query, value, key)
    layer.set_weights([drawn(*w.shape) / 2 for w in layer.weights])
    expected = keras.ops.convert_to_numpy(layer(query, value, key))
    tensors = {w.path: keras.ops.convert_to_numpy(w) for w in layer.weights}
    prefix = f"{layer.name}/"
    weights = import_weights("keras", tensors, prefix=prefix)
    np.testing.assert_allclose(core(query, key, value, weights), expected, **CLOSE)
    back = export_weights("keras", weights, prefix=prefix)
    assert sorted(back) == sorted(tensors)
    assert all((back[name] == x).all() for name, x in tensors.items())


@pytest.mark.parametrize("bias", [True, False])
def test_flax_linen(bias):
    jax, linen = installed("jax"), installed("flax.linen")
    layer = linen.MultiHeadDotProductAttention(4, qkv_features=12, out_features=9, use_bias=bias)
    query, key = drawn(2, 3, 6), drawn(2, 5, 8)
    params = layer.init(jax.random.key(0), query, key)["params"]
    params = jax.tree.map(lambda x: drawn(*x.shape) / 2, params)
    expected = np.asarray(layer.apply({"params": params}, query, key))
    weights = import_weights("flax", params)
    np.testing.assert_allclose(core(query, key, key, weights), expected, **CLOSE)
    jax.tree.map(np.testing.assert_array_equal, export_weights("flax", weights), numpy(params))


def test_flax_nnx():
    nnx = installed("flax.nnx")
    layer = nnx.MultiHeadAttention(4, 6, 12, out_features=9, decode=False, rngs=nnx.Rngs(0))
    state = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    state = {name: {leaf: drawn(*x.shape) / 2 for leaf, x in node.items()} for name, node in state.items()}
    nnx.update(layer, state)
    query, key = drawn(2, 3, 6), drawn(2, 5, 6)
    weights = import_weights("flax", state)
    np.testing.assert_allclose(core(query, key, key, weights), np.asarray(layer(query, key)), **CLOSE)


def test_equinox():
    jax, eqx = installed("jax"), installed("equinox")
    flags = {"use_query_bias": True, "use_value_bias": True}
    layer = eqx.nn.MultiheadAttention(4, 6, 5, 7, 9, qk_size=3, vo_size=2, key=jax.random.key(0), **flags)
    names = ("query_proj", "key_proj", "value_proj", "output_proj")
    tensors = {f"{name}.weight": np.asarray(getattr(layer, name).weight) for name in names}
    tensors |= {
        f"{name}.bias": np.asarray(getattr(layer, name).bias) for name in ("query_proj", "value_proj")
    }
    weights = import_weights("equinox", tensors, num_heads=4)
    assert "b_k" not in weights
    query, key, value = drawn(3, 6), drawn(5, 5), drawn(5, 7)
    np.testing.assert_allclose(
        core(query, key, value, weights), np.asarray(layer(query, key, value)), **CLOSE
    )


def test_haiku():
    jax, hk = installed("jax"), installed("haiku")
    query, key, value = drawn(2, 3, 6), drawn(2, 5, 5), drawn(2, 5, 7)

    def apply(q, k, v):
        init = hk.initializers.RandomNormal()
        return hk.MultiHeadAttention(4, 3, value_size=2, model_size=9, w_init=init, b_init=init)(q, k, v)

    net = hk.without_apply_rng(hk.transform(apply))
    params = net.init(jax.random.key(0), query, key, value)
    weights = import_weights("haiku", numpy(params), num_heads=4, prefix="multi_head_attention/")
    np.testing.assert_allclose(
        core(query, key, value, weights), np.asarray(net.apply(params, query, key, value)), **CLOSE
    )
    back = export_weights("haiku", weights, prefix="multi_head_attention/")
    jax.tree.map(np.testing.assert_array_equal, back, numpy(params))


def test_bert():
    torch = installed("torch")
    installed("transformers")
    from transformers.models.bert.modeling_bert import BertAttention, BertConfig

    sizes = {"hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 8}
    layer = BertAttention(BertConfig(**sizes, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.asarray(drawn(*parameter.shape)) / 2)
        x = torch.asarray(drawn(2, 5, 12))
        expected = layer.output.dense(layer.self(x)[0])
    state = {f"encoder.layer.0.attention.{name}": w for name, w in layer.state_dict().items()}
    prefix = "encoder.layer.0.attention."
    with pytest.raises(ValueError, match=r"attention.output.LayerNorm.bias, .* not known"):
        import_weights("bert", state, num_heads=4, prefix=prefix)
    norm = ("output.LayerNorm.weight", "output.LayerNorm.bias")
    weights = import_weights("bert", state, num_heads=4, prefix=prefix, ignore=norm)
    torch.testing.assert_close(core(x, x, x, weights), expected, **CLOSE)
    layer.load_state_dict(
        {
            name.removeprefix(prefix): w
            for name, w in (state | export_weights("bert", weights, prefix=prefix)).items()
        }
    )


@pytest.mark.parametrize("bias", [True, False])
def test_llama_without_its_rotation(bias):
    torch = installed("torch")
    installed("transformers")
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaConfig

    config = LlamaConfig(
        hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6, attention_bias=bias,
        attn_implementation="eager",
    )  # fmt: skip
    layer = LlamaAttention(config, layer_idx=0).eval()
    x = torch.asarray(drawn(2, 5, 12))
    still = torch.ones(1, 5, 6), torch.zeros(1, 5, 6)  # cosines and sines: no token is turned
    hidden = torch.full((5, 5), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.asarray(drawn(*parameter.shape)) / 2)
        expected = layer(hidden_states=x, position_embeddings=still, attention_mask=hidden)[0]
    weights = import_weights("llama", layer.state_dict(), num_heads=4)
    assert weights["w_k"].shape == (2, 12, 6)
    torch.testing.assert_close(core(x, x, x, weights, is_causal=True), expected, **CLOSE)
    layer.load_state_dict(export_weights("llama", weights), strict=True)


def ran(nodes, initialisers, inputs):
    """The output of a graph in onnxruntime, and its initialisers read back."""
    onnx, ort = installed("onnx"), installed("onnxruntime")
    numpy_helper, helper = onnx.numpy_helper, onnx.helper
    floating = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op, given, [out], domain=domain, **kw) for op, given, out, domain, kw in nodes],
        "layer",
        [helper.make_tensor_value_info(name, floating, x.shape) for name, x in inputs.items()],
        [helper.make_tensor_value_info("Y", floating, None)],
        [numpy_helper.from_array(x, name) for name, x in initialisers.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}
    return session.run(None, dict(inputs))[0], stored


CONTRIB = "com.microsoft"


def test_onnx_attention_with_packed_weights():
    x = drawn(2, 5, 6)
    packed = {"W": drawn(6, 12 + 12 + 8), "B": drawn(32), "Wo": drawn(8, 9), "Bo": drawn(9)}
    nodes = [
        ("Attention", ["X", "W", "B"], "Z", CONTRIB, {"num_heads": 4, "qkv_hidden_sizes": [12, 12, 8]}),
        ("MatMul", ["Z", "Wo"], "P", "", {}),
        ("Add", ["P", "Bo"], "Y", "", {}),
    ]
    expected, stored = ran(nodes, packed, {"X": x})
    names = {"weights": "W", "bias": "B", "out.weight": "Wo", "out.bias": "Bo"}
    weights = import_weights("onnx-attention", stored, num_heads=4, names=names)
    np.testing.assert_allclose(core(x, x, x, weights), expected, **CLOSE)


def test_onnx_multi_head_attention():
    query, key, value = drawn(2, 3, 6), drawn(2, 5, 5), drawn(2, 5, 7)
    stored = {
        "query.weight": drawn(6, 12), "key.weight": drawn(5, 12), "value.weight": drawn(7, 8),
        "bias": drawn(32), "out.weight": drawn(8, 9),
    }  # fmt: skip
    nodes = [
        ("MatMul", ["Q", "query.weight"], "q", "", {}),
        ("MatMul", ["K", "key.weight"], "k", "", {}),
        ("MatMul", ["V", "value.weight"], "v", "", {}),
        ("MultiHeadAttention", ["q", "k", "v", "bias"], "Z", CONTRIB, {"num_heads": 4}),
        ("MatMul", ["Z", "out.weight"], "Y", "", {}),
    ]
    expected, stored = ran(nodes, stored, {"Q": query, "K": key, "V": value})
    weights = import_weights("onnx-multi-head-attention", stored, num_heads=4)
    np.testing.assert_allclose(core(query, key, value, weights), expected, **CLOSE)
