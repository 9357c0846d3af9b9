// The explorer page: filters, objectives, prices, the picture of the designs, the front, a pivot table and one design.

const setup = JSON.parse(byId("setup").textContent);
const isFile = Object.keys(setup.embedded).length > 0;
const state = { first: null, second: null, filters: new Map(), shown: [], objectives: [], rates: null, chosen: null, fronts: [[], []], sort: null };
const RAMP = ["#440154", "#3e4a89", "#26828e", "#35b779", "#b5de2b", "#fde725"], NAMED = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7f00", "#7a5195"];

function element(kind, properties = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

const columnOf = (name, sweep = state.first) => sweep?.columns.get(name);
const visible = () => [...state.first.columns.values()].filter((c) => c.role !== "hidden");
const isNumeric = (c) => !c.levels || c.levels.every((v) => typeof v === "number");
const sweeps = () => [state.first, state.second].filter(Boolean);
const shownValue = (column, row) => (column.codes ? human(column.levels[column.codes[row]] ?? null, column.unit) : human(Number.isNaN(column.values[row]) ? null : column.values[row], column.unit));
const colours = {};
const colour = (name) => colours[name];

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "ink", "line", "cloud", "front", "knee", "second"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
}

// ---- loading ----------------------------------------------------------------------------------

async function request(path, kind) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer[kind]();
}

async function open(name) {
  const path = `sweeps/${encodeURIComponent(name)}`;
  const meta = isFile ? setup.embedded[name] : await request(path, "json");
  const embedded = (c) => document.querySelector(`script[data-column="${CSS.escape(`${name}/${c.index}`)}"]`).textContent;
  return new Sweep({ ...meta, id: name }, async (c) => (isFile ? unpacked(embedded(c), c.levels !== null) : new Uint8Array(await request(`${path}/columns/${c.index}`, "arrayBuffer"))));
}

async function begin(name) {
  state.first = await open(name);
  const { meta } = state.first;
  Object.assign(state, { second: null, rates: null, chosen: null, sort: null, filters: new Map(Object.entries(meta.filters)), objectives: Object.entries(meta.objectives) });
  document.title = `${meta.name}: explorer`;
  const axes = visible().filter((c) => c.role === "axis").map((c) => c.name), objectives = Object.keys(meta.objectives);
  state.shown = [...new Set([...meta.given, ...state.filters.keys(), ...objectives, ...axes])].slice(0, Math.max(9, state.filters.size));
  const numbers = visible().filter(isNumeric).map((c) => c.name), first = [...objectives, ...numbers.filter((n) => !objectives.includes(n))];
  offer("plot-x", first, objectives[0]);
  offer("plot-y", first, objectives[1] ?? first[1] ?? first[0]);
  offer("plot-colour", [...axes, ...first.filter((n) => !axes.includes(n))], null, "none");
  const long = axes.filter((n) => columnOf(n).levels && !meta.given.includes(n)).sort((a, b) => columnOf(b).levels.length - columnOf(a).levels.length);
  offer("pivot-down", [...long, ...first.filter((n) => !long.includes(n))], long[0]);
  offer("pivot-across", [...long, ...first.filter((n) => !long.includes(n))], long[1] ?? long[0]);
  offer("pivot-value", first, objectives[0]);
  byId("against").value = "";
  byId("prices").hidden = !Object.keys(meta.rates).length;
  byId("design").hidden = true;
  const sampled = meta.total > meta.rows ? `This page holds the front of the sweep and ${meta.rows.toLocaleString("en")} of ${meta.total.toLocaleString("en")} feasible designs. ` : "";
  byId("notice").textContent = sampled + (meta.unfinished ? `This run has not finished: ${meta.unfinished}.` : "");
  await ready();
  listPrices();
  listObjectives();
  listFilters();
  update();
}

// Load the columns in use, and apply the filters and prices to what arrived.
async function ready() {
  const chosen = ["plot-x", "plot-y", "plot-colour", "pivot-down", "pivot-across", "pivot-value"].map((id) => byId(id).value);
  const names = [...state.shown, ...state.filters.keys(), ...state.first.meta.given, ...state.objectives.map(([n]) => n), ...chosen];
  if (state.rates) names.push(state.first.meta.rented, ...[...state.first.columns.keys()].filter((n) => n.startsWith("at $1 an hour: ")), ...[...state.first.columns.keys()].filter((n) => state.first.columns.has(`at $1 an hour: ${n}`)));
  for (const sweep of sweeps()) {
    await sweep.load(names);
    for (const [name, spec] of state.filters) if (!sweep.masks.has(name)) sweep.filter(name, spec);
  }
}

