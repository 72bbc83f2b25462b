# Every target works from a clean clone, as root and as an ordinary user: it makes what it needs first. `make help`.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all resilience check bench environment clean

BIN := .venv/bin
EXTRAS := test,test-more,demo,check

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

environment:
	@.ci/servers
	@.ci/venv .venv "$$(.ci/interpreters first)" $(EXTRAS)

demo: environment  ## see it work: the same load without and with protection, on real servers
	@$(BIN)/bulkhead demo

test: environment  ## every test on one interpreter (under 10 minutes)
	@$(BIN)/python -m pytest --numprocesses=3 --dist=worksteal --cov --cov-report=term $(ARGS)

test-all: environment  ## every test on every interpreter found, with full counts (under 60 minutes); what CI runs
	@.ci/run-all

resilience: environment  ## only the tests with a bad network or a hanging server
	@$(BIN)/python -m pytest -m resilience $(ARGS)

check: environment  ## lint, format, layers, types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/pyright --pythonpath $(BIN)/python

bench: environment  ## the budgets: ratios to peers, measured in the same run
	@$(BIN)/python tests/benchmarks $(ARGS)

clean:  ## remove environments and caches
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*
