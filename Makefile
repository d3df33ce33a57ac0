# Tasks of a developer; .ci/run is what must pass before a change lands.
PYTHON := .venv/bin/python
CHECKOUT ?= ../before

.PHONY: help setup test unit release check docs pictures bits all
help:  ## name the tasks
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup:  ## make .venv with everything that tests and checks need
	python3 -m venv .venv
	.venv/bin/pip install --quiet -e ".[dev]"

test:  ## run the tests that the README's command runs
	$(PYTHON) -m pytest -n 2 --dist loadfile

unit:  ## run the tests of one part, in a minute and a half
	$(PYTHON) -m pytest -m unit -n 2 --dist loadfile

release:  ## run the long tests as well that CI runs
	$(PYTHON) -m pytest -m "not browser" -n 2 --dist loadfile

check:  ## lint, format and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright --pythonpath $(PYTHON)

docs:  ## write docs/configuration.md from the types that check it
	$(PYTHON) -m scripts.lab.reference > docs/configuration.md

pictures:  ## make the documents' pictures anew, in minutes; needs Chromium
	$(PYTHON) -m scripts.lab.pictures /tmp/pictures

bits:  ## train thirteen short runs in CHECKOUT (default: ../before) and here, and compare their bits
	$(PYTHON) scripts/same_bits.py --checkout $(CHECKOUT) --write /tmp/same_bits.json
	$(PYTHON) scripts/same_bits.py --expect /tmp/same_bits.json

all:  ## everything, in a fresh environment, as CI does
	.ci/run