// ---- state changes ------------------------------------------------------------------------------

function setFilter(name, spec) {
  if (spec) state.filters.set(name, spec);
  else state.filters.delete(name);
  const started = performance.now();
  for (const sweep of sweeps()) sweep.filter(name, spec);
  update(started);
}

function update(started = performance.now()) {
  const given = state.first.meta.given;
  for (const sweep of sweeps()) sweep.count();
  state.fronts = sweeps().map((sweep) => sweep.front(state.objectives, given));
  drawPlot();
  drawFilters();
  listFront();
  drawPivot();
  const took = performance.now() - started, count = state.first.passing, { rows } = state.first;
  document.documentElement.dataset.took = took.toFixed(1);
  const several = state.second ? ` ${overlaid()}` : "";
  byId("status").textContent = `${count.toLocaleString("en")} of ${rows.toLocaleString("en")} designs pass; ${state.fronts[0].length.toLocaleString("en")} on the front (${took.toFixed(0)} ms).${several}`;
}

// The share of each front that the other front dominates.
function overlaid() {
  const names = state.objectives.map(([n]) => n);
  if (names.some((n) => !columnOf(n, state.second))) return `${state.second.meta.name} lacks an objective.`;
  const vector = (sweep, row) => state.objectives.map(([n, d]) => (d === "max" ? -1 : 1) * columnOf(n, sweep).values[row]);
  const [a, b] = sweeps().map((sweep, i) => state.fronts[i].map(({ row }) => vector(sweep, row)));
  const behind = (mine, other) => mine.filter((v) => other.some((w) => w.every((x, j) => x <= v[j]) && w.some((x, j) => x < v[j]))).length;
  return `${state.second.meta.name}: ${state.second.passing.toLocaleString("en")} pass, ${b.length} on the front; it dominates ${behind(a, b)} of ${a.length}, and ${behind(b, a)} of ${b.length} are dominated.`;
}

// ---- objectives and prices ------------------------------------------------------------------------

function offer(id, names, value, none) {
  const box = typeof id === "string" ? byId(id) : id;
  box.replaceChildren(...(none ? [new Option(none, "")] : []), ...names.map((n) => new Option(columnOf(n).label, n)));
  box.value = value ?? (none ? "" : names[0]);
}

function listObjectives() {
  const numbers = visible().filter(isNumeric).map((c) => c.name);
  const change = async () => { await ready(); update(); };
  byId("objectives").replaceChildren(...state.objectives.map((objective, i) => {
    const name = element("select", { "aria-label": `objective ${i + 1}`, onchange: (e) => { objective[0] = e.target.value; change(); } });
    offer(name, numbers, objective[0]);
    const direction = element("select", { "aria-label": `direction of objective ${i + 1}`, onchange: (e) => { objective[1] = e.target.value; change(); } }, new Option("min", "min"), new Option("max", "max"));
    direction.value = objective[1];
    const remove = element("button", { type: "button", "aria-label": `remove objective ${i + 1}`, textContent: "×", disabled: state.objectives.length < 2, onclick: () => { state.objectives.splice(i, 1); listObjectives(); change(); } });
    return element("span", { className: "one" }, name, direction, remove);
  }), element("button", { type: "button", textContent: "add", "aria-label": "add an objective", onclick: () => { state.objectives.push([numbers.find((n) => !state.objectives.some(([m]) => m === n)) ?? numbers[0], "min"]); listObjectives(); change(); } }));
}

function listPrices() {
  byId("rates").replaceChildren(...Object.entries(state.first.meta.rates).map(([device, usd]) => {
    const input = element("input", { type: "number", min: 0, step: "any", value: usd === null ? "" : Number(usd.toPrecision(6)), placeholder: "no price" });
    input.addEventListener("change", async () => {
      state.rates ??= { ...state.first.meta.rates };
      state.rates[device] = input.value === "" ? null : Number(input.value);
      await ready();
      reprice();
    });
    return element("label", {}, `${device} $ `, input);
  }));
}

