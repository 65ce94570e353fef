"""From what a user names to a recipe: one that ships, a TOML file, or images, from which the rest is then decided."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..data.listing import CSV_PREFIX, FOLDER_PREFIX, is_listed
from ..tables import text_table
from .fitting import Choice, Survey, fit
from .recipe import Recipe, check_key, nearest, parse_override, renamed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = Path(__file__).parent.parent / "recipes"
DEFAULT_SCHEDULE = "fast"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A recipe, and which of its fields nobody has set: what they were set to, and why.

    ``seen`` is what the choices rest on, where the images are a user's own.
    """

    recipe: Recipe
    choices: Mapping[str, Choice]
    seen: Survey | None = None

    def going_on(self, earlier: Recipe) -> Draft:
        """The same, where nobody has set a field, as a run was begun that is to go on: images may have been added."""
        values = {key: getattr(earlier, key) for key in self.choices}
        return Draft(recipe=replace(self.recipe, **values), choices={})

    def __str__(self) -> str:
        body = [(key, choice.text, choice.reason) for key, choice in self.choices.items()]
        table = text_table(("not set", "chosen", "because"), body)
        return table if self.seen is None else f"{self.recipe.data}: {self.seen}\n\n{table}"


def load_recipe(
    name: str, schedule: str = DEFAULT_SCHEDULE, overrides: Sequence[str] = (), **settings: object
) -> Recipe:
    """The recipe of this name, of a .toml file, or for images (folder:PATH or FILE.csv), with some fields set.

    A file holds fields, and tables ``[schedule.NAME]`` of fields that belong to a schedule. ``overrides`` are texts
    such as "epochs=3", and win over the rest; ``settings`` that are None are ignored. For a folder or a CSV file, what
    nobody has set is chosen to fit the images.
    """
    return draft_recipe(name, schedule, overrides, **settings).recipe


def draft_recipe(
    name: str, schedule: str = DEFAULT_SCHEDULE, overrides: Sequence[str] = (), **settings: object
) -> Draft:
    """The same, with the reasons for what was chosen."""
    values = image_values(name) or file_values(find_recipe(name), schedule)
    values |= {key: value for key, value in settings.items() if value is not None}
    values |= dict(map(parse_override, overrides))
    recipe = Recipe.from_dict(values, f"recipe {name!r}")
    fitting = fit(recipe, values)
    return Draft(recipe=fitting.recipe, choices=fitting.choices, seen=fitting.seen)


def image_values(name: str) -> dict[str, object]:
    """What the name of a folder or CSV file says: its data, and what its runs are called; of another name, nothing."""
    data = f"{CSV_PREFIX}{name}" if name.lower().endswith(".csv") and not is_listed(name) else name
    return {"data": data, "name": Path(data.partition(":")[2]).absolute().stem or "images"} if is_listed(data) else {}


def file_values(path: Path, schedule: str) -> dict[str, object]:
    """The fields in a recipe's file, with those of one of its schedules."""
    values = renamed(read_toml(path))
    schedules = values.pop("schedule", {})
    if not isinstance(schedules, Mapping) or not all(isinstance(table, Mapping) for table in schedules.values()):
        raise ValueError(f"{path}: schedule must hold tables such as [schedule.{DEFAULT_SCHEDULE}]")
    schedules = {chosen: renamed(table) for chosen, table in schedules.items()}
    for chosen, table in schedules.items():
        for key in table:
            check_key(key, f"{path}, schedule {chosen!r}")
    if schedules and schedule not in schedules:
        raise ValueError(f"recipe {path.stem!r} has no schedule {schedule!r}{nearest(schedule, schedules)}")
    return {"name": path.stem} | values | schedules.get(schedule, {})


def recipe_names() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file of a recipe that ships, or of a user's own."""
    shipped = RECIPES / f"{name}.toml"
    if name in recipe_names():
        return shipped
    path = Path(name).expanduser()
    if path.suffix == ".toml":
        if answers(path.is_file):
            return path
        raise ValueError(
            f"there is no recipe file {name!r}; the recipes of the package are {', '.join(recipe_names())}"
        )
    if answers(path.is_dir):
        raise ValueError(f"{name!r} is a folder: to train on the images in it, say {FOLDER_PREFIX}{name}")
    hint = nearest(name, recipe_names())
    raise ValueError(
        f"unknown recipe {name!r}{hint}{'' if hint.endswith('?') else '.'} "
        f"A recipe of your own is a .toml file; images are {FOLDER_PREFIX}PATH or FILE.csv"
    )


def answers(question: Callable[[], bool]) -> bool:
    """What is asked of a path; False of a name that no file can have."""
    try:
        return question()
    except (OSError, ValueError):
        return False


def read_toml(path: Path) -> dict[str, object]:
    """What a TOML file holds."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of TOML, of UTF-8, or of a number with more digits than Python reads
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a recipe: its values are nested too deeply") from None
