// The way from the image to the answer: a row for each layer's curve, a dot to drag on each, and the line through all.
const WAVE = 0.09, BASE = 0.56; // of a row's height

function startFlow() {
  find("flow").classList.toggle("many", about.layers.every((layer) => !layer.strip.length));
  for (const layer of about.layers) addLayer(layer);
  new ResizeObserver(drawFlow).observe(find("flow"));
  find("whole").addEventListener("change", () => { state.whole = find("whole").checked; });
  if (about.layers.every((layer) => layer.splines.length === 1)) find("grip").hidden = true;
}

function addLayer(layer) {
  const input = make("input", { type: "range", min: 0, max: 1, step: 0.001, "aria-label": `position on ${layer.title}` });
  const value = make("span", { class: "value" });
  const strip = make("div", { class: "strip", "aria-hidden": "true" }), lens = make("div", { class: "lens", "aria-hidden": "true" });
  const row = make("div", { class: "layer", "data-layer": layer.name },
    make("header", { title: layer.title }, make("b", {}, ending(layer.title)), value), make("div", { class: "track" }, strip, lens, input));
  Object.assign(layer, { input, value, row, lens, strips: strip });
  state.picked[layer.name] = layer.first;
  input.addEventListener("input", () => drag(layer, Number(input.value)));
  input.addEventListener("pointerdown", () => look(layer));
  input.addEventListener("focus", () => look(layer));
  find("layers").append(row);
  showStrip(layer, layer.strip);
}

// names of layers differ at their end
const ending = (title) => (title.length > 12 ? `…${title.slice(-11)}` : title);

// what the weights are along the curve
function showStrip(layer, pictures) {
  layer.strips.replaceChildren(...pictures.map(({ values, rows }, i) => {
    const canvas = picture(values, rows);
    canvas.style.left = `calc(12px + (100% - 24px) * ${i / (pictures.length - 1)})`;
    return canvas;
  }));
}

function look(layer) {
  if (state.look === layer.name) return;
  state.look = layer.name;
  find("looking").textContent = `in ${layer.title}`;
  for (const other of about.layers) other.row.classList.toggle("looked", other === layer);
  const picker = layer.splines.length > 1 ? choice("shown in front", layer.splines, (spline) => pick(layer, spline)) : "";
  if (picker) picker.querySelector("select").value = state.picked[layer.name];
  find("spline").replaceChildren(picker);
  ask();
}

async function pick(layer, spline) {
  state.picked[layer.name] = spline;
  drawFlow();
  ask();
  showStrip(layer, await post("strip", JSON.stringify({ layer: layer.name, spline })));
}

function drag(layer, position) {
  const chosen = state.chosen[layer.name] || layer.splines.map(() => null);
  if (state.whole) chosen.fill(position);
  chosen[state.picked[layer.name]] = position;
  state.chosen[layer.name] = chosen;
  drawWay();
  ask();
}

// where things are, in pixels of the drawing

const across = (layer, position) => layer.left + position * layer.width;
const down = (layer, position) => layer.top + layer.height * (BASE - WAVE * Math.sin(2 * Math.PI * position));
let enters = [], leaves = 0;

function measure() {
  const flow = find("flow").getBoundingClientRect();
  for (const layer of about.layers) {
    const track = layer.input.parentElement.getBoundingClientRect();
    Object.assign(layer, { left: track.left - flow.left + 12, width: track.width - 24, top: track.top - flow.top, height: track.height });
  }
  enters = ["goes-in", "goes-in-other"].map((id) => {
    const entry = find(id).getBoundingClientRect();
    return [entry.left + entry.width / 2 - flow.left, entry.bottom - flow.top];
  });
  leaves = find("exits").getBoundingClientRect().top - flow.top;
}

// from point to point, each left and reached straight down
function through(points) {
  return points.map(([x, y], i) => {
    if (!i) return `M${x},${y}`;
    const [before, above] = points[i - 1], middle = (y + above) / 2;
    return `C${before},${middle} ${x},${middle} ${x},${y}`;
  }).join(" ");
}

const wayOf = (positions) => through(about.layers.map((layer, i) => [across(layer, positions[i]), down(layer, positions[i])]));

function curveOf(layer) {
  const places = Array.from({ length: 41 }, (_, i) => i / 40);
  return `M${places.map((at) => `${across(layer, at)},${down(layer, at)}`).join(" L")}`;
}

function hillOf(layer) {
  const counts = layer.counts[state.picked[layer.name]], most = Math.max(...counts) || 1;
  const tops = counts.map((count, i) => {
    const at = (i + 0.5) / counts.length;
    return `${across(layer, at)},${down(layer, at) - (0.4 * layer.height * count) / most}`;
  });
  return `${curveOf(layer)} L${tops.reverse().join(" L")} Z`;
}

