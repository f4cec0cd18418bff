# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := build/demo

.PHONY: demo test audit check docs bench clean

# Compiled modules are kept: the suite starts many interpreters.
unexport PYTHONDONTWRITEBYTECODE

# Three private models of scikit-learn's digits; the best average for (2, 1e-4), released, entered in a ledger, and
# verified; then a picture of what every target would give.
demo: $(VENV)/.demo
	@rm -rf $(DEMO)
	@mkdir -p $(DEMO)
	$(BIN)/dpmerge train lab/portfolios/digits.yaml --out $(DEMO)/portfolio
	$(BIN)/dpmerge plan $(DEMO)/portfolio --epsilon 2 --delta 1e-4
	$(BIN)/dpmerge ledger new $(DEMO)/ledger.db --dataset sklearn-digits-train-1437 --epsilon 8.5 --delta 1e-4
	$(BIN)/dpmerge merge $(DEMO)/portfolio --rule combination --epsilon 2 --delta 1e-4 --ledger $(DEMO)/ledger.db --out $(DEMO)/released
	$(BIN)/dpmerge verify $(DEMO)/released --portfolio $(DEMO)/portfolio --ledger $(DEMO)/ledger.db
	$(BIN)/dpmerge frontier $(DEMO)/portfolio --delta 1e-4 --evaluate digits --out $(DEMO)/frontier

test: $(VENV)/.dev
	@mkdir -p build
	$(BIN)/python -m pytest -q -n auto --dist loadgroup --cov --cov-report=
	@for room in profiles rules release; do \
	  $(BIN)/coverage report --include="src/dpmerge/$$room/*" --skip-covered --show-missing --fail-under=95 || exit 1; \
	done

# The watchdog of the suite, with more trials: every scenario attacked, one table and one picture (docs/soundness.md).
audit: $(VENV)/.dev
	$(BIN)/python -m dpmerge_lab.audit build/audit
	DPMERGE_SEARCH=10 $(BIN)/python -m pytest -q -n auto $$(grep -l EFFORT tests/test_*.py lab/tests/test_*.py)

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

# pip, not uv: only pip finds the CPU build of torch that constraints.txt pins. The demo does without torch.
$(VENV)/.demo: pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[plots,explorer]" --editable lab
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable "lab[torch]"
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
