// Attention in plain JavaScript: mha-conformance run --command "node backends/javascript/attention.mjs"
import { Unsupported, serve } from "./line_protocol.mjs";

const about = {
  name: "javascript",
  version: process.versions.node,
  dtypes: ["float64", "float32"],
  features: [
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "return_weights",
    "return_lse", "cache", "gqa", "value_dim", "broadcast", "empty", "strict_masking",
  ],
  accuracy: "fused", // all is computed in float64 and rounded once
};

const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

function scaled_dot_product_attention(inputs, options) {
  const strange = Object.keys(options).find((name) => !about.features.includes(name));
  if (strange) throw new Unsupported(`no option ${strange}`);
  const { query, key, value, past_key, past_value, sinks } = inputs;
  const keys = past_key ? joined(past_key, key) : key; // (..., G, kv_len, d_k)
  const values = past_value ? joined(past_value, value) : value; // (..., G, kv_len, d_v)
  const [heads, rows, width] = query.shape.slice(-3);
  const [groups, columns] = keys.shape.slice(-3);
  const outer = query.shape.slice(0, -3), batches = product(outer), wide = values.shape.at(-1);

  const zeros = (...sizes) => ({
    dtype: query.dtype, shape: [...outer, heads, ...sizes], data: new Float64Array(batches * heads * product(sizes)),
  });
  const output = zeros(rows, wide), weights = zeros(rows, columns), lse = zeros(rows);
  const visible = visibility(inputs, options, [...outer, heads, rows, columns]);
  const bias = inputs.attn_bias && broadcast(inputs.attn_bias, [...outer, heads, rows, columns]);
  const { scale = width ** -0.5, softcap } = options;

  for (let b = 0, at = 0; b < batches; b++) {
    for (let h = 0; h < heads; h++) {
      const g = b * groups + Math.floor(h / (heads / groups));
      for (let i = 0; i < rows; i++, at++) {
        const logit = (j) => {
          let x = 0;
          for (let d = 0; d < width; d++) x += query.data[at * width + d] * keys.data[(g * columns + j) * width + d];
          x *= scale;
          if (softcap !== undefined) x = softcap * Math.tanh(x / softcap);
          return bias ? x + bias(b, h, i, j) : x;
        };
        const seen = [];
        for (let j = 0; j < columns; j++) if (visible(b, h, i, j)) seen.push(j);
        const sink = sinks ? sinks.data[h] : -Infinity;
        lse.data[at] = attend(seen, logit, sink, weights.data.subarray(at * columns, (at + 1) * columns));
        for (const j of seen) {
          const weight = weights.data[at * columns + j], from = (g * columns + j) * wide;
          for (let d = 0; d < wide; d++) output.data[at * wide + d] += weight * values.data[from + d];
        }
      }
    }
  }
  return {
    output,
    ...(options.return_weights && { weights }),
    ...(options.return_lse && { lse }),
    ...(past_key && { present_key: keys, present_value: values }),
  };
}

/** Fills in the weights of the keys that are seen, and returns the logarithm of their denominator. */
function attend(seen, logit, sink, weights) {
  if (!seen.length) return sink; // an empty row: what is left is its sink (MASK-16)
  let top = sink;
  for (const j of seen) top = Math.max(top, (weights[j] = logit(j))); // NaN wins
  if (top === -Infinity) top = NaN; // nothing but -Infinity, and no sink: 0 / 0
  let total = Math.exp(sink - top);
  for (const j of seen) total += weights[j] = Math.exp(weights[j] - top);
  for (const j of seen) weights[j] /= total;
  return top + Math.log(total);
}

/** Which query may attend which key: the intersection of all that masks. */
function visibility({ mask, attn_bias, kv_lengths, q_offset }, options, shape) {
  const tests = [];
  const offset = q_offset ? (b) => q_offset.data[b] : () => options.q_offset ?? 0;
  const [left, right] = options.window ?? [null, null];
  if (mask) tests.push(broadcast(mask, shape));
  if (attn_bias) {
    const bias = broadcast(attn_bias, shape);
    tests.push((b, h, i, j) => bias(b, h, i, j) !== -Infinity);
  }
  if (kv_lengths) tests.push((b, h, i, j) => j < kv_lengths.data[b]);
  if (options.is_causal) tests.push((b, h, i, j) => j <= i + offset(b));
  if (left !== null) tests.push((b, h, i, j) => j >= i + offset(b) - left);
  if (right !== null) tests.push((b, h, i, j) => j <= i + offset(b) + right);
  return (b, h, i, j) => tests.every((test) => test(b, h, i, j));
}

/** An array of rank 2 or of the full rank as a function of batch entry, head, query and key; axes of 1 repeat. */
function broadcast({ shape, data }, full) {
  const whole = [...Array(full.length - shape.length).fill(1), ...shape];
  const strides = whole.map((size, axis) => (size === 1 ? 0 : product(whole.slice(axis + 1))));
  const [sh, si, sj] = strides.slice(-3);
  const entry = Array.from({ length: product(full.slice(0, -3)) }, (_, b) => {
    let place = 0;
    for (let axis = full.length - 4; axis >= 0; axis--) {
      place += (b % full[axis]) * strides[axis];
      b = Math.floor(b / full[axis]);
    }
    return place;
  });
  return (b, h, i, j) => data[entry[b] + h * sh + i * si + j * sj];
}

/** Two arrays (..., length, width) joined along their length. */
function joined(past, next) {
  const [m, n, width] = [past.shape.at(-2), next.shape.at(-2), next.shape.at(-1)];
  const outer = next.shape.slice(0, -2), data = new Float64Array(product(outer) * (m + n) * width);
  for (let o = 0; o < product(outer); o++) {
    data.set(past.data.subarray(o * m * width, (o + 1) * m * width), o * (m + n) * width);
    data.set(next.data.subarray(o * n * width, (o + 1) * n * width), (o * (m + n) + m) * width);
  }
  return { dtype: next.dtype, shape: [...outer, m + n, width], data };
}

await serve(about, { scaled_dot_product_attention });
