// What is said of a chosen design, and what the reader may do: hover, choose, select, sort, switch.

// ---- the chosen design --------------------------------------------------------------------------

function showDesign() {
  const row = state.hover >= 0 ? state.hover : state.chosen, list = byId("design-list");
  const said = [["design", row < meta.front ? meta.keys[row] : "(not on the front)", ""]];
  for (const column of columns.values()) if (column.role !== "mark") said.push([labelOf(column), human(valueAt(column, row), column.unit), `${column.name}: ${column.doc}`]);
  list.replaceChildren(...said.flatMap(([word, value, title]) => [element("dt", word, title), element("dd", value)]));
  for (const tr of document.querySelectorAll("tr[data-row]")) tr.classList.toggle("chosen", Number(tr.dataset.row) === state.chosen);
}

function element(kind, text, title) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (title) made.title = title;
  return made;
}

// A box beside a circle that names its design; without a row it goes away.
function tip(row, canvas, x, y) {
  let box = byId("tip");
  if (row < 0) return box && box.remove();
  if (!box) {
    box = element("div", "");
    box.id = "tip";
    document.body.append(box);
  }
  const table = document.createElement("table");
  for (const column of lanes()) {
    const line = table.insertRow();
    line.insertCell().textContent = labelOf(column);
    line.insertCell().textContent = human(valueAt(column, row), column.unit);
  }
  const where = row < meta.front ? `on the front · ${meta.keys[row]}` : valueAt(columns.get("qualifies"), row) ? "behind the front" : "misses the conditions";
  box.replaceChildren(element("div", where), table);
  const frame = canvas.getBoundingClientRect(), wide = box.offsetWidth, high = box.offsetHeight;
  const at = [frame.left + canvas.clientLeft + x, frame.top + canvas.clientTop + y];
  const beside = at[0] + 14 + wide > innerWidth ? at[0] - wide - 14 : at[0] + 14;
  box.style.left = `${Math.max(4, Math.min(innerWidth - wide - 4, beside))}px`;
  box.style.top = `${Math.max(4, Math.min(innerHeight - high - 4, at[1] - high / 2))}px`;
}

// The circle under the pointer on a canvas other than the front's.
function circleAt(id, x, y) {
  const near = (targets.get(id) || []).map(([px, py, row]) => [Math.hypot(px - x, py - y), px, py, row]).filter(([d]) => d < 12);
  return near.sort((a, b) => a[0] - b[0])[0];
}

// ---- the table ----------------------------------------------------------------------------------

function sortBy(button) {
  const head = button.closest("th"), body = head.closest("table").tBodies[0];
  const place = [...head.parentNode.children].indexOf(head), up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentNode.children) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (line) => line.cells[place].dataset.value;
  const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b) * (up ? 1 : -1);
  body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
}

// ---- selecting ----------------------------------------------------------------------------------

let brush = { id: "", from: null, to: null };

function select() {
  const ranges = [...state.ranges].map(([name, range]) => [columns.get(name), range]);
  let count = 0;
  for (let r = 0; r < meta.rows; r++) {
    selected[r] = ranges.every(([c, [lo, hi]]) => { const level = levelAt(c, r); return level >= lo && level <= hi; }) ? 1 : 0;
    count += selected[r];
  }
  byId("clear").disabled = ranges.length === 0;
  byId("clear").textContent = ranges.length ? `clear selection (${count.toLocaleString("en")} designs)` : "clear selection";
  drawAll();
}

function listen() {
  const front = byId("front-canvas"), parallel = byId("parallel-canvas");
  front.addEventListener("pointerdown", (e) => { brush = { id: front.id, from: [e.offsetX, e.offsetY], to: null }; front.setPointerCapture(e.pointerId); });
  front.addEventListener("pointermove", (e) => {
    if (brush.id === front.id) {
      brush.to = [e.offsetX, e.offsetY];
      return drawFront();
    }
    const hover = nearest(e.offsetX, e.offsetY);
    tip(hover, front, dots.px[hover], dots.py[hover]);
    if (hover !== state.hover) {
      state.hover = hover;
      drawFront();
      drawParallel();
      drawCdf();
      showDesign();
    }
  });
  front.addEventListener("pointerup", (e) => {
    const { from, to } = brush, { area, x, y } = dots;
    brush = { id: "", from: null, to: null };
    if (to && Math.hypot(to[0] - from[0], to[1] - from[1]) > 6) {
      const span = (a, b, start, size) => [Math.min(a, b), Math.max(a, b)].map((v) => (v - start) / size);
      const levels = (c, places) => places.map((p) => c.lo + p * (c.hi - c.lo));
      const [low, high] = span(from[1], to[1], area.y, area.h);
      state.ranges.set(x.name, levels(x, span(from[0], to[0], area.x, area.w)));
      state.ranges.set(y.name, levels(y, [1 - high, 1 - low]));
      return select();
    }
    const row = nearest(e.offsetX, e.offsetY);
    if (row >= 0) choose(row);
  });
  for (const id of ["curve-canvas", "cdf-canvas"]) {
    byId(id).addEventListener("pointermove", (e) => {
      const [, x, y, row] = circleAt(id, e.offsetX, e.offsetY) || [0, 0, 0, -1];
      tip(row, byId(id), x, y);
    });
    byId(id).addEventListener("pointerleave", () => tip(-1));
  }
  front.addEventListener("pointerleave", () => { tip(-1); state.hover = -1; drawFront(); drawParallel(); showDesign(); });
  parallel.addEventListener("pointerdown", (e) => { brush = { id: parallel.id, from: [e.offsetX, e.offsetY], to: null }; parallel.setPointerCapture(e.pointerId); });
  parallel.addEventListener("pointerup", (e) => {
    const { shown, top, h, left, gap } = state.parallel, from = brush.from;
    brush = { id: "", from: null, to: null };
    if (!from) return;
    const column = shown[Math.round((from[0] - left) / gap)];
    if (!column) return;
    if (Math.abs(e.offsetY - from[1]) < 4) state.ranges.delete(column.name);
    else state.ranges.set(column.name, [Math.max(from[1], e.offsetY), Math.min(from[1], e.offsetY)].map((v) => column.lo + (1 - (v - top) / h) * (column.hi - column.lo)));
    select();
  });
  byId("clear").addEventListener("click", () => { state.ranges.clear(); select(); });
  byId("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  for (const line of document.querySelectorAll("tr[data-row]")) {
    line.addEventListener("click", () => choose(Number(line.dataset.row)));
    line.addEventListener("keydown", (e) => e.key === "Enter" && choose(Number(line.dataset.row)));
  }
  for (const button of document.querySelectorAll("button[data-sort]")) button.addEventListener("click", () => sortBy(button));
  byId("front-all").addEventListener("change", drawAll);
  for (const [id, draw] of Object.entries({ front: drawFront, curve: drawCurves, heat: drawHeat, cdf: drawCdf }))
    for (const box of document.querySelectorAll(`select[id^="${id}-"]`)) box.addEventListener("change", draw);
  addEventListener("resize", drawAll);
  addEventListener("beforeprint", () => theme("light"));
}