function reprice() {
  const started = performance.now();
  let unpriced = 0;
  for (const sweep of sweeps()) {
    unpriced = Math.max(unpriced, sweep.reprice(state.rates));
    for (const [name, spec] of state.filters) sweep.filter(name, spec);
  }
  byId("unpriced").textContent = unpriced ? `${unpriced.toLocaleString("en")} designs have no cost at these prices: their device has no price, or they use several devices.` : "";
  update(started);
}

// ---- filters --------------------------------------------------------------------------------------

const isListed = (column) => column.levels && column.levels.length <= FEW;

function listFilters() {
  const others = visible().filter((c) => !state.shown.includes(c.name)).map((c) => c.name);
  offer("add-filter", others, null, "choose a column");
  byId("filter-list").replaceChildren(...state.shown.map((name) => columnOf(name)).filter((c) => c?.values).map((column) => {
    const box = element("fieldset", { title: column.doc }, element("legend", { textContent: column.label }));
    box.dataset.name = column.name;
    if (isListed(column)) {
      const isGiven = state.first.meta.given.includes(column.name);
      box.append(element("div", { className: "levels" }, ...column.levels.map((level) => {
        const input = element("input", { type: "checkbox", value: String(level), onchange: () => pickLevels(column) });
        return element("label", {}, input, human(level, column.unit), element("span", { className: "count", "aria-hidden": "true" }));
      })));
      if (isGiven) box.append(element("p", { className: "note", textContent: "scenarios: each has its own front" }));
    } else {
      const canvas = element("canvas", { "aria-hidden": "true" });
      brushing(canvas, column);
      const end = (which) => element("label", {}, which === "low" ? "from" : "to", element("input", { type: "text", name: which, autocomplete: "off", onchange: (e) => pickEnd(column, which, e.target) }));
      box.append(canvas, element("div", { className: "ends" }, end("low"), end("high")));
    }
    return box;
  }));
}

function pickLevels(column) {
  const inputs = [...document.querySelectorAll(`fieldset[data-name="${CSS.escape(column.name)}"] input`)];
  const values = column.levels.filter((_, i) => inputs[i].checked);
  setFilter(column.name, values.length === column.levels.length ? null : { values });
}

function pickEnd(column, which, input) {
  const value = input.value.trim() === "" ? null : parsed(input.value, column.unit);
  input.setCustomValidity(Number.isNaN(value) ? "Write a number, as in 0.8, 800 ms or 10k" : "");
  if (!input.reportValidity()) return;
  const before = state.filters.get(column.name) ?? { low: null, high: null };
  setRange(column, { ...before, [which]: value });
}

const setRange = (column, range) => setFilter(column.name, range.low === null && range.high === null ? null : range);

function brushing(canvas, column) {
  let from = null;
  const at = (e) => Math.max(0, Math.min(column.ends.length - 1, Math.floor((e.offsetX / canvas.clientWidth) * column.ends.length)));
  canvas.addEventListener("pointerdown", (e) => { from = at(e); canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", (e) => {
    if (from === null) return;
    const [low, high] = [from, at(e)].sort((a, b) => a - b);
    requestAnimationFrame(() => setRange(column, { low: column.ends[low][0], high: high === column.ends.length - 1 ? column.high : column.ends[high][1] }));
  });
  canvas.addEventListener("pointerup", (e) => { if (at(e) === from) setRange(column, { low: null, high: null }); from = null; });
}

function drawFilters() {
  for (const box of document.querySelectorAll("#filter-list fieldset")) {
    const column = columnOf(box.dataset.name), counts = state.first.histogram(column), spec = state.filters.get(column.name);
    if (isListed(column)) {
      box.querySelectorAll("label").forEach((label, i) => {
        const level = column.levels[i];
        label.querySelector("input").checked = !spec || (spec.values ? spec.values.includes(level) : Number(level) >= (spec.low ?? -Infinity) && Number(level) <= (spec.high ?? Infinity));
        label.querySelector(".count").textContent = counts[i].toLocaleString("en");
      });
      continue;
    }
    for (const which of ["low", "high"]) {
      const input = box.querySelector(`input[name=${which}]`), value = spec?.[which];
      if (document.activeElement !== input || value == null) input.value = value == null ? "" : human(value, column.unit);
      input.placeholder = human(column[which], column.unit);
    }
    const canvas = box.querySelector("canvas"), ratio = devicePixelRatio || 1, width = (canvas.width = canvas.clientWidth * ratio), height = (canvas.height = canvas.clientHeight * ratio);
    const pen = canvas.getContext("2d"), most = Math.max(...counts, 1), step = width / counts.length;
    counts.forEach((count, i) => {
      const inside = !spec || (column.ends[i][1] >= (spec.low ?? -Infinity) && column.ends[i][0] <= (spec.high ?? Infinity));
      pen.fillStyle = colour(inside ? "front" : "line");
      const high = count ? Math.max(2, (count / most) * height) : 0;
      pen.fillRect(i * step, height - high, Math.max(1, step - 1), high);
    });
  }
}

