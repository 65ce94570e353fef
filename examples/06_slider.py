"""A denoiser with a slider: a network that is told how much noise to take away, and a page to try it on.

python examples/06_slider.py [--quick]    writes slider.html, one file that loads nothing from outside
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import splinenets as sn

QUICK = "--quick" in sys.argv
STEPS, SETTINGS, PICTURES = (5, 3, 2) if QUICK else (600, 26, 6)
LEVELS, MOST = (15, 35, 60), 75  # of noise in the pictures of the page, and at all; in grey levels out of 255


def denoiser(width: int = 12) -> nn.Module:
    """Four convolutions that say what is noise, all of them on curves that are told how much there is."""
    sizes = [(1, width), (width, width), (width, width), (width, 1)]
    layers = [part for a, b in sizes for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())][:-1]
    return sn.condition(sn.convert(nn.Sequential(*layers), "D(5)-X-R4"), 0, MOST, name="noise")


def noisy(clean: Tensor, level: Tensor) -> Tensor:
    """(N, 1, H, W), (N,) -> (N, 1, H, W)."""
    return clean + torch.randn_like(clean) * (level / 255).view(-1, 1, 1, 1)


def train(net: nn.Module, clean: Tensor) -> None:
    """Adam on noise of every level."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(STEPS):
        part = clean[torch.randint(len(clean), (32,))]
        level = torch.rand(len(part)) * MOST
        seen = noisy(part, level)
        optimizer.zero_grad()
        F.mse_loss(seen - net(seen, level), part).backward()
        optimizer.step()


def quality(clean: Tensor, image: Tensor) -> float:
    """PSNR in dB."""
    return float(-10 * (clean - image.clamp(0, 1)).square().mean().log10())


def picture(image: Tensor) -> str:
    """(1, H, W) -> a PNG inside the page."""
    file = io.BytesIO()
    Image.fromarray((image[0].clamp(0, 1) * 255).round().byte().numpy()).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@torch.no_grad()
def row(net: nn.Module, clean: Tensor, level: float, settings: Tensor, name: str) -> dict[str, Any]:
    """One noisy picture, (1, H, W), and what becomes of it at each setting of the slider."""
    seen = noisy(clean.unsqueeze(0), torch.tensor([level]))
    after = seen - net(seen.expand(len(settings), -1, -1, -1), settings)
    pictures = {"clean": picture(clean), "seen": picture(seen[0]), "after": [*map(picture, after)]}
    dbs = {"seen_db": quality(clean, seen[0]), "db": [quality(clean, image) for image in after]}
    return {"level": level, "name": name, **pictures, **dbs}


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>A denoiser with a slider</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 760px; margin: 0 auto; padding: 1rem; }
.bar { position: sticky; top: 0; background: Canvas; padding: 0.5rem 0; } input { width: 100%; }
.row { display: grid; grid-template-columns: repeat(3, 1fr); gap: 0.75rem; margin: 0.75rem 0; font-size: 0.85rem; }
figure { margin: 0; } img { width: 100%; image-rendering: pixelated; } .best { outline: 3px solid #009e73; }
</style><h1>A denoiser with a slider</h1>
<p>One small network, whose weights lie on curves. The slider says how much noise to expect, and with it where on the
curves the weights are. A green frame marks the setting that is best for a picture: it lies near its true noise.</p>
<div class="bar"><label for="level">expected noise: <output id="told"></output> of 255 grey levels</label>
<input id="level" type="range" min="0" step="1"></div><div id="rows"></div>
<script type="application/json" id="data">DATA</script><script>
const find = (id) => document.getElementById(id), slider = find("level");
const { settings, rows } = JSON.parse(find("data").textContent);
const add = (to, tag, content) => to.appendChild(Object.assign(document.createElement(tag), content));
const figure = (box, src, text) => [add(box, "img", { src, alt: text }), add(box, "figcaption", { textContent: text })];
for (const row of rows) {
  const line = add(find("rows"), "div", { className: "row" }), boxes = [1, 2, 3].map(() => add(line, "figure"));
  figure(boxes[0], row.seen, `${row.name}, noise ${row.level}: ${row.seen_db.toFixed(1)} dB`);
  row.figure = figure(boxes[1], row.after[0], "");
  figure(boxes[2], row.clean, "without noise");
}
function show() {
  find("told").textContent = settings[slider.value].toFixed(0);
  for (const { figure: [image, caption], after, db } of rows) {
    image.src = after[slider.value];
    caption.textContent = image.alt = `denoised: ${db[slider.value].toFixed(1)} dB`;
    image.classList.toggle("best", db[slider.value] === Math.max(...db));
  }
}
Object.assign(slider, { max: settings.length - 1, value: Math.round(settings.length / 2) });
slider.addEventListener("input", show);
show();
</script></html>"""

torch.manual_seed(0)
data, net = sn.data.load("embedded"), denoiser()
train(net, data.train.images.float() / 255)
settings, tests = torch.linspace(0, MOST, SETTINGS), data.test.images.float() / 255
names = [data.classes[label] for label in data.test.labels[:PICTURES].tolist()]
rows = [row(net.eval(), tests[i], LEVELS[i % len(LEVELS)], settings, name) for i, name in enumerate(names)]
content = json.dumps({"settings": settings.tolist(), "rows": rows}).replace("<", "\\u003c")  # no text ends the block
path = Path(tempfile.mkdtemp() if QUICK else ".") / "slider.html"
path.write_text(PAGE.replace("DATA", content))
print(path, *(f"noise {r['level']}: {r['seen_db']:.1f} dB, then {max(r['db']):.1f} dB" for r in rows), sep="\n")
