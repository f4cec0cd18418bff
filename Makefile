# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := build/demo
# One more than there are cores: tests of servers, browsers and processes wait much.
WORKERS := $(shell echo $$(($$(nproc 2>/dev/null || echo 1) + 1)))

.PHONY: demo test test-oldest audit fuzz check docs bench lock sbom clean

# Compiled modules are kept: the suite starts many interpreters.
unexport PYTHONDONTWRITEBYTECODE

# Four private models of scikit-learn's digits, trained once. Their average is released at ε = 4, 2, 1 and 0.5, each time with the
# noise that ε needs; all releases are verified, and together cost what the first one costs. Then how accurate such releases are
# beside models trained anew for each ε, and a picture of what every target would give.
EVEN := a=0.25,b=0.25,c=0.25,d=0.25
demo: $(VENV)/.demo
	@rm -rf $(DEMO)
	@mkdir -p $(DEMO)
	$(BIN)/dpmerge train lab/portfolios/knob.yaml --out $(DEMO)/portfolio
	$(BIN)/dpmerge plan $(DEMO)/portfolio --epsilon 2 --delta 1e-4
	$(BIN)/dpmerge ledger new $(DEMO)/ledger.db --dataset sklearn-digits-train-1437 --epsilon 4 --delta 1e-4
	@for epsilon in 4 2 1 0.5; do set -ex; \
	  $(BIN)/dpmerge merge $(DEMO)/portfolio --rule combination --weights $(EVEN) --epsilon $$epsilon --delta 1e-4 \
	    --ledger $(DEMO)/ledger.db --out $(DEMO)/released-$$epsilon; \
	done
	@for epsilon in 4 2 1 0.5; do set -ex; \
	  $(BIN)/dpmerge verify $(DEMO)/released-$$epsilon --portfolio $(DEMO)/portfolio --ledger $(DEMO)/ledger.db; \
	done
	$(BIN)/dpmerge ledger show $(DEMO)/ledger.db
	$(BIN)/dpmerge reproduce knob --out $(DEMO)/knob
	$(BIN)/dpmerge frontier $(DEMO)/portfolio --delta 1e-4 --evaluate centred_digits --out $(DEMO)/frontier

test: $(VENV)/.dev
	@mkdir -p build
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --cov --cov-report=
	@for room in profiles rules release; do \
	  $(BIN)/coverage report --include="src/dpmerge/$$room/*" --skip-covered --show-missing --fail-under=95 || exit 1; \
	done

# The watchdog of the suite, with more trials: every scenario attacked, one table and one picture (docs/soundness.md).
audit: $(VENV)/.dev
	$(BIN)/python -m dpmerge_lab.audit build/audit
	DPMERGE_SEARCH=15 $(BIN)/python -m pytest -q -n auto $$(grep -l EFFORT tests/test_*.py lab/tests/test_*.py)

# Changed files for every reader, and extreme records (docs/soundness.md): findings are written to build/fuzz. FUZZ=5000 is a start.
FUZZ ?= 1000000
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(FUZZ)
	$(BIN)/python -m tests.extreme_records $$(($(FUZZ) / 1000))

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if ! command -v npm >/dev/null; then echo "no npm here: the page's JavaScript is not checked"; \
	elif npm --prefix tools/page install --no-save --silent --no-audit --no-fund; then npm --prefix tools/page run --silent check; \
	else echo "the npm registry cannot be reached: the page's JavaScript is not checked"; fi

# The documentation as a site in build/site; a warning is an error.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# The tests of the core with the oldest versions that pyproject.toml allows, and nothing that only an extra needs: what needs more is
# skipped. `make test-oldest EXTRAS="explorer sklearn"` adds extras in their oldest versions. Old packages use what newer ones call old.
test-oldest: OLDEST := build/oldest
test-oldest: $(VENV)/.demo
	rm -rf $(OLDEST)
	$(PYTHON) -m venv $(OLDEST)
	$(BIN)/python tools/lock.py oldest core $(EXTRAS) > $(OLDEST)/oldest.txt
	grep -E '^(pytest|pytest-xdist|pytest-cov|hypothesis|httpx)==' constraints.txt > $(OLDEST)/tests.txt
	$(OLDEST)/bin/python -m pip install --quiet --requirement $(OLDEST)/oldest.txt --requirement $(OLDEST)/tests.txt --editable .
	$(OLDEST)/bin/python -m pip check
	$(OLDEST)/bin/python -m pytest -q -n $(WORKERS) -p tests.core_only -W ignore::DeprecationWarning tests

# Pins and hashes anew, after a change of pyproject.toml. A pin stays as constraints.txt has it: to renew one, delete its line first.
lock: $(VENV)/.dev
	$(BIN)/python tools/lock.py make

# The packages that dpmerge and its extras install, as CycloneDX: versions, hashes, licences, and who needs whom.
sbom: $(VENV)/.dev
	$(BIN)/python -m tools.sbom build/sbom.cdx.json

# Only files whose hashes requirements.txt lists are installed, and only packages that it lists.
install = $(BIN)/python tools/lock.py pick $(1) > $(VENV)/picked.txt && \
  $(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement $(VENV)/picked.txt $(2)

# pip, not uv: only pip finds the CPU build of torch that requirements.txt pins. The demo does without torch.
$(VENV)/.demo: pyproject.toml lab/pyproject.toml requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,pip)
	$(call install,core build plots explorer lab)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . --editable lab
	@touch $@

# A CPU build of torch is taken first if pip is set to look in a folder that holds one (find-links): beside an index pip would prefer
# the index's build, whose hash it knows before it reads the file. That is the build for CUDA, which also needs NVIDIA's libraries.
$(VENV)/.dev: $(VENV)/.demo
	$(call install,cpu,--no-index) 2>/dev/null || echo "no CPU build of torch with a locked hash in a folder that pip knows"
	$(call install,dev lab-torch)
	if $(BIN)/python -m pip show torch | grep -q nvidia; then $(call install,cuda); fi
	$(BIN)/python -m pip check
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
