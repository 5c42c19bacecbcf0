// The chart: one point per setting, the Pareto front, and the details of the selected point.

(() => {
  const { data, make, draw, mark, title, choices } = report;
  const entries = data.comparison.entries;
  const recommended = data.comparison.recommendation.entry;
  const svg = document.getElementById("plot");
  const has = (field) => entries.some((entry) => entry[field] !== null);
  const plain = (value) => `${Number(value.toFixed(2))}`;
  const percent = (value) => `${plain(value)} %`;

  // "sign" is the better direction; the better end of an axis is always up or right
  const AXES = {
    agreement: { text: "agreement", name: `${data.comparison.data.agreement_of || "decisions"} unchanged from the unreduced model`, sign: 1, tick: percent },
    top1: { text: "accuracy", name: "top-1 accuracy", sign: 1, tick: percent },
    images_per_second: { text: "images per second", name: "images per second", sign: 1, tick: plain },
    mac_ratio: { text: "MACs", name: "share of the MACs (fewer to the right)", sign: -1, tick: (v) => percent(100 * v) },
  };
  const ups = ["agreement", "top1"].filter(has);
  const rights = ["images_per_second", "mac_ratio"].filter(has);
  const state = { x: rights[0], y: ups[0], zoom: squeezed(ups[0]) ? "near" : "all", hidden: new Set(), points: [] };

  const layers = {};
  for (const name of ["axes", "lines", "points", "names"]) {
    const role = name === "points" ? { role: "listbox", "aria-label": "Settings" } : { "aria-hidden": "true" };
    layers[name] = draw("g", role);
    svg.append(layers[name]);
  }
  const series = new Map();
  const points = entries.map(makePoint);
  const frontLine = draw("path", { class: "front" });
  layers.lines.append(frontLine); // above the lines of single methods

  function makePoint(entry, index) {
    const use = draw("use", { href: `#mark-${entry.kind}`, x: -8, y: -8, width: 16, height: 16 });
    const halo = draw("circle", { class: "halo", r: 12 });
    const attributes = { class: `point kind-${entry.kind}`, role: "option", "aria-selected": "false", tabindex: -1, "data-entry": index };
    const point = draw("g", attributes, halo, use);
    point.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && pick(index));
    point.addEventListener("pointerleave", () => pick(report.chosen.entry)); // a click selects, hovering does not
    point.addEventListener("click", () => report.choose(index));
    point.addEventListener("focus", () => report.choose(index));
    point.addEventListener("keydown", (event) => step(event, index));
    layers.points.append(point);
    if (!series.has(entry.label)) {
      series.set(entry.label, draw("path", { class: `series kind-${entry.kind}` }));
      layers.lines.append(series.get(entry.label));
    }
    return point;
  }

  /** Arrow keys move between points in the order of the horizontal axis. */
  function step(event, index) {
    const order = shown().sort((a, b) => AXES[state.x].sign * (entries[a][state.x] - entries[b][state.x]) || a - b);
    const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -order.length, End: order.length };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const place = Math.max(0, Math.min(order.length - 1, order.indexOf(index) + moves[event.key]));
    points[order[place]].focus();
  }

  /** Whether a few settings far below would leave the others less than half of the height. */
  function squeezed(axis) {
    const values = entries.map((entry) => entry[axis]).filter((value) => value !== null);
    const middle = (Math.min(...values) + Math.max(...values)) / 2;
    return values.filter((value) => value < middle).length < 0.05 * values.length;
  }

  function known(index) {
    const entry = entries[index];
    return entry[state.x] !== null && entry[state.y] !== null && !state.hidden.has(entry.label);
  }

  function shown() {
    const [low] = domain(state.y);
    return entries.map((_, index) => index).filter((index) => known(index) && entries[index][state.y] >= low - 1e-9);
  }

  /** The Pareto front on the shown axes: settings that no other matches on both axes and beats on one. */
  function front() {
    const all = entries.map((_, index) => index).filter(known);
    // budgets are met only to a few thousandths, so smaller differences mean nothing
    const rounded = (axis, number) => (axis === "mac_ratio" ? Math.round(100 * number) : number);
    const value = (index, axis) => AXES[axis].sign * rounded(axis, entries[index][axis]);
    const beats = (a, b) =>
      [state.x, state.y].every((axis) => value(a, axis) >= value(b, axis)) &&
      [state.x, state.y].some((axis) => value(a, axis) > value(b, axis));
    return all.filter((b) => !all.some((a) => beats(a, b))).sort((a, b) => value(a, state.x) - value(b, state.x));
  }

  /** The range of an axis; the zoomed vertical axis leaves out what is far below the front. */
  function domain(axis) {
    const all = entries.map((_, index) => index).filter(known);
    const near = state.zoom === "near" && axis === state.y ? front() : all;
    const values = near.map((index) => entries[index][axis]);
    if (!values.length) return [0, 1];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = (high - low || Math.abs(high) || 1) * 0.08;
    // a level front stays at the top: nothing is above 100 %
    return [Math.max(0, low - room), high + (axis === state.y && low === high ? 0.08 * room : room)];
  }

  function ticks([low, high], number) {
    const raw = (high - low) / number;
    const power = 10 ** Math.floor(Math.log10(raw));
    const stride = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const found = [];
    for (let k = Math.ceil(low / stride - 1e-9); k * stride <= high + 1e-9; k++) found.push(k * stride);
    return found;
  }

  function redraw() {
    const { width, height } = svg.getBoundingClientRect();
    if (!width) return;
    const box = { left: 52, right: width - 14, top: 34, bottom: height - 48 };
    const [xs, ys] = [domain(state.x), domain(state.y)];
    const across = (v) => (AXES[state.x].sign > 0 ? (v - xs[0]) / (xs[1] - xs[0]) : (xs[1] - v) / (xs[1] - xs[0]));
    const x = (v) => box.left + across(v) * (box.right - box.left);
    const y = (v) => box.bottom - ((v - ys[0]) / (ys[1] - ys[0])) * (box.bottom - box.top);
    const place = (index) => [x(entries[index][state.x]), y(entries[index][state.y])];
    drawAxes(box, xs, ys, x, y, width);
    const visible = shown();
    points.forEach((point, index) => {
      point.style.display = visible.includes(index) ? "" : "none";
      if (visible.includes(index)) point.style.transform = `translate(${place(index).map((v) => `${v.toFixed(1)}px`)})`;
      point.setAttribute("aria-label", spoken(index, front().includes(index), index === recommended));
    });
    drawLines(place, visible);
    drawNames(box, place, visible);
    settleTabStop(visible);
    leftOut(visible);
  }

  function drawAxes(box, xs, ys, x, y, width) {
    const parts = [];
    for (const v of ticks(ys, 5).filter((v) => state.y === "mac_ratio" || v <= 100 + 1e-9)) {
      parts.push(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y(v), y2: y(v) }));
      parts.push(draw("text", { x: box.left - 8, y: y(v) + 4, "text-anchor": "end" }, AXES[state.y].tick(v)));
    }
    for (const v of ticks(xs, width < 480 ? 4 : 7)) {
      parts.push(draw("text", { x: x(v), y: box.bottom + 20, "text-anchor": "middle" }, AXES[state.x].tick(v)));
    }
    parts.push(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    parts.push(...drawAsked(box, xs, ys, x, y));
    const end = { class: "x-name", x: box.right, y: box.bottom + 42, "text-anchor": "end" };
    parts.push(draw("text", end, AXES[state.x].name));
    parts.push(draw("text", { class: "y-name", x: 0, y: 12 }, AXES[state.y].name));
    layers.axes.replaceChildren(...parts);
  }

  /** What the user asked for, as dashed lines where it lies inside the chart. */
  function drawAsked(box, xs, ys, x, y) {
    const asked = data.comparison.options.asked || {};
    const rate = entries[0].images_per_second;
    const least = { agreement: 100 * asked.agreement };
    if (asked.latency_ms) least.images_per_second = (1000 * data.comparison.options.batch_size) / asked.latency_ms;
    if (asked.speedup) least.images_per_second = asked.speedup * rate;
    const [up, right] = [least[state.y], least[state.x]];
    const inside = (value, [low, high]) => value >= low && value <= high;
    const parts = [];
    if (inside(up, ys)) {
      parts.push(draw("line", { class: "asked", x1: box.left, x2: box.right, y1: y(up), y2: y(up) }));
      parts.push(draw("text", { class: "asked", x: box.right, y: y(up) + 15, "text-anchor": "end" }, `asked: at least ${percent(up)}`));
    }
    if (inside(right, xs)) {
      parts.push(draw("line", { class: "asked", x1: x(right), x2: x(right), y1: box.top, y2: box.bottom }));
      const [end, shift] = x(right) > (box.left + box.right) / 2 ? ["end", -5] : ["start", 5];
      const place = { class: "asked", x: x(right) + shift, y: box.bottom - 6, "text-anchor": end };
      const bound = asked.latency_ms ? `at most ${plain(asked.latency_ms)} ms a batch` : `at least ${plain(asked.speedup)}×`;
      parts.push(draw("text", place, `asked: ${bound}`));
    }
    return parts;
  }

  function drawLines(place, visible) {
    const at = (index) => place(index).map((v) => v.toFixed(1));
    const path = (indices) => indices.map((index, i) => `${i ? "L" : "M"}${at(index)}`).join("");
    frontLine.setAttribute("d", path(front().filter((index) => visible.includes(index))));
    for (const [label, thin] of series) {
      const own = visible.filter((index) => entries[index].label === label);
      thin.setAttribute("d", path(own.sort((a, b) => entries[a][state.x] - entries[b][state.x])));
    }
  }

  /** Labels next to the points of the front, if there is room. */
  function drawNames(box, place, visible) {
    const taken = visible.map((index) => [place(index)[0] - 9, place(index)[1] - 9, 18, 18]);
    const clash = ([a, b, w, h]) => taken.some(([c, d, v, u]) => a < c + v && c < a + w && b < d + u && d < b + h);
    const [names, told] = [[], new Set()];
    const first = [0, recommended].filter((index) => index !== null && visible.includes(index));
    for (const index of new Set([...first, ...front().filter((one) => visible.includes(one))])) {
      const [cx, cy] = place(index);
      const width = title(entries[index]).length * 6.9 + 4;
      const [left, middle] = [cx - 13 - width, cx - width / 2];
      const spots = [[middle, cy - 30], [middle, cy + 12], [cx + 13, cy - 9], [left, cy - 9]];
      const spot = spots.find(([a, b]) => a >= box.left && a + width <= box.right + 14 && !clash([a, b, width, 18]));
      if (!spot) continue;
      taken.push([...spot, width, 18]);
      names.push(draw("text", { class: "named", x: spot[0], y: spot[1] + 13 }, title(entries[index])));
      told.add(entries[index].label);
    }
    for (const label of [...series.keys()].filter((one) => !told.has(one))) {
      // each method by its name, so that methods of one kind are told apart without their color
      const own = visible.filter((index) => entries[index].label === label);
      const width = label.length * 6.6 + 8;
      for (const index of own.reverse()) {
        const [cx, cy] = place(index);
        const spots = [[cx - width / 2, cy - 26], [cx - width / 2, cy + 10], [cx + 11, cy - 8], [cx - 11 - width, cy - 8]];
        const spot = spots.find(([a, b]) => a >= box.left && a + width <= box.right + 14 && !clash([a, b, width, 16]));
        if (!spot) continue;
        taken.push([...spot, width, 16]);
        names.push(draw("text", { class: "method", x: spot[0], y: spot[1] + 12 }, label));
        break;
      }
    }
    layers.names.replaceChildren(...names);
  }

  function spoken(index, onFront, isRecommended) {
    const [entry, text] = [entries[index], data.texts[index]]; // texts are rounded as in the table
    const parts = [title(entry), `agreement ${text.agreement} percent`];
    if (entry.top1 !== null) parts.push(`accuracy ${text.top1} percent`);
    if (entry.images_per_second !== null) parts.push(`${text.images_per_second} images per second`);
    parts.push(`${(100 * entry.mac_ratio).toFixed(0)} percent of the MACs`);
    if (onFront) parts.push("on the front");
    if (isRecommended) parts.push("recommended");
    return parts.join(", ");
  }

  /** Only one point is a tab stop; arrow keys reach the others. */
  function settleTabStop(visible) {
    const stop = visible.includes(report.chosen.entry) ? report.chosen.entry : visible[0];
    points.forEach((point, index) => point.setAttribute("tabindex", index === stop ? 0 : -1));
  }

  function leftOut(visible) {
    const missing = entries.filter((entry) => entry[state.x] === null).length;
    const below = entries.filter((_, index) => known(index)).length - visible.length;
    const parts = state.x === "mac_ratio" ? ["MACs are compared in whole percent."] : [];
    if (missing) parts.push(`${missing} without a measured speed ${missing === 1 ? "is" : "are"} not shown.`);
    if (below) parts.push(`${below} far below the front ${below === 1 ? "is" : "are"} not shown.`);
    document.getElementById("chart-left-out").textContent = parts.join(" ");
  }

  function showDetails(index) {
    const entry = entries[index];
    const row = document.querySelector(`tr[data-entry="${index}"]`);
    const heads = [...document.querySelectorAll("thead th")].map((head) => head.textContent);
    const facts = [...row.cells].slice(1).map((cell, place) => [heads[place + 1], cell.textContent]);
    if (entry.method.includes(":")) facts.unshift(["On the command line", entry.method]); // options are written otherwise
    const fact = ([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text));
    const list = make("dl", {}, ...facts.filter(([, text]) => text !== "–").map(fact));
    const actions = make("div", { class: "actions" });
    const parts = [make("h3", {}, mark(entry.kind), title(entry)), list];
    if (entry.python) {
      parts.push(make("pre", { id: "chosen-python" }, make("code", {}, entry.python)));
      actions.append(make("button", { type: "button", class: "copy", "data-copy": "chosen-python" }, "Copy"));
    }
    if (report.showsTokensOf && report.showsTokensOf(entry)) {
      actions.append(make("button", { type: "button", onclick: () => report.showTokensOf(entry) }, "Show its tokens"));
    }
    document.getElementById("details").replaceChildren(...parts, actions);
  }

  function pick(index) {
    const label = entries[index].label;
    points.forEach((point, one) => {
      point.classList.toggle("chosen", one === index);
      point.setAttribute("aria-selected", String(one === index));
    });
    series.forEach((line, of) => line.classList.toggle("shown", of === label));
    settleTabStop(shown());
    showDetails(index);
  }

  /** Buttons that hide and show methods, grouped by kind. */
  function makeLegend() {
    for (const kind of ["none", "select", "merge", "cluster", "pool", "learned"]) {
      const labels = [...new Set(entries.filter((entry) => entry.kind === kind).map((entry) => entry.label))];
      if (!labels.length) continue;
      const text = kind === "none" ? "all tokens" : kind;
      const group = make("div", { role: "group", "aria-label": text }, make("span", { class: "kind" }, text));
      for (const label of labels) {
        const press = (event) => toggle(label, event.currentTarget);
        group.append(make("button", { type: "button", "aria-pressed": "true", onclick: press }, mark(kind), label));
      }
      document.getElementById("legend").append(group);
    }
  }

  function toggle(label, button) {
    const hides = !state.hidden.delete(label);
    if (hides) state.hidden.add(label);
    button.setAttribute("aria-pressed", String(!hides));
    redraw();
  }

  const set = (name) => (value) => {
    state[name] = value;
    svg.classList.add("settled"); // marks move when a reader changes something, never into place
    redraw();
  };
  choices(document.getElementById("chart-y"), ups.map((axis) => [axis, AXES[axis].text]), set("y"));
  choices(document.getElementById("chart-x"), rights.map((axis) => [axis, AXES[axis].text]), set("x"));
  choices(document.getElementById("chart-zoom"), [["all", "all settings"], ["near", "near the front"]], set("zoom"), state.zoom);
  makeLegend();
  report.onChoose(pick);
  document.getElementById("chart").hidden = false;
  new ResizeObserver(redraw).observe(svg);
  redraw();
  report.startChart = () => report.choose(recommended === null ? 0 : recommended);
})();
