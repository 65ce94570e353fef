"""Recipes as TOML files: those that ship with the package, and a user's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .parsing import nearest
from .recipe import Recipe, check_key, parse_override

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent.parent / "recipes"
DEFAULT_SCHEDULE = "fast"


def names() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_recipe(name: str, schedule: str = DEFAULT_SCHEDULE, overrides: Sequence[str] = (), **settings: Any) -> Recipe:
    """A recipe by name or by the path of a .toml file, with one of its schedules and some fields set.

    A file holds fields, and tables ``[schedule.NAME]`` of fields that belong to a schedule. ``overrides`` are texts
    such as "epochs=3", and come last; ``settings`` that are None are left alone.
    """
    path = _find(name)
    values = _read(path)
    schedules = values.pop("schedule", {})
    if not isinstance(schedules, Mapping) or not all(isinstance(table, Mapping) for table in schedules.values()):
        raise ValueError(f"{path}: schedule must hold tables such as [schedule.{DEFAULT_SCHEDULE}]")
    for chosen, table in schedules.items():
        for key in table:
            check_key(key, f"{path}, schedule {chosen!r}")
    if schedules and schedule not in schedules:
        raise ValueError(f"{path} has no schedule {schedule!r}{nearest(schedule, schedules)}")
    values |= schedules.get(schedule, {})
    values |= {key: value for key, value in settings.items() if value is not None}
    values |= dict(map(parse_override, overrides))
    values.setdefault("name", path.stem)
    return Recipe.from_dict(values, f"recipe {name!r}")


def _find(name: str) -> Path:
    shipped = FOLDER / f"{name}.toml"
    if name in names():
        return shipped
    path = Path(name).expanduser()
    if path.suffix == ".toml":
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):  # a name no file can have
            pass
        raise ValueError(f"there is no recipe file {name!r}; recipes that ship are {', '.join(names())}")
    raise ValueError(f"unknown recipe {name!r}{nearest(name, names())} A file of your own must end in .toml")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
