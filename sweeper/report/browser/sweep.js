"use strict";
// A sweep as typed arrays: filters, counts, Pareto fronts and pivot tables over up to millions of designs.
//
// A column with `levels` holds one byte per design, the position of its value (255: missing); any other column
// holds 64-bit numbers (NaN: missing). Columns are loaded on first use.

const MISSING = 255, BINS = 48, FEW = 24;

async function unpacked(text, coded) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (coded) return planes;
  const bytes = new Uint8Array(planes.length), rows = planes.length / 8;
  for (let i = 0; i < 8; i++) for (let r = 0; r < rows; r++) bytes[8 * r + i] = planes[i * rows + r];
  return bytes;
}

class Sweep {
  constructor(meta, bytesOf) {
    Object.assign(this, { meta, bytesOf, rows: meta.rows, loading: new Map(), masks: new Map(), hidden: new Map() });
    this.columns = new Map(meta.columns.map((column, index) => [column.name, { ...column, index }]));
    this.fails = new Uint8Array(meta.rows); // number of filters that a design fails
    this.passing = meta.rows;
  }

  load(names) {
    return Promise.all([...names].filter((n) => this.columns.has(n)).map((name) => {
      if (!this.loading.has(name)) this.loading.set(name, this.fetch(this.columns.get(name)));
      return this.loading.get(name);
    }));
  }

  async fetch(column) {
    const bytes = await this.bytesOf(column);
    column.codes = column.levels ? bytes : null;
    if (!column.levels) column.stored = column.values = new Float64Array(bytes.buffer, 0, this.rows);
    else this.expand(column);
    this.describe(column);
  }

  // Values of a dictionary-encoded column as numbers: the level itself, or the position of a text.
  expand(column) {
    const numeric = column.levels.every((v) => typeof v === "number");
    const table = new Float64Array(256).fill(NaN);
    column.levels.forEach((level, code) => { table[code] = numeric ? level : code; });
    column.isText = !numeric;
    column.values = new Float64Array(this.rows);
    for (let r = 0; r < this.rows; r++) column.values[r] = table[column.codes[r]];
  }

