// The pictures of a report: the front, every axis at once, along one axis, by two axes, quantiles.

const NARROW = 560; // CSS pixels below which a picture is drawn for a phone
const targets = new Map(); // canvas to the circles on it: [x, y, row]

// Whether a row is to be seen: inside every selected range, and meeting the conditions unless asked.
function shows(row) {
  return selected[row] && (byId("front-all").checked || valueAt(columns.get("qualifies"), row));
}

function areaOf(width, height, { right = 20, top = 30 } = {}) {
  const left = width < NARROW ? 60 : 78;
  return { x: left, y: top, w: width - left - right, h: height - top - 48 };
}

// ---- the front ----------------------------------------------------------------------------------

let dots = { px: new Float32Array(0), py: new Float32Array(0), area: null };

function drawFront() {
  const { pen, width, height } = prepare("front-canvas");
  const [x, y] = ["front-x", "front-y"].map((id) => zoomed(picked(id), shows)), c = picked("front-c");
  const beside = c && width >= NARROW, above = c && !beside;
  const area = areaOf(width, height, { right: beside ? 104 : 16, top: above ? 74 : 30 });
  frame(pen, area, x, y);
  const px = new Float32Array(meta.rows), py = new Float32Array(meta.rows);
  for (let r = 0; r < meta.rows; r++) {
    px[r] = shows(r) ? area.x + placeAt(x, r) * area.w : NaN;
    py[r] = area.y + (1 - placeAt(y, r)) * area.h;
  }
  dots = { px, py, area, x, y };
  pen.fillStyle = state.colors.cloud;
  for (const [alpha, good] of [[0.14, false], [0.4, true]]) {
    pen.globalAlpha = alpha;
    for (let r = meta.front; r < meta.rows; r++)
      if (valueAt(columns.get("qualifies"), r) === good && px[r] === px[r]) pen.fillRect(px[r] - 1.5, py[r] - 1.5, 3, 3);
  }
  pen.globalAlpha = 1;
  for (let r = 0; r < meta.front; r++) {
    if (px[r] === px[r]) dot(pen, px[r], py[r], 4.2, c ? ramp(placeAt(c, r)) : state.colors.front, state.colors.paper);
  }
  if (px[meta.chosen] === px[meta.chosen]) star(pen, px[meta.chosen], py[meta.chosen], 10);
  if (state.chosen !== meta.chosen) ring(pen, px[state.chosen], py[state.chosen], state.colors.knee);
  if (state.hover >= 0) ring(pen, px[state.hover], py[state.hover], state.colors.ink);
  if (beside) legend(pen, c, area.x + area.w + 18, area.y + 16, area.h - 40);
  if (above) legendAbove(pen, c, area.x, 26, area.w);
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
  for (const [tick, text] of marks(column, 6)) pen.fillText(text, x + 17, y + (1 - placeOf(column, tick)) * h);
  pen.fillStyle = state.colors.ink;
  pen.textAlign = "right";
  pen.textBaseline = "top";
  pen.fillText(`colour: ${labelOf(column)}`, x + 84, 6);
}

function legendAbove(pen, column, x, y, w) {
  for (let i = 0; i < w; i++) {
    pen.fillStyle = ramp(i / w);
    pen.fillRect(x + i, y, 1.5, 9);
  }
  pen.fillStyle = state.colors.soft;
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const [tick, text] of marks(column, 4)) pen.fillText(text, x + placeOf(column, tick) * w, y + 11);
  pen.fillStyle = state.colors.ink;
  pen.textAlign = "right";
  pen.fillText(`colour: ${labelOf(column)}`, x + w, y + 26);
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
  return [...new Set([...meta.axes, ...Object.keys(meta.objectives)])].map((n) => columns.get(n)).filter(Boolean);
}

const LEAST_GAP = 92; // pixels between axes; on a phone the picture is wider than the screen and scrolls

