"""What came out of an experiment, beside the paper's numbers, as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from .experiments import Experiment
from .record import Result, read_result

NOT_YET = "not run yet"
Found = Mapping[int, Result]  # by seed


def collect(experiment: Experiment, folder: Path) -> dict[str, Found]:
    """All results of an experiment that are in a folder: row -> seed -> result."""
    found: dict[str, Found] = {}
    for row in experiment.rows:
        results = [read_result(file) for file in folder.glob(f"{row.slug}-seed*.json")]
        found[row.name] = {r.recipe["seed"]: r for r in sorted(results, key=lambda r: int(r.recipe["seed"]))}
    return found


def table(experiment: Experiment, results: Mapping[str, Found]) -> str:
    """A line for each row, from row -> seed -> result; a row without results says so."""
    head = ["network", "paper", "test accuracy, %", "over its static twin", "seeds", "epochs", "parameters", "MACs"]
    head += [f"{layer}: entropy, bits about labels" for layer in experiment.layers]
    lines = [head, ["---"] * len(head)]
    for row in experiment.rows:
        found = results.get(row.name, {})
        paper = "" if row.paper is None else f"{row.paper:.2f}"
        cells = _cells(found, results.get(row.twin, {}), experiment.layers) if found else [NOT_YET]
        cells += [""] * (len(head) - 2 - len(cells))
        lines.append([row.name, paper, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: Sequence[float], sign: str = "") -> str:
    """Mean, and standard deviation where there are several values."""
    return f"{mean(values):{sign}.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _cells(found: Found, twin: Found, layers: Sequence[str]) -> list[str]:
    some = next(iter(found.values()))
    # twins are compared seed by seed: they share first weights, batches and augmentation
    gains = [100 * (result.accuracy - twin[seed].accuracy) for seed, result in found.items() if seed in twin]
    return [
        spread([100 * result.accuracy for result in found.values()]),
        _gain(gains),
        str(len(found)),
        str(len(some.epochs)),
        f"{some.parameters:,}",
        f"{some.macs:,}",
        *(_positions(found, layer) for layer in layers),
    ]


def _gain(gains: Sequence[float]) -> str:
    each = f" ({', '.join(f'{gain:+.2f}' for gain in gains)})" if len(gains) > 1 else ""
    return spread(gains, "+") + each if gains else ""


def _positions(found: Found, layer: str) -> str:
    rows = [row for result in found.values() for row in result.layers if row["layer"] == layer]
    if not rows:
        return ""
    return f"{mean(row['entropy'] for row in rows):.2f}, {mean(row['information'] for row in rows):.2f}"
