"use strict";
// The pictures of a report: canvas drawings of columns that arrive as codes (see columns.py).

const meta = JSON.parse(document.getElementById("meta").textContent);
const NOTHING = 65535, STEPS = 65534;
const byId = (id) => document.getElementById(id);
const state = { ranges: new Map(), hover: -1, chosen: meta.chosen, colors: {} };
const columns = new Map();
let selected = new Uint8Array(0); // 1 for rows inside every selected range

// ---- columns ----------------------------------------------------------------------------------

async function unpack() {
  const packed = Uint8Array.from(atob(byId("data").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  meta.columns.forEach((column, i) => {
    const start = 2 * i * meta.rows;
    const codes = new Uint16Array(meta.rows);
    for (let r = 0; r < meta.rows; r++) codes[r] = bytes[start + r] | (bytes[start + meta.rows + r] << 8);
    columns.set(column.name, { ...column, codes, ...scaleOf(column) });
  });
  selected = new Uint8Array(meta.rows).fill(1);
}

// How a column is laid out between 0 and 1: names and few numbers by position or value.
function scaleOf(column) {
  const numeric = !column.levels || column.levels.every((v) => typeof v === "number");
  if (!numeric || column.role === "mark") return { numeric: false, lo: 0, hi: Math.max(1, column.levels.length - 1), log: false };
  let lo, hi, log;
  if (column.levels) {
    [lo, hi] = [column.levels[0], column.levels[column.levels.length - 1]];
    log = lo > 0 && hi > 5 * lo;
    if (log) [lo, hi] = [Math.log(lo), Math.log(hi)];
  } else {
    [lo, hi, log] = [column.low, column.high, column.log];
  }
  if (lo === hi) [lo, hi] = [lo - 0.5, hi + 0.5];
  return { numeric: true, lo, hi, log };
}

function valueAt(column, row) {
  const code = column.codes[row];
  if (code === NOTHING) return null;
  if (column.levels) return column.levels[code];
  const step = column.low + (code / STEPS) * (column.high - column.low);
  return column.log ? Math.exp(step) : step;
}

// Where a row lies on a column's scale: a value, its logarithm, or the position of a name.
function levelAt(column, row) {
  const code = column.codes[row];
  if (code === NOTHING) return NaN;
  if (!column.numeric) return code;
  if (!column.levels) return column.low + (code / STEPS) * (column.high - column.low);
  return levelOf(column, column.levels[code]);
}

function levelOf(column, value) {
  if (!column.numeric) return column.levels.indexOf(value);
  return column.log ? Math.log(value) : value;
}

const placeAt = (column, row) => (levelAt(column, row) - column.lo) / (column.hi - column.lo);
const placeOf = (column, value) => (levelOf(column, value) - column.lo) / (column.hi - column.lo);

// The same column with a scale that just holds the rows for which `holds` is true.
function zoomed(column, holds) {
  let lo = Infinity, hi = -Infinity;
  for (let r = 0; r < meta.rows; r++) {
    const level = holds(r) ? levelAt(column, r) : NaN;
    if (level < lo) lo = level;
    if (level > hi) hi = level;
  }
  if (!(lo <= hi)) return column;
  const room = (hi - lo) * 0.04 || 0.5;
  return { ...column, lo: lo - room, hi: hi + room };
}

// ---- numbers as a person writes them ------------------------------------------------------------

const SCALES = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  B: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  J: [[1, "J"], [1e-3, "mJ"], [1e-6, "µJ"], [1e-9, "nJ"], [1e-12, "pJ"]],
  flops: [[1e15, "PFLOP"], [1e12, "TFLOP"], [1e9, "GFLOP"], [1, "FLOP"]],
};
SCALES.bytes = SCALES.B;

function digits(value) {
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size > 0 && size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(3)));
}

function human(value, unit) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  const perSecond = unit.endsWith("/s");
  const scale = SCALES[perSecond ? unit.slice(0, -2) : unit];
  if (scale) {
    const [size, name] = scale.find(([s]) => Math.abs(value) >= s) || scale[scale.length - 1];
    return `${digits(value / size)} ${name}${perSecond ? "/s" : ""}`;
  }
  if (unit === "$" || unit === "USD") return `$${digits(value)}`;
  if (unit === "1/s") return `${digits(value)}/s`;
  return `${digits(value)} ${unit}`.trim();
}

