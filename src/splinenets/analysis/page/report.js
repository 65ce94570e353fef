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
  const svg = drawn("svg", { viewBox: `0 0 ${left + width + 10} ${height}`, role: "img", tabindex: 0, "aria-label": "where images lie" });
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
  const pointer = drawn("rect", { class: "pointed", width: cell, height: row - 1, visibility: "hidden" });
  svg.append(pointer);
  const read = (b, c) => {
    if (b < 0 || b >= bins) return;
    const range = `from ${(b / bins).toFixed(2)} to ${((b + 1) / bins).toFixed(2)}`, inside = c >= 0 && c < counts.length;
    for (const [name, value] of Object.entries({ x: left + b * cell, y: under + row * c, visibility: inside ? "visible" : "hidden" }))
      pointer.setAttribute(name, value);
    readout.textContent = inside
      ? `${run.classes[c]}, ${range}: ${counts[c][b]} of ${totals[b]} positions here`
      : `${range}: ${totals[b]} positions`;
  };
  readout.textContent = "Each column is a bin, a short stretch of the spline; a cell is bright where its class fills the bin. Point at the map to read it, or reach it with Tab and use the arrow keys.";
  svg.addEventListener("pointermove", (event) => {
    const at = svg.getBoundingClientRect(), scale = (left + width + 10) / at.width;
    read(Math.floor(((event.clientX - at.left) * scale - left) / cell), Math.floor(((event.clientY - at.top) * scale - under) / row));
  });
  const held = { b: 0, c: 0 }, moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  svg.addEventListener("keydown", (event) => {
    if (!moves[event.key]) return;
    event.preventDefault();
    held.b = Math.min(Math.max(held.b + moves[event.key][0], 0), bins - 1);
    held.c = Math.min(Math.max(held.c + moves[event.key][1], 0), counts.length - 1);
    read(held.b, held.c);
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

// words explain themselves, to those who point and to those who use the keyboard
const explanation = make("div", { id: "explanation", "aria-hidden": "true" });
function explain(event) {
  const word = event.target.closest && event.target.closest("abbr[aria-describedby]");
  const meaning = word && document.getElementById(word.getAttribute("aria-describedby"));
  if (!meaning) return explanation.remove();
  explanation.textContent = meaning.textContent;
  document.body.append(explanation);
  const at = word.getBoundingClientRect(), own = explanation.getBoundingClientRect();
  const below = at.bottom + 6 + own.height < innerHeight;
  explanation.style.left = `${Math.max(Math.min(at.left, innerWidth - own.width - 12), 12)}px`;
  explanation.style.top = `${below ? at.bottom + 6 : at.top - own.height - 6}px`;
}
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, explain);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") explanation.remove(); });
addEventListener("scroll", () => explanation.remove(), { passive: true });

// every figure can be taken along, for light paper: as it is drawn, and as pixels for print
const PRINTED = 3; // pixels for one of the drawing
function offer(content, name, ending) {
  const link = make("a", { href: content, download: `${name}.${ending}` });
  document.body.append(link);
  link.click();
  link.remove();
}
function onLightPaper(source) {
  const [head, body] = source.split(",");
  return head.includes("svg") ? `${head},${btoa(atob(body).replace("(prefers-color-scheme: dark)", "not all"))}` : source;
}
async function asPixels(source) {
  const drawing = new Image();
  drawing.src = source;
  await drawing.decode();
  const canvas = make("canvas", { width: drawing.naturalWidth * PRINTED, height: drawing.naturalHeight * PRINTED });
  canvas.getContext("2d").drawImage(drawing, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png");
}
for (const figure of document.querySelectorAll("figure[data-name]")) {
  const source = figure.querySelector("img").src, vector = source.startsWith("data:image/svg");
  const save = (ending, content) => {
    const button = make("button", { type: "button", class: "save", "aria-label": `save this figure as ${ending.toUpperCase()}` }, ending.toUpperCase());
    button.addEventListener("click", async () => offer(await content(), figure.dataset.name, ending));
    figure.querySelector("figcaption").append(button);
  };
  if (vector) save("svg", () => onLightPaper(source));
  save("png", () => (vector ? asPixels(onLightPaper(source)) : source));
}

// the contents show where one is
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const headings = [...document.querySelectorAll("h2[id]")];
function here() {
  const last = headings.filter((heading) => heading.getBoundingClientRect().top < innerHeight / 3).at(-1) || headings[0];
  for (const [id, link] of links) link.setAttribute("aria-current", String(Boolean(last) && id === last.id));
}
addEventListener("scroll", here, { passive: true });
here();