function drawParallel() {
  byId("parallel-canvas").style.width = `max(100%, ${lanes().length * LEAST_GAP}px)`;
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
  for (let r = meta.front; r < meta.rows; r += every) if (shows(r)) path(r);
  pen.strokeStyle = state.colors.front;
  pen.globalAlpha = 0.35;
  for (let r = 0; r < meta.front; r++) if (shows(r)) path(r);
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
    pen.fillText(labelOf(column), Math.min(width - 4, Math.max(4, lane(i) + (i === 0 ? -left + 6 : i === shown.length - 1 ? left - 6 : 0))), i % 2 ? 18 : 4);
    pen.textAlign = i === shown.length - 1 ? "right" : "left";
    pen.textBaseline = "middle";
    for (const [tick, text] of marks(column, 6)) {
      const py = top + (1 - placeOf(column, tick)) * h, at = lane(i) + (i === shown.length - 1 ? -5 : 5);
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
  const area = areaOf(width, height), circles = [];
  const shown = [state.chosen];
  for (let r = 0; r < meta.front && shown.length < 6; r += Math.max(1, Math.floor(meta.front / 5))) if (r !== state.chosen) shown.push(r);
  const lines = shown.reverse().map((row) => alongAxis(axis, row)), drawn = new Set(lines.flat());
  const [x, y] = ["curve-x", "curve-y"].map((id) => zoomed(picked(id), (r) => drawn.has(r)));
  frame(pen, area, x, y);
  lines.forEach((line, i) => {
    const chosen = shown[i] === state.chosen, color = chosen ? state.colors.knee : LINES[i % LINES.length];
    const at = line.map((r) => [area.x + placeAt(x, r) * area.w, area.y + (1 - placeAt(y, r)) * area.h, r]).filter((p) => p[0] === p[0] && p[1] === p[1]);
    circles.push(...at);
    pen.globalAlpha = chosen ? 1 : 0.55;
    stroke(pen, color, at, chosen ? 2.5 : 1.3);
    for (const [px, py] of at) dot(pen, px, py, chosen ? 3.5 : 2.2, color);
  });
  pen.globalAlpha = 1;
  targets.set("curve-canvas", circles);
  byId("curve-note").textContent = `The chosen design (thick) and others of the front, with only ${labelOf(columns.get(axis))} changed.`;
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
  for (let r = 0; r < meta.rows; r++) {
    const i = across.of(r), j = up.of(r), value = valueAt(z, r);
    if (!shows(r) || i < 0 || j < 0 || value === null) continue;
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
  pen.fillText(labelOf(x), area.x + area.w, area.y + area.h + 36);
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText(`↑ ${labelOf(y)}    cells: best ${labelOf(z)}, light is better`, 8, 6);
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
  const x = { name: byId("cdf-z").value, label: byId("cdf-z").selectedOptions[0].textContent, numeric: true, log: hi > 5 * lo, unit, lo: hi > 5 * lo ? Math.log(lo) : lo, hi: hi > 5 * lo ? Math.log(hi) : hi };
  const y = { name: "share of requests", numeric: true, log: false, unit: "", lo: 0, hi: 1 };
  const area = areaOf(width, height, { right: 26 });
  const circles = [];
  frame(pen, area, x, y);
  rows.reverse().forEach((row) => {
    const at = points.map(([share, name]) => [valueAt(columns.get(name), row), share]).filter(([v]) => v > 0);
    const color = row === state.chosen ? state.colors.knee : state.colors.front;
    const path = at.map(([v, s]) => [area.x + placeOf(x, v) * area.w, area.y + (1 - s) * area.h]);
    stroke(pen, color, path, 2);
    for (const [px, py] of path) dot(pen, px, py, 3.5, color);
    circles.push(...path.map(([px, py]) => [px, py, row]));
  });
  targets.set("cdf-canvas", circles);
  byId("cdf-note").textContent = "Stored quantiles, joined by straight lines: the chosen design, and the one under the pointer.";
}