// ---- picture --------------------------------------------------------------------------------------

const MANY = 20000; // designs that are drawn as a fine, faint cloud
let plot = null, places = []; // places: the front on the screen, { sweep, row, x, y }

/** 1, 2 ... 9 times the powers of ten inside a range. uPlot's own never ends for some ranges. */
function decades([low, high]) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (let k = 1; k < 10; k++) { const v = k * 10 ** power; if (v >= low && v <= high) found.push(v); }
  return found;
}

function drawPlot() {
  const host = byId("plot"), [x, y] = ["plot-x", "plot-y"].map((id) => columnOf(byId(id).value));
  plot?.destroy();
  const ends = (column) => {
    const seen = sweeps().map((sweep) => [sweep, columnOf(column.name, sweep)]).filter(([, c]) => c?.values), [low, high] = spanOf(seen);
    const log = seen.every(([, c]) => c.log) && low > 0, room = log ? Math.max(1.02, (high / low) ** 0.03) : (high - low) * 0.03 || Math.abs(high) * 0.1 || 1;
    return { log, range: log ? [low / room, high * room] : [low - room, high + room] };
  };
  const spans = [ends(x), ends(y)];
  const axis = (column, span) => ({
    stroke: colour("ink"), label: titled(column), labelSize: 20, labelFont: "12px system-ui", font: "12px system-ui", size: column === y ? 74 : 40,
    grid: { stroke: colour("line"), width: 0.5 }, ticks: { show: false },
    values: (_, splits) => splits.map((v) => (v == null ? "" : column.isText ? column.levels[v] ?? "" : human(v, column.unit))),
    ...(span.log ? { splits: () => decades(span.range), filter: (u, splits) => { const few = Math.log10(span.range[1] / span.range[0]) < 2; return splits.map((v) => { const lead = v / 10 ** Math.floor(Math.log10(v) + 1e-9); return Math.abs(lead - 1) < 0.01 || (few && [2, 5].some((k) => Math.abs(lead - k) < 0.01)) ? v : null; }); } } : {}),
  });
  plot = new uPlot({
    width: host.clientWidth, height: host.clientHeight, legend: { show: false }, padding: [10, 14, 0, 0],
    scales: { x: { time: false, distr: spans[0].log ? 3 : 1, range: spans[0].range }, y: { distr: spans[1].log ? 3 : 1, range: spans[1].range } },
    axes: [axis(x, spans[0]), axis(y, spans[1])], series: [{}, { show: true, points: { show: false }, paths: () => null }],
    cursor: { points: { show: false }, drag: { x: true, y: true, setScale: false } },
    hooks: { draw: [(u) => paint(u, x, y, spans)], setSelect: [(u) => selected(u, x, y)] },
  }, [spans[0].range, spans[1].range], host);
  plot.over.addEventListener("pointermove", hover);
  plot.over.addEventListener("click", (e) => { const near = nearest(e); if (near) choose(near); });
}

// The range of a column over the designs that pass.
function spanOf(seen) {
  let low = Infinity, high = -Infinity;
  for (const [{ fails }, { values }] of seen) for (let r = 0; r < fails.length; r++) if (fails[r] === 0) { const v = values[r]; if (v < low) low = v; if (v > high) high = v; }
  return low <= high ? [low, high] : [seen[0][1].low, seen[0][1].high];
}

function titled(column) {
  const objective = state.objectives.find(([n]) => n === column.name);
  return column.label + (objective ? ` (${objective[1] === "min" ? "lower" : "higher"} is better)` : "");
}

