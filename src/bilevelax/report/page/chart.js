// Curves and bars as SVG. Text only ever enters the page as text nodes.

function node(kind, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function coloured(made, colour) {
  made.style.setProperty("--c", `var(--c${colour % 8})`);
  if (made.classList.contains("line") && colour >= 8) made.style.strokeDasharray = ["6 3", "2 3", "9 3 2 3"][(colour >> 3) % 3];
  return made;
}

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(Number.isInteger(Math.log10(size)) ? 0 : 3).replace("e+", "e").replace(/\.?0+e/, "e");
  return String(+value.toPrecision(4));
}

function linearTicks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step + 0); // never -0
  return ticks;
}

function logTicks(low, high, wanted) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), stride = Math.max(1, Math.ceil((last - first) / wanted));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = first; e <= last; e += stride) for (const m of factors) ticks.push(m * 10 ** e);
  return ticks.filter(tick => tick >= low * 0.999 && tick <= high * 1.001);
}

// A scale maps [low, high] to [start, end] on the screen.
function scale(values, log, start, end, wanted) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) [low, high] = log ? [1, 10] : [0, 1];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) / 2 || 1), high + (Math.abs(high) / 2 || 1)];
  const f = log ? Math.log10 : v => v;
  const at = value => start + (f(value) - f(low)) / (f(high) - f(low)) * (end - start);
  return { at, low, high, ticks: (log ? logTicks : linearTicks)(low, high, wanted) };
}

