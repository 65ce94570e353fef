// A second image beside the first: where their ways part, and what difference that makes.

function compare(on = !state.other) {
  const mine = truth(state.image);
  const different = about.labels.findIndex((label, i) => label !== mine && i !== state.image.test);
  state.other = on ? { test: Math.max(different, 0) } : null;
  document.body.classList.toggle("comparing", on);
  find("compare").setAttribute("aria-pressed", String(on));
  find("compare").textContent = on ? "look at one image" : "compare with a second image";
  document.querySelector('[data-image="other"]').hidden = find("which").hidden = !on;
  activate(on ? "other" : "image");
  ask();
}

function activate(which) {
  state.active = which;
  for (const source of document.querySelectorAll("[data-image]"))
    source.setAttribute("aria-pressed", String(source.dataset.image === which));
}

let parting = { question: "", layers: [] }; // the last one, which dragging does not change

async function explainParting() {
  find("apart").hidden = !state.other;
  if (!state.other) return;
  const { image, other } = state;
  const question = JSON.stringify({ image: sent(image), done: doneTo(image), other: sent(other), other_done: doneTo(other) });
  if (parting.question !== question) parting = { question, layers: await post("parting", question) };
  if (state.other) showParting(parting.layers);
}

function showParting(layers) {
  const own = likeliest(latest.answer.own_chances), titles = new Map(about.layers.map((layer) => [layer.name, layer.title]));
  const furthest = layers.reduce((a, b) => (b.apart > a.apart ? b : a));
  const turned = layers.filter(({ chances }) => likeliest(chances) !== own);
  const most = turned.length ? turned.reduce((a, b) => (b.chances[own] < a.chances[own] ? b : a)) : null;
  find("apart-text").textContent =
    `Their paths are furthest apart in ${titles.get(furthest.name)}, by ${furthest.apart.toFixed(2)} of the curve on average. ` +
    (most
      ? `${titles.get(most.name)} matters most: with the second image's weights in that layer alone, the first would be called ${about.classes[likeliest(most.chances)]}.`
      : `No single layer decides: with the second image's weights in any one layer, the first is still called ${about.classes[own]}.`);
  find("apart-layers").replaceChildren(...layers.map((layer) => partingRow(layer, titles.get(layer.name), furthest.apart, own)));
}

function partingRow({ name, apart, chances }, title, most, own) {
  const best = likeliest(chances), bar = make("span", { class: "bar" }, make("i"));
  bar.firstChild.style.width = `${(100 * apart) / (most || 1)}%`;
  const said = make("span", { class: best === own ? "said" : "said turned" }, `${about.classes[best]} ${(100 * chances[best]).toFixed(0)}%`);
  said.style.setProperty("--of", about.colours[best]);
  const swap = make("button", { type: "button", "aria-label": `give the first image the second's weights in ${title}` }, "swap");
  swap.addEventListener("click", () => {
    state.chosen = { [name]: [...latest.second.own[name]] };
    look(about.layers.find((layer) => layer.name === name));
    ask();
  });
  return make("div", { class: "parting" }, make("b", { title }, title), bar, said, swap);
}

find("compare").addEventListener("click", () => compare());
find("follow").addEventListener("click", () => {
  state.chosen = structuredClone(latest.second.own);
  ask();
});
for (const source of document.querySelectorAll("[data-image]")) source.addEventListener("click", () => activate(source.dataset.image));
