# Everything runs in .venv, which is made from requirements.lock when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo docs test test-all campaign bench tables outputs lint format lock browser clean

demo: $(READY)
	@$(BIN)/python examples/demo.py

test: lint
	@$(BIN)/python -m pytest

test-all: lint
	@$(BIN)/python -m pytest -m "slow or not slow"

# hours of attacks on everything, docs/reliability.md; stopped, it goes on where it was. WHAT="--chapter faults" for a part
campaign: $(READY)
	@$(BIN)/python -m campaign $(WHAT)

# the site, into site/; a warning is an error
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# what the blocks of tutorials print, run anew and written below them
outputs: $(READY)
	@$(BIN)/python -m benchmarks.outputs

bench: $(READY)
	@$(BIN)/python -m benchmarks.engine
	@$(BIN)/python -m benchmarks.regularizer

# every table and drawn figure of the docs, from benchmarks/results
tables: $(READY)
	@$(BIN)/python -m benchmarks.tables

lint: $(READY)
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# exact versions for every supported Python, from the lower bounds in pyproject.toml; needs uv
lock:
	@echo "torch==2.13.0" | uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 --quiet \
		--no-header --no-annotate --constraint /dev/stdin --output-file requirements.lock

# what the tests of pages need; they are skipped without it. On Debian, as root
browser:
	@apt-get install --yes --no-install-recommends chromium fonts-dejavu-core > /dev/null

$(READY): pyproject.toml requirements.lock
	@echo "installing into .venv ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable ".[dev]"
	@touch $(READY)

clean:
	@rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
