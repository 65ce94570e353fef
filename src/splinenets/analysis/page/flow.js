// The way from layer to layer: a row for each curve, the image's line through all of them, and a dot to drag on each.
const WAVE = 0.1, BASE = 0.62; // of a row's height

function startFlow() {
  find("layers").classList.toggle("many", about.layers.length > 8);
  for (const layer of about.layers) addLayer(layer);
  new ResizeObserver(drawFlow).observe(find("flow"));
  find("whole").addEventListener("change", () => { state.whole = find("whole").checked; });
  if (about.layers.every((layer) => layer.splines.length === 1)) find("grip").hidden = true;
}

function addLayer(layer) {
  const input = make("input", { type: "range", min: 0, max: 1, step: 0.001, "aria-label": `position on ${layer.title}` });
  const value = make("span", { class: "value" });
  const row = make("div", { class: "layer", "data-layer": layer.name },
    make("header", { title: layer.title }, make("b", {}, layer.title), value), make("div", { class: "track" }, input));
  Object.assign(layer, { input, value, row });
  state.picked[layer.name] = layer.first;
  input.addEventListener("input", () => drag(layer, Number(input.value)));
  input.addEventListener("pointerdown", () => look(layer));
  input.addEventListener("focus", () => look(layer));
  find("layers").append(row);
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

function pick(layer, spline) {
  state.picked[layer.name] = spline;
  drawFlow();
  ask();
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

function measure() {
  const flow = find("flow").getBoundingClientRect();
  for (const layer of about.layers) {
    const track = layer.input.parentElement.getBoundingClientRect();
    Object.assign(layer, { left: track.left - flow.left + 12, width: track.width - 24, top: track.top - flow.top, height: track.height });
  }
}

// from dot to dot, each left and reached straight down
function wayOf(positions) {
  const points = about.layers.map((layer, i) => [across(layer, positions[i]), down(layer, positions[i])]);
  return points.map(([x, y], i) => {
    if (!i) return `M${x},${y}`;
    const [before, above] = points[i - 1], middle = (y + above) / 2;
    return `C${before},${middle} ${x},${middle} ${x},${y}`;
  }).join(" ");
}

function curveOf(layer) {
  const places = Array.from({ length: 41 }, (_, i) => i / 40);
  return `M${places.map((at) => `${across(layer, at)},${down(layer, at)}`).join(" L")}`;
}

function hillOf(layer) {
  const counts = layer.counts[state.picked[layer.name]], most = Math.max(...counts) || 1;
  const tops = counts.map((count, i) => {
    const at = (i + 0.5) / counts.length;
    return `${across(layer, at)},${down(layer, at) - (0.45 * layer.height * count) / most}`;
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
  const best = likeliest(answer.chances), parts = [];
  for (const other of find("way").querySelectorAll(".others"))
    other.setAttribute("opacity", Number(other.dataset.class) === best ? 0.5 : 0.13);
  const at = about.layers.map((layer) => standing(layer, answer));
  if (second) parts.push(...oneWay(about.layers.map((l) => second.positions[l.name][state.picked[l.name]]), likeliest(second.chances), "line second"));
  parts.push(...oneWay(at, best, "line"));
  about.layers.forEach((layer, i) => parts.push(...dots(layer, at[i], answer, about.colours[best])));
  find("mine").replaceChildren(...parts);
}

function oneWay(positions, best, kind) {
  return [drawn("path", { class: kind, stroke: about.colours[best], d: wayOf(positions) })];
}

// where the image is: where a hand holds it, or where it went
function standing(layer, answer) {
  const chosen = state.chosen[layer.name], spline = state.picked[layer.name];
  return chosen && chosen[spline] !== null ? chosen[spline] : answer.positions[layer.name][spline];
}

function dots(layer, at, answer, colour) {
  const spline = state.picked[layer.name], chosen = state.chosen[layer.name];
  const held = Boolean(chosen && chosen[spline] !== null);
  const circle = (position, kind, r, fill) => drawn("circle", { class: kind, r, fill, cx: across(layer, position), cy: down(layer, position), "data-of": layer.name });
  if (!held) layer.input.value = at;
  layer.value.textContent = at.toFixed(3) + (held ? " by hand" : layer.given ? " told" : "");
  const all = answer.positions[layer.name];
  return [
    ...(all.length > 1 ? all.map((position, i) => circle(chosen && chosen[i] !== null ? chosen[i] : position, "each", 3, colour)) : []),
    ...(held ? [circle(answer.own[layer.name][spline], "own", 7, "none")] : []),
    circle(at, "dot", 10, colour),
  ];
}