function drawAxes(svg, box, x, y, chart) {
  for (const tick of y.ticks) {
    const at = y.at(tick);
    svg.append(node("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
    svg.append(node("text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, (chart.sayY || short)(tick)));
  }
  for (const tick of x.ticks) {
    const at = x.at(tick);
    svg.append(node("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
    const anchor = at > box.right - 12 ? "end" : "middle";
    svg.append(node("text", { x: anchor === "end" ? box.right + 14 : at, y: box.bottom + 18, "text-anchor": anchor }, (chart.tickX || short)(tick)));
  }
  svg.append(node("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  svg.append(node("text", { class: "title", x: 4, y: 14 }, clipped(chart.yLabel, box.right)));
  svg.append(node("text", { x: box.right, y: box.bottom + 36, "text-anchor": "end" }, chart.xLabel));
}

function clipped(text, width) {
  const most = Math.max(8, Math.floor(width / 8));
  return [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;
}

function frame(figure, chart, height) {
  const width = Math.max(240, figure.clientWidth);
  const id = (figure.id || "chart-" + chart.key) + "-text";
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-labelledby": `${id}-title ${id}-desc` });
  svg.append(node("title", { id: `${id}-title` }, `${chart.yLabel} against ${chart.xLabel}`), node("desc", { id: `${id}-desc` }, chart.description));
  const readout = document.createElement("figcaption");
  readout.className = "readout";
  readout.setAttribute("aria-live", "polite");
  figure.replaceChildren(svg, readout);
  return { svg, readout, box: { left: 62, right: width - 16, top: 26, bottom: height - 44 } };
}

// chart: {key, xLabel, yLabel, xLog, yLog, description, series: [{name, colour, points: [[x, y, low, high]]}]}, and where
// numbers are not plain ones {ticksX(low, high, wanted), tickX, sayX, sayY}. A series may have {dots: every point is marked,
// kinds: classes of its dots, bandOnly: no line}.
function drawCurves(figure, chart) {
  const { svg, readout, box } = frame(figure, chart, figure.classList.contains("small") ? 260 : 380);
  const visible = (value, log) => value !== null && (!log || value > 0);
  const series = chart.series.map(s => ({ ...s, points: s.points.filter(p => visible(p[0], chart.xLog) && visible(p[1], chart.yLog)) }));
  const points = series.flatMap(s => s.points);
  const x = scale(points.map(p => p[0]), chart.xLog, box.left, box.right, Math.max(3, Math.floor((box.right - box.left) / 90)));
  const heights = points.flatMap(p => [p[1], p[2], p[3]]).filter(v => v !== undefined && visible(v, chart.yLog));
  if (chart.fromZero) heights.push(0);
  const y = scale(heights, chart.yLog, box.bottom, box.top, 5);
  if (chart.ticksX) x.ticks = chart.ticksX(x.low, x.high, Math.max(3, Math.floor((box.right - box.left) / 90)));
  drawAxes(svg, box, x, y, chart);
  const place = (px, py) => `${x.at(px).toFixed(1)},${y.at(Math.max(py, y.low)).toFixed(1)}`;
  for (const s of series) {
    const banded = s.points.filter(p => p[2] !== undefined);
    if (banded.length > 1) {
      const outline = [...banded.map(p => place(p[0], p[3])), ...banded.toReversed().map(p => place(p[0], p[2]))];
      svg.append(coloured(node("path", { class: "band", d: `M${outline.join("L")}Z` }), s.colour));
    }
  }
  for (const s of series) {
    if (s.points.length > 1 && !s.bandOnly) svg.append(coloured(node("path", { class: "line", d: "M" + s.points.map(p => place(p[0], p[1])).join("L") }), s.colour));
    const marked = !s.bandOnly && (s.dots || s.points.length <= 12), radius = s.points.length > 120 ? 2 : 3;
    if (marked) s.points.forEach((p, i) => svg.append(coloured(node("circle", { class: s.kinds ? s.kinds[i] : "dot", r: radius, cx: x.at(p[0]), cy: y.at(p[1]) }), s.colour)));
  }
  const hidden = chart.series.reduce((n, s) => n + s.points.length, 0) - points.length;
  const resting = points.length === 0 ? "Nothing to draw on these axes." : hidden ? `${hidden} points that are missing or not positive are left out of a logarithmic axis.` : "";
  readable(svg, readout, box, x, y, { ...chart, series }, resting);
}

// Pointing and the arrow keys show the values at one place.
function readable(svg, readout, box, x, y, chart, resting) {
  const series = chart.series, sayX = chart.sayX || (value => `At ${short(value)}`), sayY = chart.sayY || short;
  const places = [...new Set(series.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b);
  const cursor = node("g", {});
  let chosen = -1;
  svg.append(cursor);
  readout.textContent = resting;
  const show = index => {
    chosen = Math.min(Math.max(index, 0), places.length - 1);
    const at = places[chosen], near = p => Math.abs(x.at(p[0]) - x.at(at));
    cursor.replaceChildren(node("line", { class: "cursor", x1: x.at(at), x2: x.at(at), y1: box.top, y2: box.bottom }));
    const told = [];
    for (const s of series.filter(s => s.points.length)) {
      const p = s.points.reduce((best, each) => near(each) < near(best) ? each : best);
      if (!s.bandOnly) cursor.append(coloured(node("circle", { class: "dot", r: 4, cx: x.at(p[0]), cy: y.at(p[1]) }), s.colour));
      const range = p[2] === undefined ? "" : `${sayY(p[2])} to ${sayY(p[3])}`;
      told.push(`${s.name}: ` + (s.bandOnly ? range : sayY(p[1]) + (range && ` (${range})`)));
    }
    readout.textContent = `${sayX(at)}: ${told.join("; ")}`;
  };
  const rest = () => { chosen = -1; cursor.replaceChildren(); readout.textContent = resting; };
  if (!places.length) return;
  svg.addEventListener("pointermove", event => {
    const scaled = event.offsetX * svg.viewBox.baseVal.width / svg.clientWidth;
    show(places.reduce((best, p, i) => Math.abs(x.at(p) - scaled) < Math.abs(x.at(places[best]) - scaled) ? i : best, 0));
  });
  svg.addEventListener("pointerleave", rest);
  svg.addEventListener("blur", rest);
  svg.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(chosen < 0 ? (step < 0 && step > -Infinity ? places.length - 1 : step === Infinity ? places.length - 1 : 0) : chosen + step);
  });
}

// chart: {key, xLabel, yLabel, description, places: [label], series: [{name, colour, shares: [0..1]}]}
function drawBars(figure, chart) {
  const { svg, readout, box } = frame(figure, chart, 260);
  const y = scale([0, ...chart.series.flatMap(s => s.shares)], false, box.bottom, box.top, 5);
  const wide = (box.right - box.left) / chart.places.length, bar = Math.min(28, wide * 0.8 / chart.series.length);
  const middle = i => box.left + wide * (i + 0.5);
  drawAxes(svg, box, { at: middle, ticks: [] }, y, chart);
  chart.places.forEach((label, i) => svg.append(node("text", { x: middle(i), y: box.bottom + 18, "text-anchor": "middle" }, label)));
  chart.series.forEach((s, j) => s.shares.forEach((share, i) => {
    const left = middle(i) + (j - chart.series.length / 2) * bar;
    const made = coloured(node("rect", { class: "bar", x: left, width: Math.max(1, bar - 1), y: y.at(share), height: box.bottom - y.at(share) }), s.colour);
    made.append(node("title", {}, `${s.name}, level ${chart.places[i]}: ${short(100 * share)} %`));
    svg.append(made);
  }));
  readout.remove();
}
