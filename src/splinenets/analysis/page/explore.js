// An image, where it goes, and what changes when its positions are dragged.
const find = (id) => document.getElementById(id);
const state = { image: { test: 0 }, other: null, active: "image", chosen: {}, picked: {}, whole: true, look: "", tests: 0, done: null, told: null };
let about, latest = null;

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
    try {
      const first = await post("answer", question(state.image, state.chosen));
      const second = state.other && await post("answer", question(state.other, {}));
      show(first, second);
      await explainParting();
    } catch (error) {
      say(error.message);
    }
  }
  asking = false;
}

function question(image, chosen) {
  const { look, picked, told } = state, done = doneTo(image);
  return JSON.stringify({ image: sent(image), chosen, look, picked, done, told: told === null ? done : told });
}

const sent = ({ test, pixels }) => (pixels === undefined ? { test } : { pixels });
const truth = (image) => (image.test === undefined ? null : about.labels[image.test]);
const likeliest = (chances) => chances.indexOf(Math.max(...chances));

function see(image) {
  state[state.active] = image;
  say("");
  find("unlike").hidden = !image.unlike;
  ask();
}

// the answer

function show(answer, second) {
  latest = { answer, second };
  preview(find("preview"), answer.pixels);
  preview(find("goes-in"), answer.pixels);
  if (second) for (const id of ["preview-other", "goes-in-other"]) preview(find(id), second.pixels);
  find("goes-in-other").hidden = find("pairs").hidden = !second;
  for (const button of document.querySelectorAll("#tests button"))
    button.setAttribute("aria-pressed", String(Number(button.dataset.test) === state[state.active].test));
  find("unusual").hidden = truth(state.image) !== null || !answer.unusual;
  find("label").textContent = named(state.image);
  find("label-other").textContent = state.other ? named(state.other) : "";
  const steered = isSteered();
  showVerdict(answer, second, steered);
  find("chances").replaceChildren(...order(answer).map((c) => chance(c, answer, second, steered)));
  const marks = steered ? `; thin marks: ${Object.keys(state.chosen).length ? "before you moved it" : "if it were told the truth"}` : "";
  const paler = second ? "; paler bars: the second image" : "";
  find("speed").textContent = `answered in ${answer.milliseconds.toFixed(0)} ms${marks}${paler}`;
  find("release").disabled = !Object.keys(state.chosen).length;
  showFilters(answer, second);
  find("near").hidden = !answer.neighbours.length;
  find("neighbours").replaceChildren(...answer.neighbours.map((near) => make("figure", {},
    make("img", { src: `images/train/${near.index}.png`, alt: about.classes[near.label] }),
    make("figcaption", {}, about.classes[near.label]))));
  measure();
  drawWay();
}

const isSteered = () => Boolean(Object.keys(state.chosen).length) || (state.told !== null && state.told !== doneTo(state.image));

// with a second image, what each of the two gets stands side by side
function showFilters(answer, second) {
  find("filters").classList.toggle("pairs", Boolean(second));
  find("filters").replaceChildren(...answer.filters.map((filter, i) => make("figure", {},
    picture(filter.values, filter.rows), ...(second ? [picture(second.filters[i].values, filter.rows)] : []),
    make("figcaption", {}, filter.title))));
}

function named(image) {
  const label = truth(image);
  return label === null ? "your image" : `true class: ${about.classes[label]}`;
}

function showVerdict(answer, second, steered) {
  const best = likeliest(answer.chances), own = likeliest(answer.own_chances), label = truth(state.image);
  const said = make("b", {}, about.classes[best]);
  said.style.setProperty("--of", about.colours[best]);
  const rest = label === null ? "" : best === label ? ", which is right" : `, but it is ${about.classes[label]}`;
  const before = steered && own !== best ? ` ${Object.keys(state.chosen).length ? "Before" : "Told the truth"}: ${about.classes[own]}.` : "";
  const other = second ? ` The second: ${about.classes[likeliest(second.chances)]} ${percent(Math.max(...second.chances))}.` : "";
  find("verdict").replaceChildren("It says ", said, ` ${percent(answer.chances[best])}${rest}.${before}${other}`);
}

const percent = (share) => `${(100 * share).toFixed(0)}%`;

