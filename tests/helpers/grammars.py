"""Grammars of what people type: recipes, command lines, specs."""

import json

from hypothesis import strategies as st

from splinenets.training.recipe import recipe_types

KEYS = sorted(recipe_types())
junk = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
numbers = st.one_of(st.integers(), st.floats()).map(str)
words = st.sampled_from(["", "static", "D(5)-C-R3", "true", "1,2", "0.5,0.5", "-1", "1e999", "nan", "steps", "resnet"])
tokens = st.one_of(
    st.sampled_from(
        ["--model", "--seed", "--set", "--schedule", "--resum", "--tracker", "-x", "--", "static", "epochs=2"]
    ),
    junk,
    numbers,
)
values = st.recursive(
    st.one_of(st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), junk),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
tables = st.dictionaries(st.one_of(st.sampled_from([*KEYS, "schedule"]), junk), values, max_size=3)
toml = st.one_of(tables.map(lambda t: "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in t.items())), junk)

# Specs, right ones and nearly right ones

sizes = st.one_of(st.integers(-1, 9), st.sampled_from([10, 50, 300, 1000, 10**6, 10**9, 10**20]))
reals = st.one_of(
    st.floats(0, 2), st.sampled_from(["nan", "inf", "-1", "1e38", "1e300", "1e-300", "0", "tree(2)", "x"])
)
heads = st.builds(
    "{}({})-{}-{}".format,
    st.sampled_from(["D", "H", "D", "H", "Z", ""]),
    sizes,
    st.sampled_from(["C", "D", "C", "D", "X", "Q"]),
    st.sampled_from(["R3", "R4", "G2", "R3", "G0", "G7", "G99999999999", "R"]),
)
options = st.one_of(
    st.builds("{}={}".format, st.sampled_from(["degree", "dims"]), sizes),
    st.builds("{}={}".format, st.sampled_from(["diffusion", "slope", "variance"]), reals),
    st.sampled_from(["raw", "independent", "closed", "closed=1", "raw raw"]),
    junk,
)
specs = st.one_of(st.builds(lambda h, o: " ".join([h, *o]), heads, st.lists(options, max_size=3)), junk)
