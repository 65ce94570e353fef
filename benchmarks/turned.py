"""Networks on turned images: tables of what ``splinenets reproduce turned`` leaves."""

from __future__ import annotations

from statistics import mean

from benchmarks.claims import results_of
from benchmarks.timing import markdown
from splinenets.reproduce import EXPERIMENTS
from splinenets.reproduce.experiments import SECTORS
from splinenets.reproduce.outcome import Found, spread

EACH = "degrees"  # rows of networks that know a few angles alone end so
ALL = f"{len(SECTORS)} networks LeNet-4, one for each {360 // len(SECTORS)} degrees"


def turned() -> str:
    """Accuracy and cost, a line for each network; those for a few angles share one."""
    found = results_of("turned")
    own = next(iter(found["LeNet-4, told by a curve"].values())).macs
    lines = [
        _line(row.name, found[row.name], own)
        for row in EXPERIMENTS["turned"].rows
        if found[row.name] and not row.name.endswith(EACH)
    ]
    return markdown(
        ["network", "test accuracy, %", "seeds", "MACs", "over a told LeNet-4", "parameters"],
        [*lines, *_each(found, own)],
    )


def _line(name: str, found: Found, own: int) -> list[str]:
    some = next(iter(found.values()))
    accuracy = spread([100 * result.accuracy for result in found.values()])
    return [name, accuracy, str(len(found)), f"{some.macs:,}", f"{some.macs / own:.2f}", f"{some.parameters:,}"]


def _each(found: dict[str, Found], own: int) -> list[list[str]]:
    sectors = [seeds for name, seeds in found.items() if name.endswith(EACH)]
    complete = sorted(set.intersection(*(set(seeds) for seeds in sectors)))
    if not complete:
        return []
    accuracy = spread([100 * mean(seeds[seed].accuracy for seeds in sectors) for seed in complete])
    some = sectors[0][complete[0]]
    size = f"{len(sectors) * some.parameters:,}"
    return [[ALL, accuracy, str(len(complete)), f"{some.macs:,}", f"{some.macs / own:.2f}", size]]