function chance(c, answer, second, steered) {
  const parts = [make("i")];
  parts[0].style.width = `${100 * answer.chances[c]}%`;
  if (steered) {
    parts.push(make("b"));
    parts[1].style.left = `calc(${100 * answer.own_chances[c]}% - 1px)`;
  }
  if (second) {
    parts.push(make("i", { class: "second" }));
    parts.at(-1).style.width = `${100 * second.chances[c]}%`;
  }
  const best = c === likeliest(answer.chances) ? " best" : "", right = c === truth(state.image) ? " true" : "";
  const row = make("div", { class: `chance${best}${right}`, "data-class": c },
    make("span", { class: "name", title: about.classes[c] }, about.classes[c]),
    make("span", { class: "bar" }, ...parts),
    make("span", { class: "value" }, `${(100 * answer.chances[c]).toFixed(1)}%`));
  row.style.setProperty("--of", about.colours[c]);
  return row;
}

// all classes in their order; of many, the likeliest
function order(answer) {
  const all = answer.chances.map((_, i) => i);
  return all.length <= 12 ? all : all.sort((a, b) => answer.chances[b] - answer.chances[a]).slice(0, 12);
}

function preview(canvas, pixels) {
  const [channels, height, width] = about.shape;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const bytes = Uint8Array.from(atob(pixels), (letter) => letter.charCodeAt(0));
  const context = canvas.getContext("2d"), data = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let k = 0; k < 3; k++) data.data[4 * i + k] = bytes[(channels === 1 ? 0 : k) * width * height + i];
    data.data[4 * i + 3] = 255;
  }
  context.putImageData(data, 0, 0);
}

// choosing images

find("release").addEventListener("click", () => { state.chosen = {}; ask(); });
find("more").addEventListener("click", moreTests);

function moreTests() {
  const end = Math.min(state.tests + 36, about.labels.length);
  for (; state.tests < end; state.tests++) {
    const test = state.tests, name = about.classes[about.labels[test]];
    const button = make("button", { type: "button", "data-test": test, "aria-pressed": "false", title: name },
      make("img", { src: `images/test/${test}.png`, alt: `test image ${test + 1}, ${name}`, loading: "lazy" }));
    button.addEventListener("click", () => see({ test }));
    find("tests").append(button);
  }
  find("more").hidden = state.tests >= about.labels.length;
}

function step(by) {
  const test = state[state.active].test;
  see({ test: test === undefined ? 0 : (test + by + about.labels.length) % about.labels.length });
}

const KEYS = { n: () => step(1), p: () => step(-1), c: () => compare(), r: () => find("release").click(), t: () => startTour() };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(select|textarea)$/i.test(event.target.tagName)) return;
  if (KEYS[event.key]) KEYS[event.key]();
});

function describe() {
  const { condition } = about;
  const told = condition && condition.told;
  find("title").textContent = told
    ? `A network that changes its weights with the ${condition.name}`
    : "A network that chooses its weights for each image";
  document.title = find("title").textContent;
  find("subtitle").textContent = `Spline-${about.network}, ${about.model}, trained on ${about.data}; run ${about.name}`;
  find("about").textContent = told
    ? `Every layer of this network keeps its weights on a curve, and the ${condition.name} says which place on it an image gets its weights from. ` +
      `Change the ${condition.name}: the picture changes, the network is told the new value, and its filters move along their curves. ` +
      "Then tell it a value that does not match the picture, and see the answer get worse."
    : "Every layer of this network has a whole curve of weights instead of one fixed set. " +
      "Each image chooses a position on every curve, and the layer uses the weights at that position. " +
      "Drag a dot to move the image elsewhere, and see what the network answers with the weights there.";
  find("hint").textContent =
    "From top to bottom: the image, a row for the curve of each layer, and the answer. Drag a dot along its curve. " +
    `Hills show where ${about.seen.toLocaleString("en")} training images lie` +
    (about.of_ways.length ? ", thin lines the paths of some of them in the colours of their classes." : ".");
}

async function start() {
  about = await (await fetch("state")).json();
  describe();
  startFlow();
  startCondition();
  startPad();
  moreTests();
  look(about.layers[0]);
  see({ test: 0 });
}

addEventListener("load", () => start().catch((error) => say(`The page could not start: ${error.message}`)));
