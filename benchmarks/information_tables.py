"""The tables and the figure of docs/regularizer.md, from what benchmarks.information and .regularizer measured.

python -m benchmarks.information_tables    writes both where they belong
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
LAYERS = ("conv1", "conv2", "dense1", "dense2")


def results(name: str) -> list[Row]:
    return list(json.loads((RESULTS / f"{name}.json").read_text())["rows"])


def how(row: Row) -> str:
    """The gradient of a row, in words."""
    kind = "kernel" if row.get("estimator") == "kernel" else "bins"
    exact = ", exact gradient" if row.get("exact_gradient") else ""
    return f"{kind}{exact}"


def whom(row: Row) -> str:
    if not row["utilization"]:
        return "no regulariser"
    return f"{how(row)}, {'features too' if row.get('full_gradient') else 'projections only'}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def per_layer(key: str, form: Callable[[float], str]) -> dict[str, Callable[[Row], str]]:
    def cell(layer: str) -> Callable[[Row], str]:
        return lambda row: form(row[key][layer])

    return {layer: cell(layer) for layer in LAYERS}


def total_bits(row: Row) -> str:
    return f"{sum(row['bits'].values()):.2f}"


def bits(value: float) -> str:
    return f"{value:.2f}"


def spec(row: Row) -> str:
    return f"`{row.get('spec', 'D(5)-D-R3')}`"


def accuracy(row: Row) -> str:
    return percent(row["accuracy"])


# Experiment -> {heading: what to write of a row}
TABLES: dict[str, dict[str, Callable[[Row], str]]] = {
    "utilization": {
        "spec": spec,
        "utilization": lambda r: f"{r['utilization']:g}",
        **per_layer("entropy", percent),
        "accuracy %": accuracy,
    },
    "specialization": {
        "estimator": how,
        "specialization": lambda r: f"{r['specialization']:g}",
        **per_layer("bits", bits),
        "all": total_bits,
        "accuracy %": accuracy,
    },
    "gradients": {
        "gradient": how,
        "weights": lambda r: f"{r['utilization']:g} / {r['specialization']:g}",
        **per_layer("entropy", percent),
        "bits in all": total_bits,
        "accuracy %": accuracy,
    },
    "stability": {
        "spec": spec,
        "learning rate": lambda r: f"{r.get('rate', 0.05):g}",
        "regulariser": whom,
        "stable": lambda r: f"{r['stable']} of {r['of']}",
        "accuracy %": accuracy,
    },
    "remedies": {
        "spec": spec,
        "learning rate": lambda r: f"{r.get('rate', 0.05):g}",
        "clipped": lambda r: f"{r['clip']:g}" if "clip" in r else "no",
        "regulariser": whom,
        "stable": lambda r: f"{r['stable']} of {r['of']}",
        "accuracy %": accuracy,
    },
    "histograms": {
        "spec": spec,
        "B": lambda r: str(r["bins"]),
        "distance from uniform": lambda r: f"{r['distance']:.3f}",
        "three seeds": lambda r: ", ".join(f"{d:.3f}" for d in r["runs"]),
    },
    "bias": {
        "samples": lambda r: str(r["samples"]),
        "bins": lambda r: f"{r['bins']:.2f}",
        "kernel": lambda r: f"{r['kernel']:.2f}",
        "`sn.health`": lambda r: f"{r['health']:.2f}",
    },
    "unlabelled": {
        "training": lambda r: (
            "none"
            if "untrained" in r
            else f"utilisation {r['utilization']:g} alone"
            if r["views"] == 1
            else f"{how(r)}, two views, {r['utilization']:g} / {r['specialization']:g}"
        ),
        "bits about labels, all layers": total_bits,
        "distance of two views": lambda r: f"{r['between_views']:.3f}",
        "of two images": lambda r: f"{r['between_images']:.3f}",
        "5 nearest neighbours right %": lambda r: percent(r["nearest_neighbours"]),
    },
}


def table(name: str) -> str:
    """One experiment as markdown."""
    columns = TABLES[name]
    rows = [[write(row) for write in columns.values()] for row in results(f"information_{name}")]
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def added(row: Row, estimator: str) -> str:
    """The fastest step against the fastest, and the median over turns."""
    return f"{100 * row[estimator]['fastest']:+.1f} ({100 * row[estimator]['wall']:+.1f})"


def cost() -> str:
    """What the term adds to a step, from what benchmarks.regularizer measured."""
    lines = [["network", "step, ms", "bins add %", "kernels add %", "bins alone, ms", "kernels alone, ms", "at most %"]]
    lines.append(["---"] * len(lines[0]))
    for precision in ("float32", "bf16"):
        for row in results(f"regularizer_{precision}_2_threads"):
            alone = [f"{row[name]['alone_ms']:.1f}" for name in ("bins", "kernel")]
            shares = [added(row, name) for name in ("bins", "kernel")]
            step = f"{row['step_ms']:.0f}"
            lines.append([f"{row['case']}, {precision}", step, *shares, *alone, f"{100 * row['most']:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure() -> str:
    """The paper's figure 6 as an SVG: a histogram for each number of bins, standardised above raw projections."""
    rows = results("information_histograms")
    across = len(rows) // 2
    width, height, gap, margin = 200, 120, 24, 12
    parts = []
    for i, row in enumerate(rows):
        line = i // across
        left, bottom = margin + (i % across) * (width + gap), margin + height + line * (height + 3 * gap)
        # one scale for the panels of a line
        tallest = max(share for other in rows[line * across : (line + 1) * across] for share in other["picture"])
        for j, share in enumerate(row["picture"]):
            bar = share / tallest * height
            parts.append(f'<rect x="{left + 4 * j}" y="{bottom - bar:.1f}" width="3.5" height="{bar:.1f}"/>')
        even = bottom - 0.02 / tallest * height
        parts.append(f'<path class="even" d="M{left} {even:.1f}h{width}"/>')
        parts.append(f'<path d="M{left} {bottom}h{width}"/>')
        kind = "raw" if "raw" in row["spec"] else "standardised"
        parts.append(f'<text x="{left}" y="{bottom + 15}">0</text>')
        parts.append(f'<text x="{left + width}" y="{bottom + 15}" text-anchor="end">1</text>')
        middle, below = left + width // 2, bottom + 34
        label = f"B = {row['bins']}, {kind}: {row['distance']:.3f}"
        parts.append(f'<text x="{middle}" y="{below}" text-anchor="middle">{label}</text>')
    wide, high = 2 * margin + across * (width + gap) - gap, 2 * margin + 2 * (height + 3 * gap) - gap
    style = "rect{fill:#4878a8}path{stroke:#888;fill:none}.even{stroke:#c44}text{font:13px sans-serif;fill:#444}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">',
            f"<style>{style}</style>",
            f'<rect width="{wide}" height="{high}" style="fill:#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def filled(text: str) -> str:
    """A page with every table between its marks written anew."""

    def write(match: re.Match[str]) -> str:
        return f"{match[1]}\n{table(match[2])}\n{match[3]}"

    text = re.sub(r"(<!-- information (\w+) -->)\n.*?(<!-- end -->)", write, text, flags=re.DOTALL)
    return re.sub(r"(?<=<!-- cost -->\n).*?(?=<!-- end -->)", cost() + "\n", text, flags=re.DOTALL)


def main() -> None:
    page = DOCS / "regularizer.md"
    page.write_text(filled(page.read_text()))
    (DOCS / "figures").mkdir(exist_ok=True)
    (DOCS / "figures" / "position_histograms.svg").write_text(figure())


if __name__ == "__main__":
    main()
