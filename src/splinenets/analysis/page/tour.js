// Four steps through the page; each shows a part of it and may do something there.
let tourStep = -1;

const SEEING = { where: "image", text: () => "This picture goes into the network. The bars show how likely the network thinks each class is; the tick marks the true one." };
const WAY = { where: "flow", text: () => "The picture's path, from top to bottom. Each row is the curve of one layer's weights, and the dot is the place on it that the picture chose. The weights it gets there are drawn above the dot; those along the curve are the ones it could have had. At the bottom, ribbons lead to the answer." };
const CHOSEN = [
  SEEING, WAY,
  { where: "flow", act: dragToAnother, text: () => "Now we move the dot by hand. All filters of the layer slide along their curves, and with other weights the network gives another answer. The ring marks the place that the picture itself chose." },
  { where: "apart", act: showSecond, text: () => "A second picture, of another class. Its path is the dashed line; where the two lines separate, the pictures get different weights. Swap the weights of one layer, or send the first picture along the second's whole path, and watch the answer." },
];
const TOLD = [
  SEEING,
  { where: "condition", act: () => glide(doTo, state.done, between(0.3)), text: () => `The ${about.condition.name} changes the picture, and the network is told the new value, so its answer should stay the same.` },
  { where: "condition", act: () => glide(tell, state.done, between(0.8)), text: () => `Now the network is told a different ${about.condition.name} from the one used on the picture. It uses the wrong filters, and its answer gets worse.` },
  { ...WAY, act: () => tell(null), text: () => `Each row is the curve of one layer's weights. The ${about.condition.name} that the network is told is the place on every one of them, and the filters follow it.` },
];

const steps = () => (about.condition && about.condition.told && about.condition.changes ? TOLD : CHOSEN);

function between(share) {
  const { low, high } = about.condition;
  return low + share * (high - low);
}

function letGo() {
  state.chosen = {};
  ask();
}

// from one value to another in a second, or at once for people who want no movement
async function glide(set, from, to) {
  const frames = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1 : 25, step = tourStep;
  for (let i = 1; i <= frames && tourStep === step; i++) {
    set(from + ((to - from) * i) / frames);
    await new Promise((done) => setTimeout(done, 40));
  }
}

// to the positions that lead to the surest other answer; the server knows them
async function dragToAnother() {
  letGo();
  const image = state.image, found = await post("turning", JSON.stringify({ image: sent(image), done: doneTo(image) }));
  const layers = about.layers.filter((layer) => found[layer.name]), step = tourStep;
  if (!layers.length) return tourSays("This picture keeps its answer wherever we move it: the network is very sure. Press n for another picture, and drag a dot.");
  look(layers[0]);
  const from = latest.answer.own;
  await glide((share) => {
    for (const { name } of layers) state.chosen[name] = found[name].map((to, i) => from[name][i] + (to - from[name][i]) * share);
    drawWay();
    ask();
  }, 0, 1);
  await settled();
  if (tourStep !== step) return;
  const { chances, own_chances: own } = latest.answer, name = (all) => about.classes[likeliest(all)];
  const how = layers.length > 1 ? "No single layer changes this answer, so all layers move along the path of a training picture. " : "";
  tourSays(`${steps()[step].text()} ${how}It was ${name(own)}; now it is ${name(chances)}, ${(100 * Math.max(...chances)).toFixed(0)}%.`);
}

async function settled() {
  while (asking) await new Promise((done) => setTimeout(done, 40));
}

async function showSecond() {
  letGo();
  if (!state.other) compare(true);
  await settled();
  if (tourStep >= 0) find("apart").scrollIntoView({ block: "center" });
}

function tourSays(text) {
  find("tour-dots").textContent = steps().map((_, i) => (i === tourStep ? "●" : "○")).join("");
  find("tour-text").textContent = `${tourStep + 1} of ${steps().length}. ${text}`;
}

function goTo(number) {
  tourStep = number;
  for (const node of document.querySelectorAll(".toured")) node.classList.remove("toured");
  find("tour").hidden = number < 0;
  if (number < 0) return find("tour-start").focus({ preventScroll: true });
  const { where, text, act } = steps()[number];
  find(where).classList.add("toured");
  find(where).scrollIntoView({ block: "center" });
  tourSays(text());
  find("tour-back").disabled = number === 0;
  find("tour-next").textContent = number === steps().length - 1 ? "done" : "next";
  find("tour-next").focus({ preventScroll: true });
  if (act) act();
}

function startTour() {
  if (find("whole").checked === false) find("whole").click();
  goTo(0);
}

find("tour-start").addEventListener("click", startTour);
find("tour-next").addEventListener("click", () => goTo(tourStep + 1 < steps().length ? tourStep + 1 : -1));
find("tour-back").addEventListener("click", () => goTo(tourStep - 1));
find("tour-end").addEventListener("click", () => goTo(-1));
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && tourStep >= 0) goTo(-1); });