// what stays while one drags: curves, hills and ways of training images
function drawFlow() {
  measure();
  const ways = about.of_ways.map((label, n) => drawn("path", {
    class: "others", "data-class": label, stroke: about.colours[label],
    d: wayOf(about.layers.map((layer) => layer.ways[n][state.picked[layer.name]])),
  }));
  const rows = about.layers.flatMap((layer) => [
    drawn("path", { class: "counts", d: hillOf(layer) }), drawn("path", { class: "curve", d: curveOf(layer) })]);
  find("way").replaceChildren(...rows, ...ways, drawn("g", { id: "mine" }));
  drawWay();
}

// the image's own way, and that of the second image
function drawWay() {
  if (!latest || !find("mine")) return;
  const { answer, second } = latest;
  const best = likeliest(answer.chances), colour = about.colours[best], parts = [];
  for (const other of find("way").querySelectorAll(".others"))
    other.setAttribute("opacity", Number(other.dataset.class) === best ? 0.5 : 0.13);
  const at = about.layers.map((layer) => standing(layer, answer)), shown = showExits(answer);
  if (second) {
    const theirs = about.layers.map((layer) => second.positions[layer.name][state.picked[layer.name]]);
    parts.push(...fan(second, theirs, shown, "second"), ...oneWay(theirs, likeliest(second.chances), "line second"));
  }
  parts.push(...fan(answer, at, shown, ""), ...oneWay(at, best, "line"));
  about.layers.forEach((layer, i) => parts.push(...dots(layer, at[i], answer, colour)));
  find("mine").replaceChildren(...parts);
}

function oneWay(positions, best, kind) {
  const [first] = about.layers, start = [across(first, positions[0]), down(first, positions[0])];
  const colour = about.colours[best];
  return [
    drawn("path", { class: `${kind} enters`, stroke: colour, d: through([enters[kind === "line" ? 0 : 1], start]) }),
    drawn("path", { class: kind, stroke: colour, d: wayOf(positions) }),
  ];
}

// the answer: from the last dot a ribbon to each class, as wide as it is likely
function fan(answer, positions, shown, kind) {
  const last = about.layers.at(-1), at = positions.at(-1), start = [across(last, at), down(last, at)];
  return shown.filter((c) => answer.chances[c] > 0.005).map((c) => drawn("path", {
    class: `ribbon ${kind}`, stroke: about.colours[c], "stroke-width": 1 + 15 * answer.chances[c],
    d: through([start, [exit(last, shown, c), leaves]]),
  }));
}

const exit = (layer, shown, c) => layer.left + ((shown.indexOf(c) + 0.5) / shown.length) * layer.width;

function showExits(answer) {
  const shown = order(answer), best = likeliest(answer.chances), right = truth(state.image), last = about.layers.at(-1);
  find("exits").replaceChildren(...shown.map((c) => {
    const name = make("span", { class: `exit${c === best ? " best" : ""}`, title: about.classes[c] }, about.classes[c] + (c === right ? " ✓" : ""));
    name.style.left = `${exit(last, shown, c)}px`;
    name.style.setProperty("--of", about.colours[c]);
    return name;
  }));
  return shown;
}

// where the image is: where a hand holds it, or where it went
function standing(layer, answer) {
  const chosen = state.chosen[layer.name], spline = state.picked[layer.name];
  return chosen && chosen[spline] !== null ? chosen[spline] : answer.positions[layer.name][spline];
}

// the weights that the image gets, above its dot
function showLens(layer, at, { values, rows }, colour) {
  layer.lens.replaceChildren(picture(values, rows));
  layer.lens.style.left = `${Math.max(across(layer, at) - layer.left + 12, 24)}px`;
  layer.lens.style.borderColor = colour;
}

function dots(layer, at, answer, colour) {
  const spline = state.picked[layer.name], chosen = state.chosen[layer.name];
  const held = Boolean(chosen && chosen[spline] !== null);
  const circle = (position, kind, r, fill) => drawn("circle", { class: kind, r, fill, cx: across(layer, position), cy: down(layer, position), "data-of": layer.name });
  if (!held) layer.input.value = at;
  layer.value.textContent = at.toFixed(3) + (held ? " by hand" : layer.given ? " told" : "");
  if (answer.fronts[layer.name]) showLens(layer, at, answer.fronts[layer.name], colour);
  const all = answer.positions[layer.name];
  return [
    ...(all.length > 1 ? all.map((position, i) => circle(chosen && chosen[i] !== null ? chosen[i] : position, "each", 3, colour)) : []),
    ...(held ? [circle(answer.own[layer.name][spline], "own", 7, "none")] : []),
    circle(at, "dot", 10, colour),
  ];
}
