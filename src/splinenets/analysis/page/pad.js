// Images of the user's own: drawn or uploaded.

function startPad() {
  const pad = find("pad"), context = pad.getContext("2d");
  const [ground, pen] = about.light ? ["#fff", "#000"] : ["#000", "#fff"];
  const empty = () => { context.fillStyle = ground; context.fillRect(0, 0, pad.width, pad.height); };
  Object.assign(context, { lineWidth: 12, lineCap: "round", lineJoin: "round", strokeStyle: pen });
  let last = null;
  const at = (event) => [event.offsetX * pad.width / pad.clientWidth, event.offsetY * pad.height / pad.clientHeight];
  const strokeTo = (place) => {
    context.beginPath();
    context.moveTo(...last);
    context.lineTo(...(last = place));
    context.stroke();
    see({ pixels: shrink(pad) });
  };
  pad.addEventListener("pointerdown", (event) => { pad.setPointerCapture(event.pointerId); last = at(event); strokeTo(last); });
  pad.addEventListener("pointermove", (event) => { if (last) strokeTo(at(event)); });
  drawByKeys(pad, (from, to) => { last = from; strokeTo(to); last = null; });
  for (const end of ["pointerup", "pointercancel"]) pad.addEventListener(end, () => { last = null; });
  find("clear").addEventListener("click", () => { empty(); see({ pixels: shrink(pad) }); });
  empty();
}

// arrow keys move the pen, space puts it down and lifts it
function drawByKeys(pad, stroke) {
  const moves = { ArrowLeft: [-7, 0], ArrowRight: [7, 0], ArrowUp: [0, -7], ArrowDown: [0, 7], " ": [0, 0] };
  let place = [pad.width / 2, pad.height / 4], inked = false;
  pad.addEventListener("keydown", (event) => {
    if (!moves[event.key]) return;
    event.preventDefault();
    if (event.key === " ") inked = !inked;
    const limit = (value, most) => Math.min(Math.max(value, 0), most);
    const [x, y] = moves[event.key], next = [limit(place[0] + x, pad.width), limit(place[1] + y, pad.height)];
    if (inked) stroke(place, next);
    place = next;
  });
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

find("invert").addEventListener("click", () => {
  const bytes = [...atob(state[state.active].pixels)].map((letter) => String.fromCharCode(255 - letter.charCodeAt(0)));
  see({ pixels: btoa(bytes.join("")) });
});
