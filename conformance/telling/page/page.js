"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const form = document.getElementById("filters");
  const FAILED = "fectx";

  // The rows, once: what the filters look at.
  const cases = all("#table tbody").map((body) => {
    const id = body.querySelector("th").textContent;
    const rows = all("tr", body).map((row) => ({
      row, codes: row.dataset.v, dtype: row.querySelector("td").textContent.trim(),
    }));
    const covers = body.dataset.k ? body.dataset.k.split(" ").map(Number) : [];
    return { body, rows, covers, id, chapter: id.split("/")[0], operation: body.dataset.o, head: body.querySelector("th") };
  });
  const requirements = all("#matrix tbody tr").map((row) => ({ row, label: `${row.dataset.id} ${row.dataset.name}`, cells: all("td", row) }));
  for (const each of cases) {
    each.text = [each.id, each.head.title, ...each.covers.map((i) => requirements[i].label)].join(" ").toLowerCase();
  }
  const failures = all(".failure").map((box) => ({
    box, run: box.dataset.run, of: cases[Number(box.dataset.case)], codes: box.dataset.v,
    dtypes: box.dataset.d.trim().split(" "), said: all(".said", box).map((s) => s.textContent).join(" ").toLowerCase(),
  }));

  const chapters = all(".chapter").map((box) => ({ box, name: box.dataset.chapter, counts: box.querySelector(".counts") }));
  const OUTCOMES = [["x", "✗", "failed"], ["p", "✓", "passed"], ["u", "–", "not supported"]];
  const kind = (code) => "py".includes(code) ? "p" : code === "u" ? "u" : "x";

  const asked = () => Object.fromEntries(new FormData(form));
  const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text, wanted) => wanted.every((word) => text.includes(word));
  const hits = (codes, verdict) => !verdict || [...codes].some((code) => verdict.includes(code));

  function apply() {
    const want = asked(), wanted = words(want.text);
    let shown = 0, told = 0;
    const counts = requirements.map(() => []);
    const tests = new Map(chapters.map(({ name }) => [name, { p: 0, x: 0, u: 0 }]));
    const saying = new Set();
    for (const f of failures) if (want.run === "" || want.run === f.run) if (has(`${f.of.text} ${f.said}`, wanted)) saying.add(f.of);
    for (const each of cases) {
      const fits = (!want.chapter || each.chapter === want.chapter) && (!want.operation || each.operation === want.operation)
        && (has(each.text, wanted) || saying.has(each));
      let first = null, left = 0;
      for (const { row, codes, dtype } of each.rows) {
        const seen = want.run === "" ? codes : codes[want.run];
        const visible = fits && (!want.dtype || dtype === want.dtype) && hits(seen, want.verdict) && /[^.]/.test(seen);
        row.hidden = !visible;
        if (!visible) continue;
        first ??= row;
        left += 1;
        for (let run = 0; run < codes.length; run++) {
          const code = codes[run];
          if (code === "." || (want.verdict && !want.verdict.includes(code))) continue;
          for (const i of each.covers) (counts[i][run] ??= { p: 0, x: 0, u: 0 })[kind(code)] += 1;
          if (want.run === "" || want.run === String(run)) tests.get(each.chapter)[kind(code)] += 1;
        }
      }
      each.body.hidden = !left;
      if (first && each.head.parentNode !== first) first.prepend(each.head);
      each.head.rowSpan = Math.max(1, left);
      shown += left;
    }
    for (const { box, name, counts: heading } of chapters) {
      const of = tests.get(name);
      box.hidden = !(of.p + of.x + of.u);
      if (want.chapter === name) box.open = true;
      heading.replaceChildren(...OUTCOMES.filter(([css]) => of[css]).flatMap(([css, symbol, word]) => {
        const part = document.createElement("span");
        part.className = css;
        part.textContent = `${symbol} ${of[css]} ${word}`;
        return [part, " "];
      }));
    }
    requirements.forEach(({ row, cells }, i) => {
      row.hidden = !counts[i].length;
      cells.forEach((cell, run) => fill(cell, counts[i][run]));
    });
    for (const f of failures) {
      const visible = (want.run === "" || want.run === f.run) && !f.of.body.hidden && hits(f.codes, want.verdict)
        && (!want.dtype || f.dtypes.includes(want.dtype)) && has(`${f.of.text} ${f.said}`, wanted);
      f.box.hidden = !visible;
      told += visible;
    }
    for (const element of all("[data-run]:not(.failure)")) element.hidden = want.run !== "" && element.dataset.run !== want.run;
    all("#table tbody tr").forEach((row) => all("td", row).slice(1).forEach((cell, run) => { cell.hidden = want.run !== "" && String(run) !== want.run; }));
    for (const group of all(".cause")) group.hidden = !group.querySelector(".failure:not([hidden])");
    remember(want);
    const none = document.getElementById("none");
    if (none) none.hidden = told > 0;
    document.getElementById("shown").textContent = `${shown} of ${total} tests, ${told} of ${failures.length} failing cases`;
  }
  const total = cases.reduce((sum, each) => sum + each.rows.length, 0);

  // The same words as in the page as it was written.
  function fill(cell, counts) {
    const { p, x, u } = counts ?? { p: 0, x: 0, u: 0 };
    const text = x ? `✗ ${x}/${x + p}` : p ? `✓ ${p}` : u ? "–" : "";
    cell.className = x ? "x" : p ? "p" : u ? "u" : "";
    if (cell.textContent === text) return;
    cell.textContent = x ? "" : text;
    if (!x) return;
    const link = document.createElement("a");
    link.href = "#failures";
    link.textContent = text;
    cell.append(link);
  }

  // The filters stand in the address, so that a link leads to the same view.
  function remember(want) {
    const kept = new URLSearchParams(Object.entries(want).filter(([, value]) => value)).toString();
    if (kept) history.replaceState(null, "", `#?${kept}`);
    else if (location.hash.startsWith("#?")) history.replaceState(null, "", location.pathname + location.search);
  }
  function recall() {
    if (!location.hash.startsWith("#?")) return;
    for (const [name, value] of new URLSearchParams(location.hash.slice(2))) if (form.elements[name]) form.elements[name].value = value;
  }

  // `#mask/empty-row-is-zero` and `#ATT-3` are links as well.
  function found(id) {
    const name = decodeURIComponent(id);
    return document.getElementById(id) ?? failures.find((f) => f.of.id === name)?.box
      ?? requirements.find(({ row }) => row.dataset.id === name)?.row ?? cases.find((each) => each.id === name)?.body;
  }

  function open(id) {
    const target = id && !id.startsWith("?") && found(id);
    if (!target) return;
    const inside = target.tagName === "DETAILS" ? target : target.querySelector(":scope > th > details");
    if (target.hidden) { form.reset(); apply(); }
    for (let box = inside ?? target; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
    target.scrollIntoView();
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    const cell = link.closest("#matrix td");
    if (cell) {
      form.elements.run.value = cell.dataset.run;
      form.elements.text.value = cell.parentNode.dataset.id;
      form.elements.verdict.value = FAILED;
      apply();
    }
    open(link.hash.slice(1));
    const target = document.getElementById(link.hash.slice(1));
    const summary = target && target.querySelector("summary");
    if (summary && target.tagName !== "SECTION") { event.preventDefault(); history.pushState(null, "", link.hash); summary.focus(); }
  });
  addEventListener("hashchange", () => open(location.hash.slice(1)));

  let waiting = 0;
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(apply, 120); });
  form.addEventListener("reset", () => setTimeout(apply, 0));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  recall();
  apply();
  open(location.hash.slice(1));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT/.test(event.target.tagName)) { event.preventDefault(); form.elements.text.focus(); }
  });

  async function copy(text) {
    try { await navigator.clipboard.writeText(text); return; } catch { /* an address without that right */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  for (const button of all(".copy")) button.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const { link } = button.dataset, words = button.textContent;
    await copy(link ? `${location.href.split("#")[0]}#${link}` : button.dataset.copy ?? button.nextElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = words; }, 1200);
  });

  // Reading a number off a picture, by pointer or by arrow keys.
  const readout = document.getElementById("readout");
  const numbers = new WeakMap();
  function values(svg) {
    if (!numbers.has(svg)) {
      const bytes = Uint8Array.from(atob(svg.dataset.v), (c) => c.charCodeAt(0)), view = new DataView(bytes.buffer);
      numbers.set(svg, Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true)));
    }
    return numbers.get(svg);
  }
  const told = (value) => Number.isFinite(value) ? String(Number(value.toPrecision(6))) : Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  function read(svg, x, y) {
    const width = Number(svg.dataset.w), found = values(svg), height = found.length / width;
    x = Math.min(width - 1, Math.max(0, x)); y = Math.min(height - 1, Math.max(0, y));
    svg.cursorAt = [x, y];
    let cursor = svg.querySelector(".cursor");
    if (!cursor) {
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      cursor.setAttribute("class", "cursor"); cursor.setAttribute("width", 1); cursor.setAttribute("height", 1);
      svg.append(cursor);
    }
    cursor.setAttribute("x", x); cursor.setAttribute("y", y);
    const rows = svg.dataset.y.split(","), row = rows.length > 1 ? rows[y] : Number(rows[0]) + y;
    const name = svg.getAttribute("aria-label").split(",")[0].replace(/\[.*$/, "");
    const place = (svg.parentNode.dataset.at ?? "").replace(/[[\]]/g, "");
    readout.textContent = `${name}[${place && place + ", "}${row}, ${Number(svg.dataset.x) + x}] = ${told(found[y * width + x])}`;
    readout.hidden = false;
  }
  function quiet(svg) { svg.querySelector(".cursor")?.remove(); readout.hidden = true; }
  const heat = (event) => event.target.closest?.(".heat");
  document.addEventListener("pointermove", (event) => {
    const svg = heat(event);
    if (!svg) { if (!document.activeElement?.matches(".heat")) { readout.hidden = true; } return; }
    const box = svg.getBoundingClientRect(), width = Number(svg.dataset.w), cell = box.width / width;
    read(svg, Math.floor((event.clientX - box.left) / cell), Math.floor((event.clientY - box.top) / cell));
  });
  document.addEventListener("pointerout", (event) => { const svg = heat(event); if (svg && svg !== document.activeElement) quiet(svg); });
  document.addEventListener("focusin", (event) => { const svg = heat(event); if (svg && svg.matches(":focus-visible")) read(svg, ...(svg.cursorAt ?? [0, 0])); });
  document.addEventListener("focusout", (event) => { const svg = heat(event); if (svg) quiet(svg); });
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  document.addEventListener("keydown", (event) => {
    const svg = heat(event), move = MOVES[event.key];
    if (!svg) return;
    if (event.key === "Escape") { svg.blur(); return; }
    if (!move) return;
    event.preventDefault();
    const [x, y] = svg.cursorAt ?? [0, 0];
    read(svg, x + move[0], y + move[1]);
  });
})();
