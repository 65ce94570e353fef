// Images of the user's own: drawn or uploaded.

function startPad() {
  const pad = find("pad"), context = pad.getContext("2d");
  const [ground, pen] = about.light ? ["#fff", "#000"] : ["#000", "#fff"];
  const empty = () => { context.fillStyle = ground; context.fillRect(0, 0, pad.width, pad.height); };
  Object.assign(context, { lineWidth: 12, lineCap: "round", lineJoin: "round", strokeStyle: pen });
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

find("invert").addEventListener("click", () => {
  const bytes = [...atob(state[state.active].pixels)].map((letter) => String.fromCharCode(255 - letter.charCodeAt(0)));
  see({ pixels: btoa(bytes.join("")) });
});
