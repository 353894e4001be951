(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const label = name => data.labels[name] || name;
  const state = { metric: data.metrics[0], axis: "t", calls: data.counts.includes("grad_g") ? "grad_g" : data.counts[0], hidden: new Set(), xLog: false, yLog: false };

  function series(metric, axis) {
    return data.groups.map((group, colour) => ({ group, colour, name: group.name })).filter(s => !state.hidden.has(s.colour) && s.group.mean[metric] && s.group.mean[axis]).map(s => {
      const { mean, low, high } = s.group, points = [];
      mean[metric].forEach((value, i) => {
        if (value === null) return;
        const band = low[metric] ? [low[metric][i], high[metric][i]] : [];
        points.push([mean[axis][i], value, ...band]);
      });
      return { ...s, points };
    });
  }

  // A logarithmic axis where values are positive and differ much.
  function wantsLog(metric) {
    const values = data.groups.flatMap(group => (group.mean[metric] || []).filter(v => v !== null));
    const low = Math.min(...values);
    return low > 0 && Math.max(...values) / low > 10;
  }

  const axis = () => state.axis === "calls" ? state.calls : state.axis;

  function curves(metric, shown, yLog, xLog, where) {
    const chart = { key: metric, xLabel: label(where), yLabel: label(metric), xLog, yLog, series: shown };
    chart.description = `${shown.length} lines: ` + shown.map(s => s.name + (s.points.length ? `, from ${short(s.points[0][1])} to ${short(s.points.at(-1)[1])}` : ", no values")).join("; ");
    return chart;
  }

  function draw() {
    if (!state.metric) {
      find("main-chart").replaceChildren(make("p", "These runs recorded no metrics: give minimize(metrics=...).", { class: "hint" }));
      find("values").hidden = true;
    } else {
      drawCurves(find("main-chart"), curves(state.metric, series(state.metric, axis()), state.yLog, state.xLog, axis()));
      if (find("values").open) values();
    }
    for (const figure of all("[data-metric]").filter(f => f.tagName === "FIGURE")) {
      const metric = figure.dataset.metric;
      drawCurves(figure, curves(metric, series(metric, "t"), wantsLog(metric), false, "t"));
    }
    const levels = [...new Set(data.groups.flatMap(group => Object.keys(group.levels)))].map(Number).sort((a, b) => a - b);
    if (levels.length) drawLevels(levels);
  }

  function drawLevels(levels) {
    const shown = data.groups.map((group, colour) => ({ name: group.name, colour, levels: group.levels })).filter(s => Object.keys(s.levels).length && !state.hidden.has(s.colour)).map(s => {
      const total = Object.values(s.levels).reduce((a, b) => a + b, 0);
      return { ...s, shares: levels.map(level => (s.levels[level] || 0) / total) };
    });
    drawBars(find("level-chart"), { key: "levels", xLabel: "level", yLabel: "share of estimates", description: "The table below holds the numbers.", places: levels.map(String), series: shown });
  }

  function values() {
    const shown = series(state.metric, axis());
    const table = make("table", "");
    const head = make("tr", "");
    head.append(...["line", label(axis()), label(state.metric), "lowest", "highest"].map(text => make("th", text, { scope: "col" })));
    const body = make("tbody", "");
    for (const s of shown) for (const p of s.points) {
      const row = make("tr", "");
      row.append(make("th", s.name, { scope: "row" }), ...[0, 1, 2, 3].map(i => make("td", short(p[i]), { class: "number" })));
      body.append(row);
    }
    const top = make("thead", "");
    top.append(head);
    table.append(make("caption", `${label(state.metric)} against ${label(axis())}`), top, body);
    find("values").querySelector(".scroll").replaceChildren(table);
  }

  function chooseMetric(name, buttons, button) {
    state.metric = name;
    state.yLog = name !== undefined && wantsLog(name);
    press(document.querySelector('[data-log="y"]'), state.yLog);
    if (button) choose(buttons, button);
    draw();
  }

  function controls() {
    const metrics = data.metrics.map(name => make("button", label(name), { type: "button", "aria-pressed": "false", "data-metric": name }));
    find("metrics").append(...metrics);
    find("metrics").hidden = metrics.length < 2;
    metrics.forEach((button, i) => button.addEventListener("click", () => chooseMetric(data.metrics[i], metrics, button)));
    const axes = all("[data-axis]");
    for (const button of axes) button.addEventListener("click", () => {
      state.axis = button.dataset.axis;
      choose(axes, button);
      document.querySelector("label.calls").hidden = state.axis !== "calls";
      draw();
    });
    document.querySelector('[data-axis="calls"]').hidden = !data.counts.length;
    find("calls").append(...data.counts.map(name => make("option", label(name), { value: name })));
    find("calls").value = state.calls;
    find("calls").addEventListener("change", event => { state.calls = event.target.value; draw(); });
    for (const button of all("[data-log]")) button.addEventListener("click", () => {
      state[button.dataset.log + "Log"] = !pressed(button);
      press(button, !pressed(button));
      draw();
    });
    find("values").addEventListener("toggle", () => { if (find("values").open) values(); });
    if (metrics.length) chooseMetric(data.metrics[0], metrics, metrics[0]);
    else draw();
  }

  function legend() {
    data.groups.forEach((group, colour) => {
      const button = make("button", "", { type: "button", "aria-pressed": "true", title: group.name });
      const swatch = node("svg", { width: 26, height: 10, "aria-hidden": "true" }, coloured(node("path", { class: "line", d: "M0 5H26" }), colour));
      button.append(swatch, make("span", group.name + (group.runs > 1 ? ` (${group.runs} seeds)` : "")));
      button.addEventListener("click", () => {
        press(button, !pressed(button));
        if (pressed(button)) state.hidden.delete(colour); else state.hidden.add(colour);
        draw();
      });
      find("legend").append(button);
    });
  }

  for (const button of all("[data-only]")) button.addEventListener("click", () => {
    press(button, !pressed(button));
    find(button.dataset.only).querySelector("table").classList.toggle("only-differences", pressed(button));
  });
  all("table.sortable").forEach(sortable);
  theme();
  legend();
  controls();
  redrawn(draw);
})();
