(() => {
  const data = JSON.parse(find("data").textContent), orders = data.orders, errors = data.errors;
  const INK = 6, state = { product: 0, last: 0 };

  // Where several rows have one date, their sums; what is likely of a sum is not known then.
  function points(product) {
    const places = new Map();
    orders.x.forEach((x, i) => places.set(x, [...(places.get(x) || []), i]));
    const sum = (values, rows) => rows.reduce((total, i) => total + values[i], 0);
    return [...places].map(([x, rows]) => ({
      x, demand: sum(product.demand, rows), order: sum(product.orders, rows),
      low: product.low && rows.length === 1 ? product.low[rows[0]] : undefined, high: product.high && rows.length === 1 ? product.high[rows[0]] : undefined,
    })).sort((a, b) => a.x - b.x).slice(-state.last);
  }

  function draw() {
    const product = orders.products[state.product], shown = points(product), short = shown.filter(p => p.demand > p.order).length;
    const series = [
      { name: "order", colour: orders.colour, points: shown.map(p => [p.x, p.order]) },
      { name: "demand", colour: INK, dots: true, thin: true, kinds: shown.map(p => p.demand > p.order ? "missed" : "dot"), points: shown.map(p => [p.x, p.demand]) },
    ];
    if (shown.every(p => p.low !== undefined)) series.unshift({ name: "likely demand", colour: orders.colour, bandOnly: true, points: shown.map(p => [p.x, p.low, p.low, p.high]) });
    const low = Math.min(...shown.map(p => p.x)), high = Math.max(...shown.map(p => p.x)), values = shown.flatMap(p => [p.demand, p.order]);
    const chart = {
      key: "orders", xLabel: orders.dated ? "date" : "row", yLabel: `units, ${product.name}`, sayY: amount, series, fromZero: Math.min(...values) < Math.max(...values) / 2,
      description: `Demand was above the order on ${short} of ${shown.length} ${orders.word}s.`,
    };
    if (orders.dated) Object.assign(chart, { ticksX: dateTicks, tickX: tickDate(low, high), sayX: sayDate });
    else chart.sayX = value => `Row ${amount(value)}`;
    drawCurves(find("orders-chart"), chart);
    find("short").textContent = chart.description;
    if (errors.lines.length) drawErrors();
  }

  function drawErrors() {
    const series = errors.lines.map(line => ({ name: line.name, colour: line.colour, points: errors.sizes.map((size, i) => [size, line.costs[i]]) }));
    drawCurves(find("errors-chart"), {
      key: "errors", xLabel: "error, in standard deviations", yLabel: `cost of a ${errors.word}`, sayY: amount, tickX: amount, ticksX: () => errors.sizes, sayX: size => size ? `Off by ${amount(size)}` : "As it was", series,
      description: series.map(s => `${s.name} from ${amount(s.points[0][1])} to ${amount(s.points.at(-1)[1])}`).join("; "),
    });
  }

  function swatch(colour, kind) {
    const drawn = { line: node("path", { class: "line", d: "M0 5H26" }), band: node("rect", { class: "band", width: 26, height: 10 }), dot: node("circle", { class: "dot", r: 3, cx: 13, cy: 5 }), missed: node("circle", { class: "missed", r: 3, cx: 13, cy: 5 }) }[kind];
    return node("svg", { width: 26, height: 10, "aria-hidden": "true" }, coloured(drawn, colour));
  }

  function keys(where, entries) {
    for (const [name, colour, kind] of entries) {
      const entry = make("span", "");
      entry.append(swatch(colour, kind), make("span", name));
      find(where).append(entry);
    }
  }

  function controls() {
    find("product").append(...orders.products.map((product, i) => make("option", product.name, { value: i })));
    find("product").parentElement.hidden = orders.products.length < 2;
    find("product").addEventListener("change", event => { state.product = Number(event.target.value); draw(); });
    const places = new Set(orders.x).size, spans = all("[data-last]");
    for (const button of spans) {
      button.hidden = Number(button.dataset.last) >= places;
      button.addEventListener("click", () => { state.last = Number(button.dataset.last); choose(spans, button); draw(); });
    }
    spans[0].parentElement.hidden = spans.filter(button => !button.hidden).length < 2;
    const start = innerWidth < 640 ? 1 : 2, chosen = spans.slice(start).find(button => !button.hidden) || spans[0];
    state.last = Number(chosen.dataset.last);
    choose(spans, chosen);
  }

  theme();
  all("table.sortable").forEach(sortable);
  controls();
  keys("orders-keys", [["order of this rule", orders.colour, "line"], ...(orders.products[0].low ? [["likely demand: 9 in 10", orders.colour, "band"]] : []), ["demand that was met", INK, "dot"], ["demand above the order", INK, "missed"]]);
  if (errors.lines.length) keys("errors-keys", errors.lines.map(line => [line.name, line.colour, "line"]));
  draw();
  redrawn(draw);
})();
