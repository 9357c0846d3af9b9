"use strict";
// Numbers as people write and read them, with scaled units.

const byId = (id) => document.getElementById(id);

const SCALES = {
  s: [[86400, "d"], [3600, "h"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  B: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  J: [
    [1e12, "TJ"], [1e9, "GJ"], [1e6, "MJ"], [1e3, "kJ"],
    [1, "J"], [1e-3, "mJ"], [1e-6, "µJ"], [1e-9, "nJ"], [1e-12, "pJ"],
  ],
  flops: [[1e15, "PFLOP"], [1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1, "FLOP"]],
};
SCALES.bytes = SCALES.B;
SCALES.FLOP = SCALES.flops;

function digits(value, precision = 3) {
  const size = Math.abs(value);
  if (size >= 1000) return (Math.round(value * 10 ** Math.max(0, precision - 4)) / 10 ** Math.max(0, precision - 4)).toLocaleString("en");
  if (size > 0 && size < 1e-4) return value.toExponential(precision - 1);
  return String(Number(value.toPrecision(precision)));
}

function human(value, unit, precision = 3) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  const perSecond = unit.endsWith("/s");
  const scale = SCALES[perSecond ? unit.slice(0, -2) : unit];
  if (scale) {
    const [size, name] = scale.find(([s]) => Math.abs(value) >= s) || scale[scale.length - 1];
    return `${digits(value / size, precision)} ${name}${perSecond ? "/s" : ""}`;
  }
  if (unit === "$" || unit === "USD") return `$${digits(value, precision)}`;
  if (unit === "1/s") return `${digits(value, precision)}/s`;
  return `${digits(value, precision)} ${unit}`.trim();
}


// The number in a text in base units; NaN if the text is no number.
function parsed(text, unit) {
  const match = /^\s*\$?\s*([-+]?[\d.,]+(?:e[-+]?\d+)?)\s*([a-zµ]*)(\/s)?\s*$/i.exec(text);
  if (!match) return NaN;
  const scale = [...(SCALES[unit.replace("/s", "")] ?? []), [1e3, "k"], [1e6, "M"], [1e9, "G"], [1, unit], [1, ""]];
  const size = scale.find(([, name]) => name === match[2]) ?? scale.find(([, name]) => name.toLowerCase() === match[2].toLowerCase());
  return size ? Number(match[1].replaceAll(",", "")) * size[0] : NaN;
}
