// An image, where it goes, and what changes when its positions are dragged.
const find = (id) => document.getElementById(id);
const state = { image: { test: 0 }, chosen: {}, picked: {}, together: {}, look: "", tests: 0 };
let about;

function say(text) {
  find("message").textContent = text;
  find("message").hidden = !text;
}

async function post(path, body) {
  const response = await fetch(path, { method: "POST", body });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// one question at a time: while it is under way, only the newest of those that follow is kept
let asking = false, again = false;
async function ask() {
  again = true;
  if (asking) return;
  asking = true;
  while (again) {
    again = false;
    const { image, chosen, look } = state;
    try {
      show(await post("answer", JSON.stringify({ image, chosen, look, spline: state.picked[look] })));
    } catch (error) {
      say(error.message);
    }
  }
  asking = false;
}

function see(image) {
  state.image = image;
  say("");
  for (const button of document.querySelectorAll("#tests button"))
    button.setAttribute("aria-pressed", String(Number(button.dataset.test) === image.test));
  preview(image);
  ask();
}

function preview(image) {
  const [channels, height, width] = about.shape;
  const canvas = find("preview");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  if (image.pixels === undefined) {
    const picture = new Image();
    picture.onload = () => state.image === image && context.drawImage(picture, 0, 0);
    picture.src = `images/test/${image.test}.png`;
    return;
  }
  const bytes = Uint8Array.from(atob(image.pixels), (letter) => letter.charCodeAt(0));
  const data = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let k = 0; k < 3; k++) data.data[4 * i + k] = bytes[(channels === 1 ? 0 : k) * width * height + i];
    data.data[4 * i + 3] = 255;
  }
  context.putImageData(data, 0, 0);
}

// the answer

function show(answer) {
  const best = answer.chances.indexOf(Math.max(...answer.chances));
  find("chances").replaceChildren(...order(answer).map((c) => {
    const bar = make("i"), own = make("b", { title: "without your hand" });
    bar.style.width = `${100 * answer.chances[c]}%`;
    own.style.left = `calc(${100 * answer.own_chances[c]}% - 1px)`;
    const parts = Object.keys(state.chosen).length ? [bar, own] : [bar];
    return make("div", { class: c === best ? "chance best" : "chance", "data-class": c },
      make("span", { class: "name", title: about.classes[c] }, about.classes[c]),
      make("span", { class: "bar" }, ...parts),
      make("span", { class: "value" }, `${(100 * answer.chances[c]).toFixed(1)}%`));
  }));
  const steered = Object.keys(state.chosen).length ? "; orange marks: without your hand" : "";
  find("speed").textContent = `answered in ${answer.milliseconds.toFixed(0)} ms${steered}`;
  for (const layer of about.layers) place(layer, answer.positions[layer.name], answer.own[layer.name]);
  find("release").disabled = !Object.keys(state.chosen).length;
  find("filters").replaceChildren(...answer.filters.map((filter) =>
    make("figure", {}, picture(filter.values, filter.rows), make("figcaption", {}, filter.title))));
  find("neighbours").replaceChildren(...answer.neighbours.map((near) => make("figure", {},
    make("img", { src: `images/train/${near.index}.png`, alt: about.classes[near.label] }),
    make("figcaption", {}, about.classes[near.label]))));
}

// all classes in their order; of many, the likeliest
function order(answer) {
  const all = answer.chances.map((_, i) => i);
  return all.length <= 12 ? all : all.sort((a, b) => answer.chances[b] - answer.chances[a]).slice(0, 12);
}

// layers

function addLayer(layer) {
  const many = layer.splines.length > 1;
  const input = make("input", { type: "range", min: 0, max: 1, step: 0.001, "aria-label": `position on ${layer.name}` });
  const dot = make("span", { class: "dot" }), own = make("span", { class: "own", hidden: "" });
  const value = make("span", { class: "value" });
  const svg = drawn("svg", { viewBox: "0 0 500 52", preserveAspectRatio: "none", "aria-hidden": "true" });
  const head = make("header", {}, make("b", {}, layer.name));
  state.picked[layer.name] = layer.first;
  const box = make("div", { class: "layer", "data-layer": layer.name }, head, make("div", { class: "track" }, svg, own, dot, input));
  Object.assign(layer, { input, dot, own, value, svg, box });
  if (many) {
    const picker = choice("", layer.splines, (spline) => pick(layer, spline));
    layer.select = picker.querySelector("select");
    layer.select.setAttribute("aria-label", `spline of ${layer.name}`);
    const together = make("input", { type: "checkbox" });
    together.addEventListener("change", () => { state.together[layer.name] = together.checked; });
    layer.map = drawn("svg", { class: "all", viewBox: `0 0 ${layer.splines.length} 1`, preserveAspectRatio: "none", role: "img" });
    layer.map.setAttribute("aria-label", "all splines of this layer");
    layer.map.addEventListener("click", (event) => {
      const at = layer.map.getBoundingClientRect();
      pick(layer, Math.min(Math.floor(((event.clientX - at.left) / at.width) * layer.splines.length), layer.splines.length - 1));
    });
    head.append(picker, make("label", {}, together, " move all splines"));
    box.append(layer.map, make("div", { class: "small" },
      `all ${layer.splines.length} splines: dark at position 0, bright at 1; click one to see it above`));
  }
  head.append(value);
  input.addEventListener("input", () => drag(layer, Number(input.value)));
  input.addEventListener("pointerdown", () => look(layer));
  input.addEventListener("focus", () => look(layer));
  find("layers").append(box);
  pick(layer, layer.first, true);
}