  // The scale of a column, and the bin of each design in the column's histogram.
  describe(column) {
    const { values, levels } = column;
    let low = Infinity, high = -Infinity;
    column.isPartial = false;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; if (v !== v) column.isPartial = true; }
    if (!(low <= high)) [low, high] = [0, 1];
    column.log = !column.isText && low > 0 && high > 20 * low;
    Object.assign(column, { low, high, bins: new Uint8Array(this.rows), places: values });
    if (column.log) {
      column.places = new Float64Array(this.rows);
      for (let r = 0; r < values.length; r++) column.places[r] = Math.log(values[r]);
    }
    if (levels && levels.length <= FEW) {
      column.bins = column.codes;
      column.ends = levels.map((_, code) => [code, code]);
      return;
    }
    const at = (v) => (column.log ? Math.log(v) : v), from = at(low), step = (at(high) - from) / BINS || 1;
    const back = (x) => (column.log ? Math.exp(x) : x), { places, bins } = column;
    for (let r = 0; r < places.length; r++) bins[r] = places[r] === places[r] ? Math.min(BINS - 1, (places[r] - from) / step) : MISSING;
    column.ends = Array.from({ length: BINS }, (_, i) => [back(from + i * step), back(from + (i + 1) * step)]);
  }

  // A filter is { low, high }, either null for none, or { values }, the values that pass.
  filter(name, spec) {
    const column = this.columns.get(name), fails = this.fails, before = this.masks.get(name);
    if (!column || !column.values) return;
    if (before) for (let r = 0; r < fails.length; r++) fails[r] -= before[r];
    this.masks.delete(name);
    if (!spec) return;
    const mask = new Uint8Array(this.rows), { values, codes } = column;
    if (spec.values) {
      const wanted = new Set(spec.values), refused = Uint8Array.from({ length: 256 }, (_, code) => (wanted.has(column.levels[code]) ? 0 : 1));
      for (let r = 0; r < mask.length; r++) mask[r] = refused[codes[r]];
    } else {
      const low = spec.low ?? -Infinity, high = spec.high ?? Infinity;
      for (let r = 0; r < mask.length; r++) mask[r] = values[r] >= low && values[r] <= high ? 0 : 1;
    }
    for (let r = 0; r < fails.length; r++) fails[r] += mask[r];
    this.masks.set(name, mask);
  }

  count() {
    let count = 0;
    for (const failed of this.fails) if (failed === 0) count++;
    return (this.passing = count);
  }

  // Designs per bin that pass all filters but the column's own.
  histogram(column) {
    const counts = new Uint32Array(256), { fails } = this, { bins } = column, own = this.masks.get(column.name);
    if (own) { for (let r = 0; r < fails.length; r++) if (fails[r] === own[r]) counts[bins[r]]++; }
    else for (let r = 0; r < fails.length; r++) if (fails[r] === 0) counts[bins[r]]++;
    return counts.subarray(0, column.ends.length);
  }

  // The non-dominated designs that pass, in groups of equal `given` columns; one per distinct vector, with the number of designs.
  front(objectives, given) {
    const columns = objectives.map(([name, direction]) => [this.columns.get(name)?.values, direction === "max" ? -1 : 1]);
    if (!columns.length || columns.some(([values]) => !values)) return [];
    let passing = new Int32Array(this.passing), count = 0;
    for (let r = 0; r < this.rows; r++) if (this.fails[r] === 0) passing[count++] = r;
    for (const [name] of objectives) { const { values, isPartial } = this.columns.get(name); if (isPartial) passing = passing.filter((r) => values[r] === values[r]); }
    const keys = given.map((n) => this.columns.get(n)).filter((c) => c?.values);
    if (!keys.length) return skyline(passing, columns);
    const groups = new Map();
    for (const r of passing) {
      const key = keys.length === 1 ? keys[0].values[r] : keys.map((c) => c.values[r]).join();
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(r);
    }
    return [...groups.values()].flatMap((one) => skyline(Int32Array.from(one), columns)).sort((a, b) => a.row - b.row);
  }

  // Best, mean or number of designs in each cell of two columns.
  pivot(across, down, value, how, sign) {
    const wide = across.ends.length, cells = new Float64Array(wide * down.ends.length).fill(how === "best" ? NaN : 0), counts = new Uint32Array(cells.length);
    for (let r = 0; r < this.rows; r++) {
      if (this.fails[r] !== 0 || across.bins[r] === MISSING || down.bins[r] === MISSING) continue;
      const cell = down.bins[r] * wide + across.bins[r], v = how === "count" ? 1 : value.values[r];
      if (v !== v) continue;
      counts[cell]++;
      if (how !== "best") cells[cell] += v;
      else if (!(cells[cell] * sign <= v * sign)) cells[cell] = v;
    }
    return cells.map((v, i) => (counts[i] === 0 ? NaN : how === "mean" ? v / counts[i] : v));
  }

  // Costs at other prices: the cost at one dollar an hour times the price of the design's device. Returns the designs without.
  reprice(rates) {
    const device = this.columns.get(this.meta.rented);
    let unpriced = 0;
    for (const column of this.columns.values()) {
      const unit = this.columns.get(`at $1 an hour: ${column.name}`);
      if (!unit?.values) continue;
      if (!rates) column.values = column.stored;
      else {
        const usd = Float64Array.from({ length: 256 }, (_, code) => rates[device ? device.levels[code] : Object.keys(rates)[0]] ?? NaN);
        column.values = unit.values.map((one, r) => one * usd[device ? device.codes[r] : 0]);
        unpriced = Math.max(unpriced, column.values.reduce((count, v, r) => count + (v !== v && column.stored[r] === column.stored[r]), 0));
      }
      this.describe(column);
    }
    return unpriced;
  }
}

// ---- fronts -----------------------------------------------------------------------------------

const LARGE = 20000, SAMPLE = 3000, CANDIDATES = 100, STRONG = 12;

