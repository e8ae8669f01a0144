// ONNX Runtime's Attention in WebAssembly, as a browser runs it. In this folder: npm install; then, from anywhere,
// mha-conformance run --command "node backends/javascript/onnxruntime_attention.mjs"
import * as ort from "onnxruntime-web";

import { Unsupported, serve } from "./line_protocol.mjs";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const about = {
  name: "onnxruntime-web",
  version: ort.env.versions.web,
  dtypes: ["float32"],
  features: ["mask", "attn_bias", "is_causal", "softcap", "gqa", "value_dim"], // it broadcasts no axis of a mask
  accuracy: "eager",
};

// A model is a protobuf message (onnx.proto): fields of a number and a varint, a float32, or bytes.
const varint = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...varint(n >> 7)]);
const int = (field, n) => [...varint(field << 3), ...varint(n)];
const float = (field, x) => [...varint((field << 3) | 5), ...new Uint8Array(Float32Array.of(x).buffer)];
const bytes = (field, ...parts) => [...varint((field << 3) | 2), ...varint(parts.flat().length), ...parts.flat()];
const text = (field, words) => bytes(field, [...Buffer.from(words)]);

const value = (field, name, type, rank) =>
  bytes(field, text(1, name), bytes(2, bytes(1, int(1, type), bytes(2, ...Array(rank).fill(bytes(1))))));
const attribute = (name, x) =>
  bytes(5, text(1, name), ...(name === "is_causal" ? [int(3, x), int(20, 2)] : [float(2, x), int(20, 1)]));

/** The bytes of a model that is one Attention node. */
function model(inputs, attributes) {
  const names = Object.keys(inputs);
  const node = bytes(
    1, ...names.map((name) => text(1, name)), text(2, "output"), text(4, "Attention"),
    ...Object.entries(attributes).map(([name, x]) => attribute(name, x)),
  );
  const values = names.map((name) => value(11, name, inputs[name].type === "bool" ? 9 : 1, inputs[name].dims.length));
  const graph = bytes(7, node, text(2, "attention"), ...values, value(12, "output", 1, 4));
  return Uint8Array.from([...int(1, 10), ...graph, ...bytes(8, int(2, 23))]); // IR version 10, opset 23
}

const sessions = new Map();

async function scaled_dot_product_attention(given, options) {
  const { query, key, value, mask, attn_bias, ...more } = given, { is_causal, softcap, scale, ...rest } = options;
  const [lacking] = Object.keys({ ...more, ...rest });
  if (lacking) throw new Unsupported(`no ${lacking}`);
  if (scale <= 0) throw new Unsupported("the operator wants a positive scale");
  if (mask && attn_bias) throw new Unsupported("the operator has one input for mask and bias");
  const outer = query.shape.slice(0, -3), batch = outer.reduce((a, b) => a * b, 1);
  const flat = ({ shape, data }) => new ort.Tensor("float32", Float32Array.from(data), [batch, ...shape.slice(-3)]);
  const inputs = { query: flat(query), key: flat(key), value: flat(value) };
  if ((mask ?? attn_bias)?.shape.length > 4) throw new Unsupported("a mask has one batch axis");
  if (mask) inputs.mask = new ort.Tensor("bool", mask.data, mask.shape);
  if (attn_bias) inputs.mask = new ort.Tensor("float32", Float32Array.from(attn_bias.data), attn_bias.shape);
  const attributes = { ...(is_causal && { is_causal: 1 }), ...(scale && { scale }), ...(softcap && { softcap }) };

  const form = JSON.stringify([attributes, Object.values(inputs).map(({ type, dims }) => [type, dims.length])]);
  if (!sessions.has(form)) sessions.set(form, await ort.InferenceSession.create(model(inputs, attributes)));
  const { output } = await sessions.get(form).run(inputs);
  return { output: { dtype: query.dtype, shape: [...query.shape.slice(0, -1), value.shape.at(-1)], data: output.data } };
}

await serve(about, { scaled_dot_product_attention });