function ticks(column, most) {
  if (!column.numeric || (column.levels && column.levels.length <= most)) {
    const inside = column.levels.filter((v) => { const p = placeOf(column, v); return p >= 0 && p <= 1; });
    return inside.filter((_, i) => i % Math.ceil(inside.length / most) === 0);
  }
  const [lo, hi] = column.log ? [Math.exp(column.lo), Math.exp(column.hi)] : [column.lo, column.hi];
  const found = [];
  if (column.log) {
    const steps = Math.log10(hi / lo) > most / 2 ? [1] : [1, 2, 5];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++)
      for (const s of steps) if (s * 10 ** e >= lo * 0.999 && s * 10 ** e <= hi * 1.001) found.push(s * 10 ** e);
    return found.filter((_, i) => i % Math.ceil(found.length / most) === 0);
  }
  const rough = (hi - lo) / most, base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((s) => s * base >= rough) * base;
  for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}

// ---- drawing ------------------------------------------------------------------------------------

const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const LINES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7f00", "#7a5195"];

function ramp(t) {
  const least = document.documentElement.dataset.theme === "dark" ? 0.2 : 0; // dark on dark is not seen
  const x = Math.min(0.9999, least + (1 - least) * Math.max(0, t)) * (VIRIDIS.length - 1), i = Math.floor(x);
  const part = (c, k) => parseInt(VIRIDIS[c].slice(1 + 2 * k, 3 + 2 * k), 16);
  const mix = [0, 1, 2].map((k) => Math.round(part(i, k) + (part(i + 1, k) - part(i, k)) * (x - i)));
  return `rgb(${mix.join(",")})`;
}

function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "raised", "ink", "soft", "line", "cloud", "front", "knee"])
    state.colors[name] = style.getPropertyValue(`--${name}`).trim();
}

// A canvas in CSS pixels, whatever the screen's density.
function prepare(id) {
  const canvas = byId(id), ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return { canvas, pen, width, height };
}

function frame(pen, area, x, y, { grid = true } = {}) {
  const { ink, soft, line } = state.colors;
  pen.lineWidth = 1;
  pen.textBaseline = "top";
  pen.textAlign = "center";
  for (const tick of ticks(x, Math.max(3, Math.floor(area.w / 90)))) {
    const px = area.x + placeOf(x, tick) * area.w;
    if (grid) stroke(pen, line, [[px, area.y], [px, area.y + area.h]], 0.5);
    pen.fillStyle = soft;
    pen.fillText(human(tick, x.unit), px, area.y + area.h + 6);
  }
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const tick of ticks(y, Math.max(3, Math.floor(area.h / 34)))) {
    const py = area.y + (1 - placeOf(y, tick)) * area.h;
    if (grid) stroke(pen, line, [[area.x, py], [area.x + area.w, py]], 0.5);
    pen.fillStyle = soft;
    pen.fillText(human(tick, y.unit), area.x - 7, py);
  }
  stroke(pen, soft, [[area.x, area.y], [area.x, area.y + area.h], [area.x + area.w, area.y + area.h]], 1);
  pen.fillStyle = ink;
  pen.textAlign = "right";
  pen.textBaseline = "bottom";
  pen.fillText(titled(x), area.x + area.w, area.y + area.h + 36);
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText(`↑ ${titled(y)}`, 8, 6);
}

function titled(column) {
  const direction = meta.objectives[column.name];
  const better = direction ? ` (${direction === "min" ? "lower" : "higher"} is better)` : "";
  return column.name + better;
}

function stroke(pen, color, points, width) {
  pen.strokeStyle = color;
  pen.lineWidth = width;
  pen.beginPath();
  points.forEach(([px, py], i) => (i ? pen.lineTo(px, py) : pen.moveTo(px, py)));
  pen.stroke();
}