// Chomicki et al., "Skyline with presorting" (2003): in the order of the sum of the objectives, a design is compared with
// the front so far, recent dominators first. Of many designs, those that a few members of a sample's front dominate are
// dropped before, as long as that helps. A column is [values, sign].
function skyline(rows, columns) {
  const matrixOf = (some) => {
    const matrix = new Float64Array(some.length * columns.length);
    columns.forEach(([values, sign], j) => { for (let i = 0, at = j; i < some.length; i++, at += columns.length) matrix[at] = sign * values[some[i]] + 0; });
    return matrix;
  };
  for (let before = Infinity; rows.length > LARGE && rows.length < 0.7 * before;) {
    before = rows.length;
    const step = Math.ceil(rows.length / SAMPLE), sample = new Int32Array(Math.ceil(rows.length / step));
    for (let i = 0; i < sample.length; i++) sample[i] = rows[i * step];
    const front = presorted(matrixOf(sample), columns.length).map(({ at }) => sample[at]);
    rows = undominated(rows, columns, covering(front.filter((_, i) => i % Math.ceil(front.length / CANDIDATES) === 0), sample, columns));
  }
  return presorted(matrixOf(rows), columns.length).map(({ at, ties }) => ({ row: rows[at], ties })).sort((a, b) => a.row - b.row);
}

// The few members that together dominate most of a sample, greedily.
function covering(members, sample, columns) {
  let left = sample, chosen = [];
  while (chosen.length < STRONG && left.length) {
    const kept = members.map((member) => undominated(left, columns, [member])), best = kept.reduce((a, some, i) => (some.length < kept[a].length ? i : a), 0);
    if (kept[best].length === left.length) break;
    left = kept[best];
    chosen.push(members[best]);
  }
  return chosen;
}

// The rows that none of a few members dominates.
function undominated(rows, columns, members) {
  const width = columns.length, values = columns.map(([v]) => v), signs = columns.map(([, sign]) => sign);
  const strong = Float64Array.from(members.flatMap((row) => columns.map(([v, sign]) => sign * v[row])));
  const kept = new Int32Array(rows.length);
  let count = 0;
  for (const row of rows) {
    let behind = false;
    for (let m = 0; m < strong.length && !behind; m += width) {
      let better = false, j = 0;
      for (; j < width; j++) {
        const gap = signs[j] * values[j][row] - strong[m + j];
        if (gap < 0) break;
        if (gap > 0) better = true;
      }
      behind = better && j === width;
    }
    if (!behind) kept[count++] = row;
  }
  return kept.subarray(0, count);
}

// The distinct non-dominated rows of a matrix to be minimised, best sum of scaled columns first, each with the number of equal rows.
function presorted(matrix, width) {
  const sums = new Float64Array(matrix.length / width), order = new Int32Array(sums.length);
  for (let j = 0; j < width; j++) {
    let low = Infinity, high = -Infinity;
    for (let at = j; at < matrix.length; at += width) { low = Math.min(low, matrix[at]); high = Math.max(high, matrix[at]); }
    const scale = isFinite(high - low) && high > low ? 1 / (high - low) : 1;
    for (let i = 0; i < sums.length; i++) sums[i] += scale * matrix[i * width + j];
  }
  for (let i = 0; i < order.length; i++) order[i] = i;
  order.sort((a, b) => {
    if (sums[a] !== sums[b]) return sums[a] - sums[b];
    for (let j = 0; j < width; j++) if (matrix[a * width + j] !== matrix[b * width + j]) return matrix[a * width + j] - matrix[b * width + j];
    return a - b;
  });
  const found = [], front = []; // in order, and recent dominators first
  for (const i of order) {
    const last = found[found.length - 1];
    let equal = last !== undefined;
    for (let j = 0; equal && j < width; j++) equal = matrix[last.at * width + j] === matrix[i * width + j];
    if (equal) { last.ties++; continue; }
    let by = -1;
    for (let k = 0; k < front.length && by < 0; k++) {
      const at = front[k] * width;
      let j = 0;
      while (j < width && matrix[at + j] <= matrix[i * width + j]) j++;
      if (j === width) by = k;
    }
    if (by > 0) [front[by], front[by >> 1]] = [front[by >> 1], front[by]];
    if (by >= 0) continue;
    found.push({ at: i, ties: 1 });
    front.push(i);
  }
  return found;
}

// The design of the front nearest to the best value of every objective, each scaled to 0..1, logarithmically if positive.
function kneeOf(front, columns) {
  const distances = new Float64Array(front.length);
  for (const [values, sign] of columns) {
    const log = front.every(({ row }) => values[row] > 0);
    const at = front.map(({ row }) => sign * (log ? Math.log(values[row]) : values[row]));
    const low = Math.min(...at), width = Math.max(...at) - low || 1;
    at.forEach((v, i) => { distances[i] += ((v - low) / width) ** 2; });
  }
  return distances.indexOf(Math.min(...distances));
}
