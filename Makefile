# `make demo` and `make test` need nothing but Python 3.11 or newer and make; the first run installs into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test check docs pictures app lock sbom clean

demo: $(INSTALLED)
	$(BIN)/bottlegan demo --out demo

test: $(INSTALLED)
	$(BIN)/pytest -n 2

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

# Into site/, to be opened from there. A broken link, an unlisted anchor or a missing page stops it.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'Open site/index.html.'

# Screenshots and the real slide, anew: make pictures SLIDE=CMU-1-Small-Region.svs [RUN=folder of a federation's run]
pictures: $(INSTALLED)
	$(BIN)/python docs/pages/pictures.py $(SLIDE) $(if $(RUN),--run $(RUN))

# torch comes first and alone: a range in another package would otherwise pull in a newer build with all of CUDA.
$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("BottleGAN needs Python 3.11 or newer: set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.lock)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# The Flower app holds every setting with its default, because `flwr run` changes only what is there.
app: $(INSTALLED)
	$(BIN)/python -c "from bottlegan.federated.deploy.consortium import *; write_app(Path('apps/federation'), FederationConfig(), ServerConfig())"

# Resolve the newest versions that fit together, and write them down without any index address.
lock: $(INSTALLED)
	echo 'torch==2.13.0' > .venv/torch.txt
	CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/pip-compile --quiet --upgrade --all-extras --strip-extras --no-allow-unsafe \
		--no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
		--constraint .venv/torch.txt --output-file requirements.lock pyproject.toml
	sed -i "s/^\(torch==[^+]*\).*/\1/" requirements.lock

# A software bill of materials, in CycloneDX's JSON, of all that the lock pins.
sbom:
	$(PYTHON) containers/sbom.py sbom.cdx.json

clean:
	rm -rf .venv demo site example-output sbom.cdx.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