function paint(u, x, y, spans) {
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1, shade = columnOf(byId("plot-colour").value);
  places = [];
  ctx.save(); // uPlot expects its own state of the context
  sweeps().forEach((sweep, i) => {
    const [cx, cy, cc] = [x, y, shade].map((c) => c && columnOf(c.name, sweep));
    if (!cx?.values || !cy?.values) return;
    const tint = i ? colour("second") : colour("cloud");
    density(ctx, bbox, sweep, cx, cy, spans, i === 0 ? cc : null, tint, Math.round((sweep.passing > MANY ? 2 : 4) * ratio));
    const points = state.fronts[i].map(({ row }) => ({ sweep, row, x: u.valToPos(cx.values[row], "x", true), y: u.valToPos(cy.values[row], "y", true) }));
    for (const p of points) {
      ctx.beginPath();
      if (i) ctx.rect(p.x - 4 * ratio, p.y - 4 * ratio, 8 * ratio, 8 * ratio);
      else ctx.arc(p.x, p.y, 4.5 * ratio, 0, 7);
      ctx.fillStyle = i ? colour("second") : cc?.values ? shadeOf(cc, cc.values[p.row]) : colour("front");
      ctx.fill();
      ctx.lineWidth = 1.2 * ratio;
      ctx.strokeStyle = colour(i ? "paper" : "ink");
      ctx.stroke();
    }
    places.push(...points);
  });
  places.sort((a, b) => a.x - b.x);
  const at = state.chosen && places.find((p) => p.sweep === state.chosen.sweep && p.row === state.chosen.row);
  if (at) {
    ctx.beginPath();
    ctx.arc(at.x, at.y, 10 * ratio, 0, 7);
    ctx.lineWidth = 2.5 * ratio;
    ctx.strokeStyle = colour("knee");
    ctx.stroke();
  }
  ctx.restore();
  legend(shade);
}

// All passing designs as one image: a cell is as opaque as it is full, in the colour of its last design.
function density(ctx, bbox, sweep, cx, cy, spans, shade, tint, cell) {
  const wide = Math.ceil(bbox.width / cell), high = Math.ceil(bbox.height / cell), counts = new Uint32Array(wide * high), last = shade?.values && new Int32Array(wide * high);
  const [sx, sy] = spans.map(({ log, range: [a, b] }) => { const [low, top] = log ? [Math.log(a), Math.log(b)] : [a, b]; return { log, low, per: 1 / (top - low) }; });
  const { fails } = sweep, [xs, ys] = [[cx, sx], [cy, sy]].map(([c, { log }]) => (log ? c.places : c.values));
  for (let r = 0; r < fails.length; r++) {
    if (fails[r] !== 0) continue;
    const px = Math.floor((xs[r] - sx.low) * sx.per * wide), py = Math.floor((1 - (ys[r] - sy.low) * sy.per) * high);
    if (px >= 0 && px < wide && py >= 0 && py < high) {
      counts[py * wide + px]++;
      if (last) last[py * wide + px] = r;
    }
  }
  const faint = sweep.passing > MANY ? 90 : 170;
  let most = 1;
  for (const count of counts) if (count > most) most = count;
  const image = new ImageData(wide, high), words = new Uint32Array(image.data.buffer), known = new Map();
  const pack = (text) => {
    if (!known.has(text)) { const n = parseInt(text.slice(1), 16); known.set(text, ((n & 255) << 16) | (n & 0xff00) | (n >> 16)); }
    return known.get(text);
  };
  for (let i = 0; i < counts.length; i++) {
    if (!counts[i]) continue;
    const alpha = faint + Math.round(((220 - faint) * Math.log(counts[i])) / Math.log(most + 1));
    words[i] = ((alpha << 24) | pack(last ? shadeOf(shade, shade.values[last[i]]) : tint)) >>> 0;
  }
  const canvas = new OffscreenCanvas(wide, high);
  canvas.getContext("2d").putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(canvas, bbox.left, bbox.top, wide * cell, high * cell);
}

const isNamed = (column) => column.isText || (column.levels && column.levels.length <= NAMED.length);

function shadeOf(column, value) {
  if (value !== value) return "#888888";
  if (isNamed(column)) return NAMED[(column.isText ? value : column.levels.indexOf(value)) % NAMED.length];
  const at = column.log ? Math.log(value / column.low) / Math.log(column.high / column.low) : (value - column.low) / (column.high - column.low || 1);
  return RAMP[Math.max(0, Math.min(RAMP.length - 1, Math.floor(at * RAMP.length)))];
}

