"use strict";
// What both pages draw with. Text only ever enters a page as text.

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function choice(label, names, change) {
  const select = make("select", {}, ...names.map((name, i) => make("option", { value: i }, name)));
  select.addEventListener("change", () => change(Number(select.value)));
  return make("label", {}, `${label} `, select);
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// bars of counts along a spline, in a box; they share one scale with `most`
function bars(counts, box, most, attributes) {
  const width = box.width / counts.length;
  return counts.map((count, i) => {
    const height = (box.height * count) / (most || 1);
    return drawn("rect", {
      x: box.x + i * width, y: box.y + box.height - height, width: Math.max(width - 0.5, 0.5), height, ...attributes,
    });
  });
}

// from dark blue over grey to yellow, as in matplotlib's cividis
const CIVIDIS = [[0, 34, 78], [40, 63, 108], [87, 93, 109], [125, 124, 120], [165, 156, 116], [210, 193, 95], [254, 232, 56]];
function cividis(share) {
  const place = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const i = Math.min(Math.floor(place), CIVIDIS.length - 2);
  const mixed = CIVIDIS[i].map((c, k) => Math.round(c + (CIVIDIS[i + 1][k] - c) * (place - i)));
  return `rgb(${mixed.join(",")})`;
}

// purple above 0, orange below, white at 0; the numbers go from -100 to 100
function picture(values, rows) {
  const columns = values.length / rows;
  const canvas = make("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  values.forEach((value, i) => {
    const share = Math.min(Math.abs(value) / 100, 1);
    const end = value >= 0 ? [84, 39, 136] : [179, 88, 6];
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = 255 + (end[k] - 255) * share;
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

function pictures(filters, captions) {
  const figures = filters.values.map((values, i) =>
    make("figure", {}, picture(values, filters.rows), make("figcaption", {}, captions[i])));
  return make("div", { class: "pictures" }, ...figures);
}
