# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check bench clean

demo: $(STAMP)
	@$(BIN)/dpmerge compare $$($(BIN)/python -c "import dpmerge; print(dpmerge.example_portfolio())") \
	    --weights mnist-c1-s0.5=0.025,mnist-c2-s0.5=0.025,mnist-c1-s2=0.95 --delta 1e-5

test: $(STAMP)
	$(BIN)/python -m pytest -q -n auto

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# pip, not uv: only pip finds the CPU build of torch that constraints.txt pins for the torch extra.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