function dot(pen, px, py, radius, fill, edge) {
  pen.beginPath();
  pen.arc(px, py, radius, 0, 7);
  pen.fillStyle = fill;
  pen.fill();
  if (edge) {
    pen.strokeStyle = edge;
    pen.lineWidth = 1;
    pen.stroke();
  }
}

function star(pen, px, py, radius) {
  pen.beginPath();
  for (let i = 0; i < 10; i++) {
    const r = i % 2 ? radius * 0.45 : radius, a = (Math.PI * i) / 5 - Math.PI / 2;
    pen.lineTo(px + r * Math.cos(a), py + r * Math.sin(a));
  }
  pen.closePath();
  pen.fillStyle = state.colors.knee;
  pen.fill();
  pen.strokeStyle = state.colors.paper;
  pen.lineWidth = 1.2;
  pen.stroke();
}

const picked = (id) => columns.get(byId(id).value);

// ---- the front ----------------------------------------------------------------------------------

let dots = { px: new Float32Array(0), py: new Float32Array(0), area: null };

function drawFront() {
  const { pen, width, height } = prepare("front-canvas");
  const every = byId("front-all").checked, mark = columns.get("qualifies");
  const shown = (r) => selected[r] && (every || valueAt(mark, r));
  const [x, y] = ["front-x", "front-y"].map((id) => zoomed(picked(id), shown)), c = picked("front-c");
  const area = { x: 78, y: 30, w: width - 78 - 104, h: height - 30 - 48 };
  frame(pen, area, x, y);
  const px = new Float32Array(meta.rows), py = new Float32Array(meta.rows);
  for (let r = 0; r < meta.rows; r++) {
    px[r] = shown(r) ? area.x + placeAt(x, r) * area.w : NaN;
    py[r] = area.y + (1 - placeAt(y, r)) * area.h;
  }
  dots = { px, py, area, x, y };
  pen.fillStyle = state.colors.cloud;
  for (const [alpha, good] of [[0.14, false], [0.4, true]]) {
    pen.globalAlpha = alpha;
    for (let r = meta.front; r < meta.rows; r++)
      if (valueAt(mark, r) === good && px[r] === px[r]) pen.fillRect(px[r] - 1.5, py[r] - 1.5, 3, 3);
  }
  pen.globalAlpha = 1;
  for (let r = 0; r < meta.front; r++) {
    if (px[r] === px[r]) dot(pen, px[r], py[r], 4.2, c ? ramp(placeAt(c, r)) : state.colors.front, state.colors.paper);
  }
  if (px[meta.chosen] === px[meta.chosen]) star(pen, px[meta.chosen], py[meta.chosen], 10);
  if (state.chosen !== meta.chosen) ring(pen, px[state.chosen], py[state.chosen], state.colors.knee);
  if (state.hover >= 0) ring(pen, px[state.hover], py[state.hover], state.colors.ink);
  if (c) legend(pen, c, area.x + area.w + 18, area.y + 16, area.h - 40);
  if (brush.id === "front-canvas" && brush.to) {
    const [a, b] = [brush.from, brush.to];
    pen.strokeStyle = state.colors.ink;
    pen.setLineDash([4, 3]);
    pen.strokeRect(Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1]));
    pen.setLineDash([]);
  }
}

function ring(pen, px, py, color) {
  pen.beginPath();
  pen.arc(px, py, 8, 0, 7);
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.stroke();
}

function legend(pen, column, x, y, h) {
  for (let i = 0; i < h; i++) {
    pen.fillStyle = ramp(1 - i / h);
    pen.fillRect(x, y + i, 12, 1.5);
  }
  pen.fillStyle = state.colors.soft;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  for (const tick of ticks(column, 6)) pen.fillText(human(tick, column.unit), x + 17, y + (1 - placeOf(column, tick)) * h);
  pen.fillStyle = state.colors.ink;
  pen.textAlign = "right";
  pen.textBaseline = "top";
  pen.fillText(column.name, x + 84, 6);
}

function nearest(mx, my) {
  let best = -1, least = 14 * 14;
  for (let r = 0; r < meta.rows; r++) {
    const dx = dots.px[r] - mx, dy = dots.py[r] - my, near = (dx * dx + dy * dy) * (r < meta.front ? 0.5 : 1);
    if (near < least) [best, least] = [r, near];
  }
  return best;
}

