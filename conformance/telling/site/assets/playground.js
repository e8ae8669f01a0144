import { attention, MISTAKES } from "./attention.js";

const place = document.getElementById("playground");
const known = await (await fetch(new URL("../playground.json", import.meta.url))).json();
const state = { queries: 5, keys: 5, seed: 1, mask: new Set(), mistake: "scale-left-out" };

const field = (name, label, input) => `<label>${label} ${input}</label>`;
const numberField = (name, label, value, from = "", to = "") =>
  field(name, label, `<input type="number" name="${name}" value="${value}" min="${from}" max="${to}">`);

place.innerHTML = `
<form class="play">
  ${field("mistake", "mistake", `<select name="mistake"><option value="">none</option>${known
    .filter((one) => one.id in MISTAKES)
    .map((one) => `<option value="${one.id}">${one.sentence}</option>`)
    .join("")}</select>`)}
  ${numberField("queries", "queries", 5, 1, 8)} ${numberField("keys", "keys", 5, 1, 8)}
  ${field("isCausal", "is_causal", '<input type="checkbox" name="isCausal">')}
  ${numberField("qOffset", "q_offset", 0, -8, 8)}
  ${field("window", "window", '<input name="window" placeholder="2, 0" size="5">')}
  ${field("softcap", "softcap", '<input name="softcap" size="4">')}
  ${field("sink", "sink", '<input name="sink" size="4">')}
  <button type="button" name="again">other numbers</button>
</form>
<p>Click a cell to mask it.</p>
<div class="maps"><figure><figcaption>right</figcaption><table data-of="right"></table></figure>
<figure><figcaption>with the mistake</figcaption><table data-of="wrong"></table></figure></div>
<p class="said" aria-live="polite"></p>`;

const form = place.querySelector("form");
const FIELDS = { is_causal: "isCausal", q_offset: "qOffset", window: "window", softcap: "softcap", sinks: "sink" };
const on = (name) => (form[name].type === "checkbox" ? form[name].checked : !["", "0"].includes(form[name].value.trim()));
form.mistake.value = state.mistake;

// small whole numbers that depend on the seed alone
function numbers(rows, columns, stream) {
  return Array.from({ length: rows }, (_, i) =>
    Array.from({ length: columns }, (_, j) => {
      let word = (state.seed * 7919 + stream * 104729 + i * 1299709 + j * 15485863) | 0;
      word = Math.imul(word ^ (word >>> 15), 0x2c1b3c6d);
      word = Math.imul(word ^ (word >>> 12), 0x297a2d39);
      return (((word ^ (word >>> 15)) >>> 0) % 9) - 4;
    }),
  );
}

const real = (text) => (text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text));

function options() {
  const sides = form.window.value.split(",").map(real);
  const cap = real(form.softcap.value);
  return {
    isCausal: form.isCausal.checked,
    qOffset: real(form.qOffset.value) ?? 0,
    window: sides.length === 2 && sides.every((x) => x !== null) ? sides : null,
    softcap: cap > 0 ? cap : null,
    sink: real(form.sink.value),
    mask: Array.from({ length: state.queries }, (_, i) =>
      Array.from({ length: state.keys }, (_, j) => !state.mask.has(`${i},${j}`)),
    ),
  };
}

function draw() {
  const clip = (name) => Math.min(8, Math.max(1, Math.round(real(form[name].value) ?? 1)));
  [state.queries, state.keys] = [clip("queries"), clip("keys")];
  const given = [numbers(state.queries, 4, 1), numbers(state.keys, 4, 2), numbers(state.keys, 3, 3)];
  const right = attention(...given, options());
  const wrong = attention(...given, options(), form.mistake.value);
  for (const [name, result] of [["right", right], ["wrong", wrong]]) {
    place.querySelector(`[data-of=${name}]`).innerHTML = result.weights
      .map((row, i) => `<tr>${row.map((p, j) => cell(p, i, j)).join("")}</tr>`)
      .join("");
  }
  place.querySelector(".said").innerHTML = said(right.output, wrong.output);
}

function cell(p, i, j) {
  const share = Number.isFinite(p) ? Math.round(100 * p) : 0;
  const words = `query ${i}, key ${j}: weight ${p.toFixed(4)}`;
  const colour = `--share:${share}%`;
  return `<td title="${words}" data-at="${i},${j}" style="${colour}">${Number.isFinite(p) ? share : "NaN"}</td>`;
}

function said(right, wrong) {
  const flat = right.flat();
  const off = wrong.flat().filter((x, n) => !(Math.abs(x - flat[n]) <= 1e-12)).length;
  const one = known.find((x) => x.id === form.mistake.value);
  if (!one) return "No mistake is switched on.";
  const named = one.violates.map((r) => `<a href="../${r.page}">${r.label}</a>`).join(", ");
  const cases = one.cases.map((c) => `<a href="../${c.page}">${c.id}</a>`).join(", ");
  const here = off ? `${off} of ${flat.length} output elements are wrong here.` : `It does not show in this call${needs(one)}.`;
  return `${here} It breaks ${named}. Stored cases that catch it: ${cases}.`;
}

function needs(one) {
  const of = one.features.filter((name) => name in FIELDS && !on(FIELDS[name])).map((name) => `<code>${name}</code>`);
  return of.length ? `: it needs ${of.join(" and ")}` : "";
}

form.addEventListener("input", draw);
form.again.addEventListener("click", () => ((state.seed += 1), draw()));
place.addEventListener("click", (event) => {
  const at = event.target.dataset?.at;
  if (!at) return;
  state.mask.has(at) ? state.mask.delete(at) : state.mask.add(at);
  draw();
});
form.addEventListener("submit", (event) => event.preventDefault());
draw();
