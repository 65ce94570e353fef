"""The tables of docs/performance.md, from what benchmarks.engine measured.

python -m benchmarks.engine_tables    writes them where they belong
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

from .engine import FORMS, KNOTS, RESULTS, SPECS

Results: TypeAlias = dict[str, Any]
PAGE = RESULTS.parent.parent.parent / "docs" / "performance.md"
TITLES = {"resnet32": "Spline-ResNet-32", "lenet32": "Spline-LeNet-32"}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times(results: Results, network: str, mode: str, batch: int, numbers: str, row: str) -> dict[str, float]:
    """The measured group that has this row."""
    want = {"network": network, "mode": mode, "batch": batch, "numbers": numbers}
    found = (t["seconds"] for t in results["times"] if all(t[k] == v for k, v in want.items()) and row in t["seconds"])
    return dict(next(found))


def training(results: Results) -> str:
    header = ["", *FORMS, "ours over bank", "plain, images/s"]
    rows = []
    for network, specs in SPECS.items():
        for spec in specs:
            seconds = times(results, network, "training", 250, "bf16", f"{spec} ours")
            cells = [f"{seconds['plain'] / seconds[f'{spec} {form}']:.2f}" for form in FORMS]
            over = seconds[f"{spec} bank"] / seconds[f"{spec} ours"]
            rows.append([f"{TITLES[network]} `{spec}`", *cells, f"{over:.1f}", f"{250 / seconds['plain']:,.0f}"])
    return markdown(header, rows)


def grid(results: Results, mode: str, cases: list[tuple[int, str]]) -> str:
    header = ["", "", *(f"batch {batch}, {numbers}" for batch, numbers in cases)]
    rows = []
    for network, specs in SPECS.items():
        for spec in specs:
            for form in FORMS:
                row = f"{spec} {form}"
                cells = []
                for batch, numbers in cases:
                    seconds = times(results, network, mode, batch, numbers, row)
                    cells.append(f"{seconds['plain'] / seconds[row]:.2f}")
                rows.append([f"{TITLES[network]} `{spec}`", form, *cells])
    return markdown(header, rows)


def knots(results: Results) -> str:
    seconds = times(results, "resnet32", "training", 250, "bf16", "D(20)-C-R4 ours")
    rows = []
    for rank in ("R4", "R3"):
        cells = [f"{seconds[f'D({k})-C-{rank} ours'] / seconds[f'D(5)-C-{rank} ours']:.2f}" for k in KNOTS]
        rows.append([f"`D(K)-C-{rank}`", *cells])
    return markdown(["", *(f"K = {k}" for k in KNOTS)], rows)


def memory(results: Results) -> str:
    rows = []
    for entry in results["memory"]:
        sizes = entry["bytes"]
        for spec in SPECS[entry["network"]]:
            cells = [f"{sizes[f'{spec} {form}'] / sizes['plain']:.2f}" for form in FORMS]
            rows.append([f"{TITLES[entry['network']]} `{spec}`", *cells, f"{sizes['plain'] / 2**20:.0f}"])
    return markdown(["", *FORMS, "plain, MB"], rows)


def filled(text: str) -> str:
    """The page with its tables as the results have them."""
    results = json.loads(RESULTS.read_text())
    some = [(32, "bf16"), (1, "bf16"), (250, "float32"), (32, "float32"), (1, "float32")]
    tables = {
        "training": training(results),
        "training-small": grid(results, "training", some),
        "knots": knots(results),
        "inference": grid(results, "inference", [(250, "bf16"), *some]),
        "memory": memory(results),
    }
    for name, table in tables.items():
        pattern = rf"(<!-- engine {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
