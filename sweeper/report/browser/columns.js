"use strict";
// The columns of a report, which arrive as codes (see columns.py).

const meta = JSON.parse(document.getElementById("meta").textContent);
const NOTHING = 65535, STEPS = 65534;
const state = { ranges: new Map(), hover: -1, chosen: 0, colors: {} };
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
    columns.set(column.name, { ...column, every: codes, codes, ...scaleOf(column) });
  });
}

// Rows of one scenario lie behind each other, its front first: all else sees no others.
function view(place) {
  const start = meta.views.slice(0, place).reduce((sum, one) => sum + one.rows, 0);
  Object.assign(meta, meta.views[place]);
  for (const column of columns.values()) {
    column.codes = column.every.subarray(start, start + meta.rows);
    if (column.numeric) Object.assign(column, spanOf(column));
  }
  selected = new Uint8Array(meta.rows).fill(1);
  state.chosen = meta.chosen;
  state.hover = -1;
  state.ranges.clear();
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

// Where a column's scale begins and ends that just holds the rows for which `holds` is true.
function spanOf(column, holds = () => true) {
  let lo = Infinity, hi = -Infinity;
  for (let r = 0; r < meta.rows; r++) {
    const level = holds(r) ? levelAt(column, r) : NaN;
    if (level < lo) lo = level;
    if (level > hi) hi = level;
  }
  if (!(lo <= hi)) return { lo: column.lo, hi: column.hi };
  return lo < hi ? { lo, hi } : { lo: lo - 0.5, hi: hi + 0.5 };
}

// The same column with such a scale, and room at both ends.
function zoomed(column, holds) {
  const { lo, hi } = spanOf(column, holds);
  const room = (hi - lo) * 0.04 || 0.5;
  return { ...column, lo: lo - room, hi: hi + room };
}

// Values to mark on a scale. However narrow a range was selected, there are some.
function ticks(column, most) {
  const inside = (values) => values.filter((v) => { const p = placeOf(column, v); return p >= -1e-9 && p <= 1 + 1e-9; });
  const thinned = (values) => values.filter((_, i) => i % Math.ceil(values.length / most) === 0);
  if (!column.numeric) return thinned(inside(column.levels));
  if (column.levels && column.levels.length <= most) {
    const met = inside(column.levels);
    if (met.length) return met;
  }
  const [lo, hi] = column.log ? [Math.exp(column.lo), Math.exp(column.hi)] : [column.lo, column.hi];
  if (column.log && hi > 3 * lo) {
    const steps = Math.log10(hi / lo) > most / 2 ? [1] : [1, 2, 5], found = [];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++) for (const s of steps) found.push(s * 10 ** e);
    const met = inside(found);
    if (met.length > 2) return thinned(met);
  }
  const rough = (hi - lo) / most, base = 10 ** Math.floor(Math.log10(rough)), found = [];
  const step = [1, 2, 5, 10].find((s) => s * base >= rough * (1 - 1e-9)) * base;
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}

// Ticks with what is written at them: as many digits as tell them apart.
function marks(column, most) {
  const values = ticks(column, most);
  for (let precision = 3; precision < 8; precision++) {
    const texts = values.map((v) => human(v, column.unit, precision));
    if (precision === 7 || new Set(texts).size === texts.length) return values.map((v, i) => [v, texts[i]]);
  }
}