function legend(shade) {
  const swatch = (tint, text) => [element("span", { className: "entry" }, element("span", { className: "swatch", style: `background:${tint}` }), text), " "];
  const parts = state.second ? [...swatch(colour("front"), state.first.meta.name), ...swatch(colour("second"), state.second.meta.name)] : [];
  if (shade?.values) {
    parts.push(`  ${shade.label}:`);
    if (isNamed(shade)) shade.levels.slice(0, 12).forEach((level, i) => parts.push(...swatch(NAMED[i % NAMED.length], human(level, shade.unit))));
    else RAMP.forEach((tint, i) => { const t = i / RAMP.length; parts.push(...swatch(tint, human(shade.log ? shade.low * (shade.high / shade.low) ** t : shade.low + t * (shade.high - shade.low), shade.unit))); });
  }
  byId("legend").replaceChildren(`${state.second ? "Circles and squares are the two fronts" : "Circles are the front"}; small dots are other designs. Drag to select a range, click a circle for its design. `, ...parts);
}

function selected(u, x, y) {
  const { left, top, width, height } = u.select;
  if (width < 6 || height < 6) return;
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  for (const [column, from, to] of [[x, u.posToVal(left, "x"), u.posToVal(left + width, "x")], [y, u.posToVal(top + height, "y"), u.posToVal(top, "y")]]) {
    const spec = isListed(column) ? { values: column.levels.filter((v, i) => { const at = column.isText ? i : v; return at >= from && at <= to; }) } : { low: from, high: to };
    if (!state.shown.includes(column.name)) state.shown.unshift(column.name);
    state.filters.set(column.name, spec);
    for (const sweep of sweeps()) sweep.filter(column.name, spec);
  }
  listFilters();
  setTimeout(update);
}

function nearest(e) {
  const ratio = devicePixelRatio || 1, { left, top } = plot.bbox, mx = e.offsetX * ratio + left, my = e.offsetY * ratio + top;
  let best = null, least = (14 * ratio) ** 2;
  for (const p of places) { const d = (p.x - mx) ** 2 + (p.y - my) ** 2; if (d < least) [best, least] = [p, d]; }
  return best;
}

function hover(e) {
  const near = nearest(e);
  plot.over.title = near ? state.objectives.map(([n]) => `${columnOf(n).label}: ${shownValue(columnOf(n, near.sweep), near.row)}`).join("\n") : "";
}

// ---- front and pivot ------------------------------------------------------------------------------

const MOST_ROWS = 500;

function listFront() {
  const objectives = state.objectives.map(([n]) => n), axes = visible().filter((c) => c.role === "axis" && c.values && !objectives.includes(c.name)).map((c) => c.name);
  const lines = sweeps().flatMap((sweep, i) => state.fronts[i].map((one) => ({ sweep, second: i > 0, ...one })));
  const differs = axes.filter((n) => new Set(lines.slice(0, 2000).map(({ sweep, row }) => columnOf(n, sweep)?.values?.[row])).size > 1);
  const names = [...objectives, ...differs], sort = state.sort ?? { name: objectives[0], up: state.objectives[0][1] === "min" };
  const value = ({ sweep, row }) => columnOf(sort.name, sweep)?.values?.[row] ?? NaN;
  lines.sort((a, b) => (value(a) - value(b)) * (sort.up ? 1 : -1) || a.row - b.row);
  const single = !state.second && state.first.meta.given.every((n) => state.filters.get(n)?.values?.length === 1);
  const knee = single && lines.length ? lines[kneeOf(lines, state.objectives.map(([n, d]) => [columnOf(n).values, d === "max" ? -1 : 1]))] : null;
  const head = names.map((n) => {
    const th = element("th", { scope: "col", title: columnOf(n).doc }, element("button", { type: "button", textContent: columnOf(n).label, onclick: () => { state.sort = { name: n, up: !(sort.name === n && sort.up) }; listFront(); } }));
    th.setAttribute("aria-sort", sort.name === n ? (sort.up ? "ascending" : "descending") : "none");
    return th;
  });
  const body = lines.slice(0, MOST_ROWS).map((line) => {
    const { sweep, row, ties, second } = line, name = line === knee ? "knee" : `design ${row}`;
    const tr = element("tr", { onclick: () => choose(line) }, element("td", {}, element("button", { type: "button", className: second ? "second" : "", textContent: state.second ? `${sweep.meta.name} ${row}` : name })));
    for (const n of names) tr.append(element("td", { textContent: columnOf(n, sweep)?.values ? shownValue(columnOf(n, sweep), row) : "-" }));
    tr.append(element("td", { textContent: ties.toLocaleString("en") }));
    if (state.chosen?.sweep === sweep && state.chosen.row === row) tr.className = "chosen";
    return tr;
  });
  byId("front-table").replaceChildren(element("thead", {}, element("tr", {}, element("th", { scope: "col", textContent: "design" }), ...head, element("th", { scope: "col", textContent: "equal designs" }))), element("tbody", {}, ...body));
  byId("front-note").textContent = lines.length > MOST_ROWS ? `the first ${MOST_ROWS} of ${lines.length.toLocaleString("en")}` : lines.length ? "" : "no design passes all filters";
}