// ---- parallel coordinates -----------------------------------------------------------------------

const MOST_LINES = 2500;

function lanes() {
  return [...meta.axes, ...Object.keys(meta.objectives)].map((n) => columns.get(n)).filter(Boolean);
}

function drawParallel() {
  const { pen, width, height } = prepare("parallel-canvas");
  const shown = lanes(), top = 34, h = height - top - 18, left = 56;
  const gap = (width - 2 * left) / Math.max(1, shown.length - 1);
  const lane = (i) => left + i * gap;
  const path = (r) => {
    pen.beginPath();
    shown.forEach((column, i) => {
      const place = placeAt(column, r);
      if (place === place) pen.lineTo(lane(i), top + (1 - place) * h);
    });
    pen.stroke();
  };
  const every = Math.max(1, Math.ceil(meta.rows / MOST_LINES));
  pen.globalAlpha = 0.07;
  pen.lineWidth = 1;
  pen.strokeStyle = state.colors.cloud;
  for (let r = meta.front; r < meta.rows; r += every) if (selected[r]) path(r);
  pen.strokeStyle = state.colors.front;
  pen.globalAlpha = 0.35;
  for (let r = 0; r < meta.front; r++) if (selected[r]) path(r);
  pen.globalAlpha = 1;
  pen.strokeStyle = state.colors.knee;
  pen.lineWidth = 2.5;
  path(state.chosen);
  if (state.hover >= 0) {
    pen.strokeStyle = state.colors.ink;
    pen.lineWidth = 2;
    path(state.hover);
  }
  shown.forEach((column, i) => {
    stroke(pen, state.colors.soft, [[lane(i), top], [lane(i), top + h]], 1);
    pen.textAlign = i === 0 ? "left" : i === shown.length - 1 ? "right" : "center";
    pen.textBaseline = "top";
    pen.fillStyle = state.colors.ink;
    pen.fillText(column.name, Math.min(width - 4, Math.max(4, lane(i) + (i === 0 ? -left + 6 : i === shown.length - 1 ? left - 6 : 0))), i % 2 ? 18 : 4);
    pen.textAlign = i === shown.length - 1 ? "right" : "left";
    pen.textBaseline = "middle";
    for (const tick of ticks(column, 6)) {
      const py = top + (1 - placeOf(column, tick)) * h;
      const text = human(tick, column.unit), at = lane(i) + (i === shown.length - 1 ? -5 : 5);
      pen.strokeStyle = state.colors.paper;
      pen.lineWidth = 3;
      pen.strokeText(text, at, py);
      pen.fillStyle = state.colors.soft;
      pen.fillText(text, at, py);
    }
    const range = state.ranges.get(column.name);
    if (range) {
      pen.fillStyle = state.colors.knee;
      pen.globalAlpha = 0.35;
      const [low, high] = range.map((level) => Math.min(1, Math.max(0, (level - column.lo) / (column.hi - column.lo))));
      pen.fillRect(lane(i) - 6, top + (1 - high) * h, 12, Math.max(2, (high - low) * h));
      pen.globalAlpha = 1;
    }
  });
  state.parallel = { shown, top, h, left, gap };
}

// ---- along one axis -----------------------------------------------------------------------------

// Rows that differ from a row in one axis only, in that axis's order.
function alongAxis(axis, row) {
  const others = meta.axes.filter((n) => n !== axis).map((n) => columns.get(n));
  const column = columns.get(axis), found = [];
  for (let r = 0; r < meta.rows; r++) if (others.every((c) => c.codes[r] === c.codes[row])) found.push(r);
  return found.sort((a, b) => column.codes[a] - column.codes[b]);
}

