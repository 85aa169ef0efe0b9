# Every target makes .venv when it is missing; PYTHON chooses the interpreter it is made with.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow check bench bench-gpu fuzz mutants docs clean

demo: .venv/ready
	$(BIN)/ytilde demo --out demo

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

bench-gpu: .venv/ready
	$(BIN)/python benchmarks/gpu_throughput.py
	$(BIN)/python benchmarks/beside.py
	$(BIN)/python benchmarks/gpu_profile.py
	$(BIN)/python benchmarks/gpu_equals_cpu.py

fuzz: .venv/ready
	YTILDE_FUZZ=10000 $(BIN)/python -m pytest -n 2 --dist load tests/test_fuzz.py tests/test_filesystem.py

# For developers: changes of the code that a module's own tests do not notice.
# make mutants MODULES="transition elr" N=10
N ?= 4
mutants: .venv/ready
	$(BIN)/python tests/mutants.py -n $(N) $(MODULES)

# The site, in site/: made pages, examples that run, and a look at the links of what came out.
docs: .venv/ready
	$(BIN)/python docs/make.py
	$(BIN)/python -m sphinx -b html -j 2 -W --keep-going -q -d build/doctrees docs site
	$(BIN)/python -m pytest -q tests/test_site.py

clean:
	rm -rf .venv demo build site .pytest_cache .mypy_cache .ruff_cache src/*.egg-info

.venv/ready: pyproject.toml constraints.txt
	@echo "making .venv: torch is the largest part of what is fetched, and takes a minute or more"
	$(PYTHON) -m venv .venv
ifdef HASHES
	$(PIP) --require-hashes --no-deps -r .ci/requirements.txt
endif
	$(PIP) -c constraints.txt setuptools torch
	$(PIP) -c constraints.txt --no-build-isolation -e ".[dev,docs,parquet]"
	touch $@
