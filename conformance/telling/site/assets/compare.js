// Two libraries side by side; the address keeps the choice: compare/?a=NAME&b=NAME
const place = document.getElementById("compare");
const data = await (await fetch(new URL("../site.json", import.meta.url))).json();
const safe = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const names = data.libraries.map((one) => one.name);
const address = new URL(location.href);
const chosen = ["a", "b"].map((key, n) => {
  const asked = address.searchParams.get(key);
  return names.includes(asked) ? asked : names[Math.min(n, names.length - 1)];
});
const list = (key, value) =>
  `<select name="${key}" aria-label="${key === "a" ? "one library" : "the other library"}">${names.map((x) => `<option${x === value ? " selected" : ""}>${safe(x)}</option>`).join("")}</select>`;
place.innerHTML = `<form class="play">${list("a", chosen[0])} ${list("b", chosen[1])}</form><div></div>`;
const form = place.querySelector("form");

function cell(of, library, id) {
  if (!of || of.outcome === "not supported") return '<span class="not">-</span>';
  if (of.outcome === "passes") return '<span class="passes">✓</span>';
  return `<a class="fails" href="../${library.page}#${id.toLowerCase()}">✗ ${of.failing} of ${of.tests}</a>`;
}

function draw() {
  const [one, other] = ["a", "b"].map((key) => data.libraries.find((x) => x.name === form[key].value));
  address.searchParams.set("a", one.name);
  address.searchParams.set("b", other.name);
  history.replaceState(null, "", address);
  const state = (of) => of?.outcome ?? "not supported";
  const rows = data.requirements
    .map((r) => [r, one.requirements[r.id], other.requirements[r.id]])
    .filter(([, x, y]) => state(x) !== state(y));
  const both = rows.filter(([, x, y]) => ![state(x), state(y)].includes("not supported"));
  const single = rows.filter((row) => !both.includes(row));
  const table = (of) =>
    `<table><thead><tr><th>requirement</th><th>${safe(one.name)}</th><th>${safe(other.name)}</th></tr></thead><tbody>${of
      .map(([r, x, y]) => `<tr><td><a href="../${r.page}">${r.id} ${r.name}</a></td><td>${cell(x, one, r.id)}</td><td>${cell(y, other, r.id)}</td></tr>`)
      .join("")}</tbody></table>`;
  place.querySelector("div").innerHTML =
    (both.length ? table(both) : "<p>They agree in every requirement that was run on both.</p>") +
    (single.length ? `<details><summary>${single.length} requirements were run on one of them only</summary>${table(single)}</details>` : "");
}
form.addEventListener("input", draw);
draw();
