// One layer, spline and class at a time.
const runs = JSON.parse(document.getElementById("data").textContent);

function layerPanel(section, run) {
  const state = { layer: 0, spline: 0, chosen: -1 };
  const view = make("div", { class: "view" });
  const readout = make("p", { class: "readout", "aria-live": "polite" });
  const splines = make("span");
  const draw = () => view.replaceChildren(...layerView(run, state, readout));
  const pickLayer = (layer) => {
    Object.assign(state, { layer, spline: 0 });
    const titles = run.layers[layer].splines.map((spline) => spline.title);
    splines.replaceChildren(choice("spline", titles, (spline) => { state.spline = spline; draw(); }));
    draw();
  };
  section.append(
    choice("layer", run.layers.map((layer) => layer.name), pickLayer), splines,
    choice("class", ["all", ...run.classes], (i) => { state.chosen = i - 1; draw(); }), view, readout);
  pickLayer(0);
}

function layerView(run, state, readout) {
  const { counts, filters } = run.layers[state.layer].splines[state.spline];
  const bins = counts[0].length;
  const totals = counts[0].map((_, b) => sum(counts.map((row) => row[b])));
  const left = 150, width = 760, row = 20, top = 10, tall = 110, under = top + tall + 24;
  const height = under + row * counts.length + 30;
  const box = { x: left, y: top, width, height: tall };
  const cell = width / bins;
  const svg = drawn("svg", { viewBox: `0 0 ${left + width + 10} ${height}`, role: "img", "aria-label": "who is where" });
  const most = Math.max(...totals, sum(totals) / bins);
  svg.append(...bars(totals, box, most, { class: state.chosen < 0 ? "bars" : "bars faded" }));
  if (state.chosen >= 0) svg.append(...bars(counts[state.chosen], box, most, { fill: run.colours[state.chosen] }));
  const even = top + tall - (tall * sum(totals)) / bins / most;
  svg.append(
    drawn("line", { x1: left, x2: left + width, y1: even, y2: even, stroke: "#e69f00", "stroke-width": 2, "stroke-dasharray": "6 4" }),
    label(left - 8, even + 4, "uniform", "end"));
  counts.forEach((line, c) => {
    const faded = state.chosen >= 0 && state.chosen !== c;
    svg.append(label(left - 8, under + row * c + 14, run.classes[c], "end", 20));
    line.forEach((count, b) => svg.append(drawn("rect", {
      x: left + b * cell, y: under + row * c, width: cell + 0.3, height: row - 1, opacity: faded ? 0.25 : 1,
      ...(totals[b] ? { fill: cividis(count / totals[b]) } : { class: "nobody" }),
    })));
  });
  for (const place of [0, 0.25, 0.5, 0.75, 1]) svg.append(label(left + place * width, height - 8, String(place), "middle"));
  readout.textContent = "Point at the map to read it: each column is a bin of the spline, bright where a class fills it.";
  svg.addEventListener("pointermove", (event) => {
    const scale = (left + width + 10) / svg.getBoundingClientRect().width;
    const at = svg.getBoundingClientRect();
    const b = Math.floor(((event.clientX - at.left) * scale - left) / cell);
    const c = Math.floor(((event.clientY - at.top) * scale - under) / row);
    if (b < 0 || b >= bins) return;
    const range = `from ${(b / bins).toFixed(2)} to ${((b + 1) / bins).toFixed(2)}`;
    readout.textContent = c >= 0 && c < counts.length
      ? `${run.classes[c]}, ${range}: ${counts[c][b]} of ${totals[b]} positions here`
      : `${range}: ${totals[b]} positions`;
  });
  const shown = [svg];
  if (filters) {
    shown.push(make("p", { class: "small" }, `Weights along the spline: ${filters.title}. Purple is above 0, orange below.`));
    shown.push(pictures(filters, filters.values.map((_, i) => String(i / (filters.values.length - 1)))));
  }
  return shown;
}

function label(x, y, text, anchor, most = 40) {
  const short = text.length > most ? `${text.slice(0, most - 1)}…` : text;
  return drawn("text", { x, y, "text-anchor": anchor }, short);
}

for (const section of document.querySelectorAll(".panel")) layerPanel(section, runs[Number(section.dataset.run)]);

const disagreeing = document.getElementById("disagreeing");
if (disagreeing) disagreeing.addEventListener("change", () => {
  for (const card of document.querySelectorAll(".card"))
    card.hidden = disagreeing.value !== "" && card.dataset.label !== disagreeing.value;
});
