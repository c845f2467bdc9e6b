# One command each; `make help` lists them. All of them use .venv, which `python3 bootstrap.py dev` makes and fills.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed[dev]

.DEFAULT_GOAL := help
.PHONY: help demo test quick slow all lint types format bench chaos fuzz explore games binary console pictures docs site guides sdks lock psycopg sizes release clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## run the sample workflow from nothing to its end
	@$(PYTHON) bootstrap.py demo

test: ## the quick tests
	@$(PYTHON) bootstrap.py test -q

quick: test ## the same

slow: ## the other tests, but for chaos
	@$(PYTHON) bootstrap.py test --slow -q

all: ## both
	@$(PYTHON) bootstrap.py test --all -q

lint: $(INSTALLED) ## ruff (rules and format) and the layering contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED) ## mypy strict and pyright strict on src
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(INSTALLED) ## put everything into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## the benchmarks, with their calibration
	@$(BIN)/python -m benchmarks

chaos: $(INSTALLED) ## attack running engines in every way there is and check the guarantees; ARGS='--seconds 600'
	@$(BIN)/python -m chaos $(ARGS)

fuzz: $(INSTALLED) ## the parsers on inputs that nobody has tried, their work counted; FUZZ=20000
	@FUZZ=$(or $(FUZZ),5000) PENSTOCK_EXPLORE=1 $(BIN)/python -m pytest -q -n auto --maxprocesses=4 --dist=worksteal --timeout=0 tests/fuzz

explore: $(INSTALLED) ## the property tests, each on examples that nobody has tried
	@PENSTOCK_EXPLORE=1 $(BIN)/python -m pytest -q -n auto --maxprocesses=4 --dist=worksteal -m hypothesis

games: $(INSTALLED) ## random workflows against a model, in the database and over REST; GAMES=2000 FROM=0
	@$(BIN)/python -m pytest -q --timeout=0 -m chaos tests/model/test_games_in_database.py
	@PENSTOCK_REST_GAMES=$(or $(GAMES),2000) PENSTOCK_REST_GAMES_FROM=$(or $(FROM),0) \
	  $(BIN)/python -m pytest -q --timeout=0 tests/model/test_games_over_rest.py

binary: $(INSTALLED) ## one executable file in dist/ that needs no Python
	@$(BIN)/python tools/binary.py

console: $(INSTALLED) ## the web console's files in src/penstock/console/static; needs Node >= 20.19
	@cd console && npm ci --ignore-scripts --no-audit --no-fund && npm run build

pictures: $(INSTALLED) ## the console's pages as pictures, in docs/images/console; needs Chromium
	@$(BIN)/python -m tests.browser.pictures

docs: $(INSTALLED) ## the pages and sources that are written from others
	@$(BIN)/python tools/docs.py

site: $(INSTALLED) ## the documentation as a site in build/site; installs mkdocs-material
	@$(BIN)/python -m pip install -q -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

guides: $(INSTALLED) ## what docs/ tells operators to do, done from an empty directory; GUIDES='quickstart walkthrough'
	@$(BIN)/python tools/guides.py $(GUIDES)

sdks: $(INSTALLED) ## the generated code of sdks/go and sdks/typescript; needs Go and Node
	@tools/generate_sdks.sh

lock: $(INSTALLED) ## locks/ anew: newer versions of what is installed, by their hashes
	@$(BIN)/python tools/lock.py

psycopg: $(INSTALLED) ## the cancellation suites over psycopg's versions that the engine may run on
	@$(BIN)/python tools/psycopg_versions.py

sizes: $(INSTALLED) ## docs/installation.md: what an installation costs
	@$(BIN)/python tools/sizes.py

release: $(INSTALLED) ## a release in dist/release, built and checked; ARGS=--short is what CI runs of it
	@$(BIN)/python tools/release.py $(ARGS)

clean: ## what the other targets made, .venv included
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(INSTALLED): pyproject.toml $(wildcard locks/*)
	@$(PYTHON) bootstrap.py dev