function drawPivot() {
  const [down, across, value] = ["pivot-down", "pivot-across", "pivot-value"].map((id) => columnOf(byId(id).value)), how = byId("pivot-how").value;
  const direction = state.objectives.find(([n]) => n === value.name)?.[1] ?? state.first.meta.objectives[value.name] ?? "min", sign = direction === "max" ? -1 : 1;
  const cells = state.first.pivot(across, down, value, how, sign), wide = across.ends.length;
  const seen = [...cells].filter((v) => v === v), low = Math.min(...seen), high = Math.max(...seen), log = low > 0 && high > 20 * low;
  const part = (v) => { const at = high > low ? (log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low)) : 1; return Math.round(45 * (how === "count" || sign < 0 ? at : 1 - at)); };
  const name = (column, i) => (isListed(column) ? human(column.levels[i], column.unit) : `from ${human(column.ends[i][0], column.unit)}`);
  const filled = (column, of) => column.ends.map((_, i) => i).filter((i) => of(i));
  const columns = filled(across, (i) => down.ends.some((_, j) => cells[j * wide + i] === cells[j * wide + i])), rows = filled(down, (j) => across.ends.some((_, i) => cells[j * wide + i] === cells[j * wide + i]));
  const unit = how === "count" ? "" : value.unit;
  byId("pivot-table").replaceChildren(
    element("thead", {}, element("tr", {}, element("th", { scope: "col", textContent: `${down.label} \\ ${across.label}` }), ...columns.map((i) => element("th", { scope: "col", textContent: name(across, i) })))),
    element("tbody", {}, ...rows.map((j) => element("tr", {}, element("th", { scope: "row", textContent: name(down, j) }), ...columns.map((i) => {
      const v = cells[j * wide + i], td = element("td", { textContent: v === v ? human(v, unit) : "" });
      if (v === v) td.style.setProperty("--part", `${part(v)}%`);
      return td;
    })))),
  );
}

// ---- one design -----------------------------------------------------------------------------------

async function choose({ sweep, row }) {
  state.chosen = { sweep, row };
  plot.redraw();
  listFront();
  const section = byId("design");
  section.hidden = false;
  byId("design-title").textContent = `Design of ${sweep.meta.name}`;
  byId("design-note").textContent = "Computing the time breakdown ...";
  for (const id of ["timeline", "breakdown"]) byId(id).replaceChildren();
  byId("design-list").replaceChildren(...visible().filter((c) => columnOf(c.name, sweep)?.values).flatMap((c) => [element("dt", { textContent: c.label, title: c.doc }), element("dd", { textContent: shownValue(columnOf(c.name, sweep), row) })]));
  try {
    const id = sweep.meta.id, known = isFile ? setup.designs[id]?.[row] : await request(`sweeps/${encodeURIComponent(id)}/designs/${row}`, "json");
    if (state.chosen.sweep !== sweep || state.chosen.row !== row) return;
    if (!known) byId("design-note").textContent = `This file has no time breakdown of this design; open  sweeper ui ${sweep.meta.name}  for all designs.`;
    else showDesign(sweep, known);
  } catch (error) {
    byId("design-note").textContent = error.message;
  }
}

