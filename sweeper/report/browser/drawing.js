// How a report draws on its canvases: colours, axes with their ticks, dots and lines.

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
  const width = canvas.clientWidth, height = canvas.clientHeight; // without the border, as pointers count
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
  for (const [tick, text] of marks(x, Math.max(2, Math.floor(area.w / 80)))) {
    const px = area.x + placeOf(x, tick) * area.w;
    if (grid) stroke(pen, line, [[px, area.y], [px, area.y + area.h]], 0.5);
    pen.fillStyle = soft;
    pen.fillText(text, px, area.y + area.h + 6);
  }
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const [tick, text] of marks(y, Math.max(3, Math.floor(area.h / 34)))) {
    const py = area.y + (1 - placeOf(y, tick)) * area.h;
    if (grid) stroke(pen, line, [[area.x, py], [area.x + area.w, py]], 0.5);
    pen.fillStyle = soft;
    pen.fillText(text, area.x - 7, py);
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
  return labelOf(column) + better;
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

const labelOf = (column) => column.label || column.name;
const picked = (id) => columns.get(byId(id).value);