function drawCurves() {
  const { pen, width, height } = prepare("curve-canvas");
  const axis = byId("curve-axis").value;
  const area = { x: 78, y: 30, w: width - 78 - 20, h: height - 30 - 48 };
  const shown = [state.chosen];
  for (let r = 0; r < meta.front && shown.length < 6; r += Math.max(1, Math.floor(meta.front / 5))) if (r !== state.chosen) shown.push(r);
  const lines = shown.reverse().map((row) => alongAxis(axis, row)), drawn = new Set(lines.flat());
  const [x, y] = ["curve-x", "curve-y"].map((id) => zoomed(picked(id), (r) => drawn.has(r)));
  frame(pen, area, x, y);
  lines.forEach((line, i) => {
    const chosen = shown[i] === state.chosen, color = chosen ? state.colors.knee : LINES[i % LINES.length];
    const at = line.map((r) => [area.x + placeAt(x, r) * area.w, area.y + (1 - placeAt(y, r)) * area.h]).filter((p) => p[0] === p[0] && p[1] === p[1]);
    pen.globalAlpha = chosen ? 1 : 0.55;
    stroke(pen, color, at, chosen ? 2.5 : 1.3);
    for (const [px, py] of at) dot(pen, px, py, chosen ? 3.5 : 2.2, color);
  });
  pen.globalAlpha = 1;
  byId("curve-note").textContent = `The chosen design (thick) and others of the front, with only ${axis} changed.`;
}

// ---- heat map -----------------------------------------------------------------------------------

function cells(column) {
  if (column.levels && column.levels.length <= 24) return { count: column.levels.length, of: (r) => (column.codes[r] === NOTHING ? -1 : column.codes[r]), label: (i) => human(column.levels[i], column.unit) };
  const count = 16, at = (i) => column.lo + ((i + 0.5) / count) * (column.hi - column.lo);
  return { count, of: (r) => { const p = placeAt(column, r); return p === p ? Math.min(count - 1, Math.floor(p * count)) : -1; }, label: (i) => human(column.log ? Math.exp(at(i)) : at(i), column.unit) };
}

function drawHeat() {
  const { pen, width, height } = prepare("heat-canvas");
  const [x, y, z] = ["heat-x", "heat-y", "heat-z"].map(picked);
  const across = cells(x), up = cells(y), sign = meta.objectives[z.name] === "max" ? -1 : 1;
  const best = new Float64Array(across.count * up.count).fill(NaN);
  const mark = columns.get("qualifies");
  for (let r = 0; r < meta.rows; r++) {
    const i = across.of(r), j = up.of(r), value = valueAt(z, r);
    if (!selected[r] || !valueAt(mark, r) || i < 0 || j < 0 || value === null) continue;
    const at = j * across.count + i;
    if (!(best[at] * sign <= value * sign)) best[at] = value;
  }
  const left = 14 + Math.max(30, ...Array.from({ length: up.count }, (_, j) => pen.measureText(up.label(j)).width));
  const area = { x: left, y: 30, w: width - left - 16, h: height - 30 - 48 };
  const w = area.w / across.count, h = area.h / up.count;
  for (let j = 0; j < up.count; j++) {
    for (let i = 0; i < across.count; i++) {
      const value = best[j * across.count + i], px = area.x + i * w, py = area.y + area.h - (j + 1) * h;
      pen.fillStyle = value === value ? ramp(sign > 0 ? 1 - placeOf(z, value) : placeOf(z, value)) : state.colors.raised;
      pen.fillRect(px + 0.5, py + 0.5, w - 1, h - 1);
      if (value === value && w > 52 && h > 15) {
        const light = (sign > 0 ? 1 - placeOf(z, value) : placeOf(z, value)) > 0.55;
        pen.fillStyle = light ? "#111" : "#fff";
        pen.textAlign = "center";
        pen.textBaseline = "middle";
        pen.fillText(human(value, z.unit), px + w / 2, py + h / 2);
      }
    }
  }
  pen.fillStyle = state.colors.soft;
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const skip = Math.ceil(48 / w);
  for (let i = 0; i < across.count; i += skip) pen.fillText(across.label(i), area.x + (i + 0.5) * w, area.y + area.h + 6);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let j = 0; j < up.count; j++) pen.fillText(up.label(j), area.x - 7, area.y + area.h - (j + 0.5) * h);
  pen.fillStyle = state.colors.ink;
  pen.textBaseline = "bottom";
  pen.fillText(x.name, area.x + area.w, area.y + area.h + 36);
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText(`↑ ${y.name}    cells: best ${z.name}, light is better`, 8, 6);
}

