// Attention of one head, small enough to read, and the mistakes that the playground can switch on.
// query [q][d], key [k][d], value [k][w]: arrays of arrays. Returns {weights, output}.

export const MISTAKES = {
  "scale-by-d-k-itself": { scale: (d) => 1 / d },
  "scale-left-out": { scale: () => 1 },
  "softmax-over-queries": { turned: true },
  "softmax-without-maximum": { top: () => 0 },
  "mask-inverted": { mask: (may) => !may },
  "mask-fills-minus-10": { hidden: -10 },
  "mask-fills-minus-10000": { hidden: -10000 },
  "empty-row-nan": { empty: NaN },
  "causal-ignored": { causal: () => true },
  "causal-strict": { causal: (j, place) => j < place },
  "causal-one-ahead": { causal: (j, place) => j <= place + 1 },
  "causal-reversed": { causal: (j, place) => j >= place },
  "causal-always-top-left": { place: (i) => i },
  "causal-always-bottom-right": { place: (i, offset, sizes) => i + sizes.keys - sizes.queries },
  "window-ignored": { window: () => true },
  "window-left-exclusive": { window: (j, place, [left, right]) => place - left < j && j <= place + right },
  "window-sides-swapped": { window: (j, place, [left, right]) => place - right <= j && j <= place + left },
  "softcap-ignored": { softcap: (x) => x },
  "sinks-ignored": { sink: () => -Infinity },
};

const RIGHT = {
  scale: (d) => 1 / Math.sqrt(d),
  turned: false,
  top: (row) => Math.max(...row),
  mask: (may) => may,
  hidden: -Infinity,
  empty: 0,
  causal: (j, place) => j <= place,
  place: (i, offset) => i + offset,
  window: (j, place, [left, right]) => place - left <= j && j <= place + right,
  softcap: (x, cap) => cap * Math.tanh(x / cap),
  sink: (given) => given,
};

export function attention(query, key, value, options = {}, mistake = "") {
  const way = { ...RIGHT, ...(MISTAKES[mistake] ?? {}) };
  const sizes = { queries: query.length, keys: key.length };
  const { isCausal = false, qOffset = 0, window = null, mask = null, softcap = null, sink = null } = options;
  const scale = options.scale ?? way.scale(query[0].length);
  const visible = (i, j) => {
    const place = way.place(i, qOffset, sizes);
    return (
      (!mask || way.mask(mask[i][j])) &&
      (!isCausal || way.causal(j, place)) &&
      (!window || way.window(j, place, window))
    );
  };
  const logits = query.map((q, i) =>
    key.map((k, j) => {
      let x = scale * q.reduce((sum, number, d) => sum + number * k[d], 0);
      if (softcap !== null) x = way.softcap(x, softcap);
      return visible(i, j) ? x : way.hidden;
    }),
  );
  const extra = sink === null ? -Infinity : way.sink(sink);
  const rows = way.turned ? columns(logits) : logits;
  let weights = rows.map((row) => softmax(row, way.turned ? -Infinity : extra, way));
  if (way.turned) weights = columns(weights);
  const output = weights.map((row) =>
    value[0].map((_, w) => row.reduce((sum, p, j) => sum + (p === 0 ? 0 : p * value[j][w]), 0)),
  );
  return { weights, output };
}

function softmax(row, extra, way) {
  if (row.every((x) => x === -Infinity)) return row.map(() => way.empty);
  const top = way.top([...row, extra]);
  const raised = row.map((x) => Math.exp(x - top));
  const total = raised.reduce((a, b) => a + b, 0) + Math.exp(extra - top);
  return raised.map((x) => x / total);
}

function columns(rows) {
  return rows[0].map((_, j) => rows.map((row) => row[j]));
}
