// What is done to the picture, and what the network is told of it.
const UNITS = { angle: "°", blur: " px", scale: "×" };
const ACTS = { angle: "turn the picture", scale: "scale the picture", blur: "blur the picture", exposure: "darken the picture", noise: "add noise to the picture" };

// what was done to an image: the same to all, or what the data have for each
function doneTo(image) {
  const { condition } = about;
  if (!condition) return null;
  if (condition.changes) return state.done;
  const known = condition.values && image.test !== undefined ? condition.values[image.test] : null;
  return known === null ? (state.told === null ? condition.still : state.told) : known;
}

function startCondition() {
  const { condition } = about;
  if (!condition) return;
  find("condition").hidden = false;
  state.done = condition.still;
  const parts = [];
  if (condition.changes) {
    const what = ACTS[condition.name] || `change the ${condition.name}`;
    condition.control = control("done", `${what}${condition.told ? ", and tell the network" : ""}`, state.done, (value) => {
      state.done = value;
      if (state.told === null && condition.second) condition.second.set(value);
      ask();
    });
    parts.push(condition.control.box);
  }
  if (condition.told) parts.push(...tellElse(condition));
  else parts.push(make("p", { class: "small" }, `This network is not told the ${condition.name}.`));
  find("condition").append(...parts);
}

// a control of its own for what the network is told
function tellElse(condition) {
  const box = make("input", { type: "checkbox", id: "else" });
  condition.second = control("told", `the ${condition.name} that the network is told`, condition.still, (value) => { state.told = value; ask(); });
  condition.second.box.classList.add("lie");
  condition.second.box.hidden = true;
  box.addEventListener("change", () => tell(box.checked ? Number(condition.second.input.value) : null));
  return [make("p", {}, make("label", {}, box, condition.changes ? " tell it something else" : ` choose the ${condition.name} it is told`)), condition.second.box];
}

function tell(value) {
  const { condition } = about;
  state.told = value;
  find("else").checked = value !== null;
  condition.second.box.hidden = value === null;
  condition.second.set(value === null ? doneTo(state.image) : value);
  ask();
}

function doTo(value) {
  about.condition.control.set(value);
  state.done = value;
  if (state.told === null && about.condition.second) about.condition.second.set(value);
  ask();
}

// a slider, or a dial where the curve is closed
function control(id, label, value, change) {
  const { low, high, closed, name } = about.condition;
  const input = make("input", { type: "range", id, min: low, max: high, step: (high - low) / 360, "aria-label": label });
  const output = make("output", { for: id });
  const drawing = closed ? dial(input, low, high) : { box: input, turn: () => {} };
  const set = (to) => {
    input.value = to;
    drawing.turn();
    output.textContent = `${Number(Number(input.value).toPrecision(3))}${UNITS[name] || ""}`;
  };
  input.addEventListener("input", () => { set(input.value); change(Number(input.value)); });
  set(value);
  const box = make("div", { class: "condition" }, make("label", { for: id, class: "small" }, label), make("div", { class: "control" }, drawing.box, output));
  return { box, input, set };
}

function dial(input, low, high) {
  const hand = drawn("line", { class: "hand", x1: 0, y1: 0 }), knob = drawn("circle", { class: "knob", r: 9 });
  const svg = drawn("svg", { viewBox: "-60 -60 120 120", "aria-hidden": "true" }, drawn("circle", { class: "ring", r: 48 }), hand, knob);
  const box = make("div", { class: "dial" }, svg, input);
  // against the clock from the top, as pictures turn
  const turn = () => {
    const angle = (2 * Math.PI * (Number(input.value) - low)) / (high - low), x = -48 * Math.sin(angle), y = -48 * Math.cos(angle);
    for (const [node, pair] of [[hand, ["x2", "y2"]], [knob, ["cx", "cy"]]]) {
      node.setAttribute(pair[0], x);
      node.setAttribute(pair[1], y);
    }
  };
  const give = (value) => { input.value = value; input.dispatchEvent(new Event("input")); };
  const follow = (event) => {
    const at = svg.getBoundingClientRect();
    const angle = Math.atan2(-(event.clientX - at.left - at.width / 2), -(event.clientY - at.top - at.height / 2));
    give(low + ((angle / (2 * Math.PI) + 1) % 1) * (high - low));
  };
  box.addEventListener("pointerdown", (event) => { event.preventDefault(); box.setPointerCapture(event.pointerId); input.focus(); follow(event); });
  box.addEventListener("pointermove", (event) => { if (box.hasPointerCapture(event.pointerId)) follow(event); });
  // beyond the end it begins again
  input.addEventListener("keydown", (event) => {
    const up = /^Arrow(Up|Right)$/.test(event.key), end = Number(input.value) >= high, start = Number(input.value) <= low;
    if ((up && end) || (/^Arrow(Down|Left)$/.test(event.key) && start)) {
      event.preventDefault();
      give(up ? low : high);
    }
  });
  return { box, turn };
}