function pick(layer, spline, quiet = false) {
  state.picked[layer.name] = spline;
  if (layer.select) layer.select.value = spline;
  const counts = layer.counts[spline];
  layer.svg.replaceChildren(...bars(counts, { x: 0, y: 2, width: 500, height: 50 }, Math.max(...counts), { fill: "#9db8cc" }));
  if (!quiet) look(layer, true);
}

function look(layer, always = false) {
  if (state.look === layer.name && !always) return;
  state.look = layer.name;
  find("looking").textContent = `in ${layer.name}`;
  for (const other of about.layers) other.box.classList.toggle("looked", other === layer);
  ask();
}

function drag(layer, position) {
  const chosen = state.chosen[layer.name] || layer.splines.map(() => null);
  if (state.together[layer.name]) chosen.fill(position);
  chosen[state.picked[layer.name]] = position;
  state.chosen[layer.name] = chosen;
  layer.dot.classList.add("held");
  layer.dot.style.setProperty("--at", position);
  ask();
}

function place(layer, positions, own) {
  const spline = state.picked[layer.name];
  const held = state.chosen[layer.name] && state.chosen[layer.name][spline] !== null;
  layer.dot.classList.toggle("held", Boolean(held));
  if (!held || !asking || !again) layer.dot.style.setProperty("--at", positions[spline]);
  if (!held) layer.input.value = positions[spline];
  layer.own.hidden = !held;
  layer.own.style.setProperty("--at", own[spline]);
  layer.value.textContent = positions[spline].toFixed(3) + (held ? " by hand" : "");
  if (layer.map) layer.map.replaceChildren(...positions.map((position, i) => drawn("rect", {
    x: i + 0.1, y: 0, width: 0.8, height: 1, fill: cividis(position), stroke: i === spline ? "#d55e00" : "none",
    "stroke-width": 3, "vector-effect": "non-scaling-stroke",
  })));
}

// images of the user's own

function startPad() {
  const pad = find("pad"), context = pad.getContext("2d");
  const empty = () => { context.fillStyle = "#000"; context.fillRect(0, 0, pad.width, pad.height); };
  Object.assign(context, { lineWidth: 12, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
  let last = null;
  const at = (event) => [event.offsetX * pad.width / pad.clientWidth, event.offsetY * pad.height / pad.clientHeight];
  const stroke = (event) => {
    if (!last) return;
    context.beginPath();
    context.moveTo(...last);
    context.lineTo(...(last = at(event)));
    context.stroke();
    see({ pixels: shrink(pad) });
  };
  pad.addEventListener("pointerdown", (event) => { pad.setPointerCapture(event.pointerId); last = at(event); stroke(event); });
  pad.addEventListener("pointermove", stroke);
  for (const end of ["pointerup", "pointercancel"]) pad.addEventListener(end, () => { last = null; });
  find("clear").addEventListener("click", () => { empty(); see({ pixels: shrink(pad) }); });
  empty();
}

// the pad as the network's images are, in base64
function shrink(pad) {
  const [channels, height, width] = about.shape;
  const small = make("canvas", { width, height }), context = small.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(pad, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  let bytes = "";
  for (let k = 0; k < channels; k++)
    for (let i = 0; i < width * height; i++) bytes += String.fromCharCode(data[4 * i]);
  return btoa(bytes);
}

find("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  if (file.size > 5e6) return say("This file is too large: 5 MB at most.");
  try {
    see(await post("upload", file));
  } catch (error) {
    say(error.message);
  }
});

find("release").addEventListener("click", () => { state.chosen = {}; ask(); });
find("more").addEventListener("click", moreTests);

function moreTests() {
  const end = Math.min(state.tests + 36, about.tests);
  for (; state.tests < end; state.tests++) {
    const test = state.tests;
    const button = make("button", { type: "button", "data-test": test, "aria-pressed": "false" },
      make("img", { src: `images/test/${test}.png`, alt: `test image ${test + 1}`, loading: "lazy" }));
    button.addEventListener("click", () => see({ test }));
    find("tests").append(button);
  }
  find("more").hidden = state.tests >= about.tests;
}

async function start() {
  about = await (await fetch("state")).json();
  find("title").textContent = `${about.name}: ${about.model} on ${about.data}`;
  find("hint").textContent = `Drag a dot along its spline. Behind it: where ${about.seen} training images are.`;
  about.layers.forEach(addLayer);
  startPad();
  moreTests();
  look(about.layers[0]);
  see({ test: 0 });
}

start().catch((error) => say(`The page could not start: ${error.message}`));