function showDesign(sweep, known) {
  byId("design-title").textContent = `Design ${known.key.slice(0, 10)}: ${known.choices}`;
  byId("design-list").replaceChildren(...known.columns.flatMap(([name, text]) => [element("dt", { textContent: name }), element("dd", { textContent: text })]));
  const note = byId("design-note");
  if (known.problem) { note.textContent = known.problem; return; }
  const trace = element("a", { download: `${known.key.slice(0, 10)}.json`, textContent: "timeline for Perfetto", href: URL.createObjectURL(new Blob([JSON.stringify(known.trace)], { type: "application/json" })) });
  note.replaceChildren("Phases and operators one after another. Download the ", trace, ".");
  const whole = known.phases.reduce((sum, phase) => sum + phase.time_s, 0);
  byId("timeline").replaceChildren(...known.phases.filter((phase) => phase.time_s > 0).map((phase) => {
    const track = element("div", { className: "track", role: "img", "aria-label": `Timeline of ${phase.name}, ${human(phase.time_s, "s")}; the table lists the operators.` });
    phase.rows.forEach((row, i) => track.append(element("div", { title: `${row.name}: ${human(row.time_s, "s")}`, style: `flex:${row.time_s / phase.time_s} 0 0;background:${NAMED[i % NAMED.length]}` })));
    return element("div", {}, element("span", { className: "note", textContent: `${phase.name}: ${human(phase.time_s, "s")} (${((100 * phase.time_s) / whole).toFixed(0)} %)` }), track);
  }));
  byId("breakdown").replaceChildren(...known.phases.map((phase) => element("table", {},
    element("caption", { textContent: phase.name }),
    element("thead", {}, element("tr", {}, ...["operator", "time", "share", "bound by", "evidence"].map((text) => element("th", { scope: "col", textContent: text })))),
    element("tbody", {}, ...phase.rows.map((row, i) => element("tr", {}, element("td", {}, element("span", { className: "swatch", style: `background:${NAMED[i % NAMED.length]}` }), row.name), element("td", { textContent: human(row.time_s, "s") }),
      element("td", {}, phase.time_s ? `${((100 * row.time_s) / phase.time_s).toFixed(1)} %` : "", element("span", { className: "share", style: `width:${phase.time_s ? (60 * row.time_s) / phase.time_s : 0}px` })),
      element("td", { textContent: row.bound }), element("td", { textContent: row.level })))))));
}

// ---- beginning ------------------------------------------------------------------------------------

function listen() {
  const chosen = ["plot-x", "plot-y", "plot-colour"], pivot = ["pivot-down", "pivot-across", "pivot-value", "pivot-how"];
  for (const id of chosen) byId(id).addEventListener("change", async () => { await ready(); drawPlot(); });
  for (const id of pivot) byId(id).addEventListener("change", async () => { await ready(); drawPivot(); });
  byId("add-filter").addEventListener("change", async (e) => { if (e.target.value) state.shown.unshift(e.target.value); await ready(); listFilters(); drawFilters(); });
  byId("clear").addEventListener("click", () => {
    for (const name of [...state.filters.keys()]) for (const sweep of sweeps()) sweep.filter(name, null);
    state.filters.clear();
    update();
  });
  byId("filters").addEventListener("submit", (e) => e.preventDefault());
  byId("list-prices").addEventListener("click", () => { state.rates = null; listPrices(); reprice(); });
  byId("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  byId("sweep").addEventListener("change", (e) => shown(begin(e.target.value)));
  byId("against").addEventListener("change", (e) => shown((async () => {
    state.second = e.target.value ? await open(e.target.value) : null;
    if (state.chosen?.sweep !== state.first) state.chosen = null;
    await ready();
    if (state.rates) reprice();
    else update();
  })()));
  byId("plot").addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[e.key];
    if (!step || !places.length) return;
    e.preventDefault();
    const at = places.findIndex((p) => p.sweep === state.chosen?.sweep && p.row === state.chosen?.row);
    choose(places[(at + step + places.length) % places.length]);
  });
  new ResizeObserver(() => { if (plot && plot.width !== byId("plot").clientWidth) { drawPlot(); drawFilters(); } }).observe(byId("plot"));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  readColours();
  if (state.first) { drawPlot(); drawFilters(); }
}

// Show the reason if something cannot be loaded.
const shown = (work) => work.then(() => { document.documentElement.dataset.ready = "yes"; }, (error) => { byId("status").textContent = error.message; });

theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
for (const [id, none] of [["sweep", null], ["against", "none"]]) byId(id).append(...(none ? [new Option(none, "")] : []), ...setup.sweeps.map((n) => new Option(n, n)));
byId("sweep").value = setup.chosen;
listen();
shown(begin(setup.chosen));