// ---- latency distribution -----------------------------------------------------------------------

function drawCdf() {
  if (byId("cdf").hidden) return;
  const { pen, width, height } = prepare("cdf-canvas");
  const points = meta.quantiles[byId("cdf-z").value].filter(([, name]) => columns.has(name));
  const rows = [...new Set([state.chosen, state.hover >= 0 ? state.hover : meta.chosen])];
  const values = rows.flatMap((r) => points.map(([, n]) => valueAt(columns.get(n), r))).filter((v) => v > 0);
  const unit = columns.get(points[0][1]).unit;
  const [lo, hi] = [Math.min(...values) * 0.9, Math.max(...values) * 1.1];
  const x = { name: `${byId("cdf-z").value}_s`, numeric: true, log: hi > 5 * lo, unit, lo: hi > 5 * lo ? Math.log(lo) : lo, hi: hi > 5 * lo ? Math.log(hi) : hi };
  const y = { name: "share of requests", numeric: true, log: false, unit: "", lo: 0, hi: 1 };
  const area = { x: 60, y: 30, w: width - 60 - 26, h: height - 30 - 48 };
  frame(pen, area, x, y);
  rows.reverse().forEach((row) => {
    const at = points.map(([share, name]) => [valueAt(columns.get(name), row), share]).filter(([v]) => v > 0);
    const color = row === state.chosen ? state.colors.knee : state.colors.front;
    const path = at.map(([v, s]) => [area.x + placeOf(x, v) * area.w, area.y + (1 - s) * area.h]);
    stroke(pen, color, path, 2);
    for (const [px, py] of path) dot(pen, px, py, 3.5, color);
  });
  byId("cdf-note").textContent = "Stored quantiles, joined by straight lines: the chosen design, and the one under the pointer.";
}

// ---- the chosen design --------------------------------------------------------------------------

function showDesign() {
  const row = state.hover >= 0 ? state.hover : state.chosen, list = byId("design-list");
  const said = [["key", row < meta.front ? meta.keys[row] : "(not on the front)"]];
  for (const column of columns.values()) if (column.role !== "mark") said.push([column.name, human(valueAt(column, row), column.unit)]);
  list.replaceChildren(...said.flatMap(([k, v]) => [element("dt", k), element("dd", v)]));
  for (const tr of document.querySelectorAll("tr[data-row]")) tr.classList.toggle("chosen", Number(tr.dataset.row) === state.chosen);
}

function element(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

function tip(row, event) {
  let box = byId("tip");
  if (row < 0) return box && box.remove();
  if (!box) {
    box = element("div", "");
    box.id = "tip";
    document.body.append(box);
  }
  const names = [...meta.axes, ...Object.keys(meta.objectives)];
  const table = document.createElement("table");
  for (const name of names) {
    const column = columns.get(name);
    if (!column) continue;
    const line = table.insertRow();
    line.insertCell().textContent = name;
    line.insertCell().textContent = human(valueAt(column, row), column.unit);
  }
  box.replaceChildren(element("div", row < meta.front ? `on the front · ${meta.keys[row]}` : "behind the front"), table);
  const wide = box.offsetWidth, high = box.offsetHeight;
  box.style.left = `${event.clientX + 18 + wide > innerWidth ? event.clientX - wide - 14 : event.clientX + 18}px`;
  box.style.top = `${Math.max(4, Math.min(innerHeight - high - 4, event.clientY - high / 2))}px`;
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
    tip(hover, e);
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
  byId("front-all").addEventListener("change", drawFront);
  for (const [id, draw] of Object.entries({ front: drawFront, curve: drawCurves, heat: drawHeat, cdf: drawCdf }))
    for (const box of document.querySelectorAll(`select[id^="${id}-"]`)) box.addEventListener("change", draw);
  addEventListener("resize", drawAll);
  addEventListener("beforeprint", () => theme("light"));
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
  for (const name of names) box.append(new Option(name, name, false, name === value));
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
  const load = ordered.includes(asked) ? asked : ordered[ordered.length - 1] || axes[0];
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
  fill();
  listen();
  drawAll();
  showDesign();
  document.documentElement.dataset.ready = "yes";
});