// Another scenario: of the values chosen the last one counts, then as many others as there are.
function show(place) {
  view(place);
  for (const part of document.querySelectorAll("[data-view]")) part.hidden = Number(part.dataset.view) !== place;
  const boxes = document.querySelectorAll("#scenario select");
  boxes.forEach((box, axis) => { box.value = meta.at[axis]; });
  for (const line of document.querySelectorAll("tr[data-opens]")) line.classList.toggle("chosen", Number(line.dataset.opens) === place);
  select();
  showDesign();
}

function listenToScenarios() {
  const boxes = [...document.querySelectorAll("#scenario select")];
  boxes.forEach((box, axis) => box.addEventListener("change", () => {
    const alike = (one) => boxes.filter((other, i) => one.at[i] === other.value).length + (one.at[axis] === box.value ? boxes.length : 0);
    const best = Math.max(...meta.views.map(alike));
    show(meta.views.findIndex((one) => alike(one) === best));
  }));
  for (const line of document.querySelectorAll("tr[data-opens]")) {
    line.addEventListener("click", () => show(Number(line.dataset.opens)));
    line.addEventListener("keydown", (e) => e.key === "Enter" && show(Number(line.dataset.opens)));
  }
}

function choose(row) {
  state.chosen = row;
  drawAll();
  showDesign();
}

// ---- beginning ----------------------------------------------------------------------------------

function offer(id, names, value, none) {
  const box = byId(id);
  if (none) box.append(new Option(none, ""));
  for (const name of names) box.append(new Option(columns.has(name) ? labelOf(columns.get(name)) : name, name, false, name === value));
}

function fill() {
  const objectives = Object.keys(meta.objectives).filter((n) => columns.has(n));
  const axes = meta.axes.filter((n) => columns.has(n));
  const numeric = [...columns.values()].filter((c) => c.numeric && c.role !== "mark").map((c) => c.name);
  const ordered = axes.filter((n) => columns.get(n).numeric);
  const all = [...objectives, ...numeric.filter((n) => !objectives.includes(n))];
  offer("front-x", all, objectives[0]);
  offer("front-y", all, objectives[1] || objectives[0]);
  offer("front-c", [...all, ...axes.filter((n) => !all.includes(n))], objectives[2], "none");
  const [asked, carried] = meta.load || [];
  const met = (axis) => alongAxis(axis, state.chosen).length;
  const longest = [...(ordered.length ? ordered : axes)].sort((a, b) => met(b) - met(a))[0];
  const load = ordered.includes(asked) ? asked : longest;
  offer("curve-axis", axes, load);
  offer("curve-x", all, columns.has(carried) && load === asked ? carried : load);
  offer("curve-y", all, objectives[0]);
  const long = [...axes].sort((a, b) => cells(columns.get(b)).count - cells(columns.get(a)).count);
  offer("heat-x", axes, long[0]);
  offer("heat-y", axes, long[1] || long[0]);
  offer("heat-z", all, objectives[objectives.length - 1]);
  const stems = Object.keys(meta.quantiles).filter((s) => meta.quantiles[s].filter(([, n]) => columns.has(n)).length >= 3);
  byId("cdf").hidden = stems.length === 0;
  offer("cdf-z", stems, stems[0]);
  for (const option of byId("cdf-z").options) option.textContent = meta.stems[option.value];
}

function drawAll() {
  drawFront();
  drawParallel();
  drawCurves();
  drawHeat();
  drawCdf();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  readColors();
  if (columns.size) drawAll();
}

theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
unpack().then(() => {
  view(meta.view);
  fill();
  listen();
  listenToScenarios();
  show(meta.view);
  document.documentElement.dataset.ready = "yes";
});
