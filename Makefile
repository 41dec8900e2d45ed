# The IPU course. `make lab` opens it, `make test` tests it, `make help` lists the rest.
# The first run makes .venv and installs requirements.txt; later runs start in seconds.

PYTHON ?=
OFFLINE ?=
WHEELHOUSE ?=
DIST ?=
PLATFORM ?=
PYTHON_VERSION ?=
PORT ?=
LAB_ARGS ?=
TEST_ARGS ?=
TEST_WORKERS ?= 2
BENCH_ARGS ?=
FUZZ_ARGS ?=
RULE ?=
SOAK_ARGS ?=
TESTS ?=
UPSTREAM_ARGS ?=
LESSON ?=
NBVAL_ARGS ?=
NOTEBOOK ?=
SITE_ARGS ?=
PULL_ARGS ?=

VENV_PYTHON := .venv/bin/python
# A file's tests stay together and in their order, as a notebook's cells must. The longest files come first, as
# tests/durations.json says: `make test TEST_ARGS=--record-durations` measures them again.
# One thread each: the tests' networks are small, and the processes share the cores.
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV_PYTHON) -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations=30
COVERED := $(VENV_PYTHON) -m coverage run --rcfile="$(CURDIR)/pyproject.toml" -m pytest
export PYTHON OFFLINE WHEELHOUSE
# A kernel registered in the learner's home folder must not take the place of this environment's.
export JUPYTER_PREFER_ENV_PATH := 1

.DEFAULT_GOAL := help
.PHONY: help setup lab preflight test test-fast test-large test-night companions coverage mutate nbval-conditions notebooks pull-notebook try-answers check-notebooks docs site check-site lint format bench fuzz soak upstream-tests lock wheelhouse wheels clean

help: ## list the targets and variables
	@echo "make TARGET [VARIABLE=value ...]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1 - \2/p' Makefile | awk -F' - ' '{printf "%-18s %s\n", $$1, $$2}'
	@echo "variables"
	@echo "  PYTHON=python3.12     the Python to make .venv with (3.10 to 3.14)"
	@echo "  OFFLINE=1             take .venv as it is, though the requirements have changed"
	@echo "  WHEELHOUSE=wheelhouse install from this folder, without a network; the folder to fill (wheelhouse)"
	@echo "  DIST=dist             the folder to put wheels into (wheels)"
	@echo "  PLATFORM=macos-arm64  for other machines: linux-x86_64, linux-aarch64, macos-arm64 (wheelhouse)"
	@echo "  PYTHON_VERSION=3.12   for another Python than this one (wheelhouse)"
	@echo "  PORT=8890             JupyterLab's port (lab)"
	@echo "  LAB_ARGS=--no-browser more options, such as --folder=mine --reset=02; JupyterLab's own after -- (lab)"
	@echo "  TEST_ARGS='-k text'   more options for pytest (test, test-fast, test-night, check-site, coverage, companions)"
	@echo "  TEST_ARGS=--record-durations   write how long each file's tests take, by which processes share them (test)"
	@echo "  TEST_WORKERS=4        this many test processes at a time, 0 for pytest alone (test, test-fast, check-site)"
	@echo "  RULE='half partials'  only changes to rules with these words (mutate)"
	@echo "  NBVAL_ARGS=--record   write the notebooks' seconds to notebooks/measured.json (nbval-conditions)"
	@echo "  LESSON='06 07'        only these lessons (notebooks, check-notebooks, try-answers, nbval-conditions)"
	@echo "  PULL_ARGS=--delete    take cells that were deleted in the notebook out of the source (pull-notebook)"
	@echo "  SITE_ARGS='--states 500'   how many views of an explorer the site has, and more (site)"
	@echo "  BENCH_ARGS=...        more options for the benchmark (bench)"
	@echo "  FUZZ_ARGS='--seconds 1200 --seed 7'   how long to try, and which programs (fuzz)"
	@echo "  TESTS=poptorch/tests  the folder with the tests of a checkout of PopTorch (upstream-tests)"
	@echo "  UPSTREAM_ARGS='--files options --update'   which files to run, and whether to write the list of known failures again (upstream-tests)"
	@echo "  SOAK_ARGS='--steps 10000 --programs 200'   how long the runs are (soak)"

setup: ## make or update .venv (every target below does this first)
	@sh tools/setup.sh

lab: setup ## open your own copy of the notebooks in JupyterLab (my_course/, made at the first start)
	@$(VENV_PYTHON) -m ipu_course lab $(if $(PORT),--port=$(PORT)) $(LAB_ARGS)

preflight: setup ## check this machine for a workshop and run a lesson in a fresh kernel
	$(VENV_PYTHON) -m ipu_course doctor --preflight $(LESSON)

test: setup ## run the tests, the notebooks among them
	$(PYTEST) --nbval tests src/ipu_course/lessons notebooks/ ipu_model/tests -m "not large and not night" $(TEST_ARGS)

test-large: setup ## search what makes BERT-Large, ViT-L/16 and ResNet-152 fit, and build what the printed lines say
	$(PYTEST) tests -m large $(TEST_ARGS)

test-night: setup ## run what repeats `make test` at length, for the night and before a release: all lessons in the browser, all programs, large networks, companions, fuzz, soak
	$(PYTEST) tests ipu_model/tests -m "night or large" $(TEST_ARGS)
	$(MAKE) fuzz soak companions TEST_ARGS= FUZZ_ARGS="$(or $(FUZZ_ARGS),--seconds 1200)"

test-fast: setup ## run the tests that need neither a whole lesson nor a browser
	$(PYTEST) tests src/ipu_course/lessons ipu_model/tests -m "not notebooks and not browser and not slow and not night" $(TEST_ARGS)

companions: setup ## test Lightning, optimum-graphcore and PyTorch Geometric in .venv-companions (Python 3.10, 3.11)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV_PYTHON) tools/companions.py $(TEST_ARGS)

coverage: setup ## measure which lines of the IPU Model and its PopTorch the tests in ipu_model/tests run
	rm -f .coverage .coverage.*
	@# Two processes of their own: one of xdist's is ended before it has written what it saw.
	$(COVERED) ipu_model/tests/engine $(TEST_ARGS) & engine=$$!; \
	    $(COVERED) ipu_model/tests/poptorch ipu_model/tests/popdist $(TEST_ARGS); others=$$?; \
	    wait $$engine && exit $$others
	$(VENV_PYTHON) -m coverage combine --quiet
	@# A package of its own each, so that one cannot hide behind another.
	@failed=0; for package in ipu_model popart popdist poptorch; do \
	    $(VENV_PYTHON) -m coverage report --include="ipu_model/src/$$package/*,ipu_model/src/$$package.py" --skip-covered || failed=1; \
	done; exit $$failed

mutate: setup ## break one central rule at a time in a copy of the sources: do the tests notice?
	$(VENV_PYTHON) tools/mutate.py $(RULE)

nbval-conditions: setup ## run the notebooks as users do: offline, read-only, from elsewhere
	$(VENV_PYTHON) tools/nbval_conditions.py $(LESSON) $(NBVAL_ARGS)

notebooks: setup ## build the notebooks from the lessons' sources and execute them
	PYTHONPATH=tools $(VENV_PYTHON) -m notebook_build build $(LESSON)

pull-notebook: setup ## take the edits of a notebook back into the source of its lesson (LESSON=02, NOTEBOOK=my.ipynb for a copy)
	@[ -n "$(LESSON)" ] || { echo "make pull-notebook LESSON=02 [NOTEBOOK=my_course/02_gradient_accumulation.ipynb]"; exit 2; }
	PYTHONPATH=tools $(VENV_PYTHON) -m notebook_build pull $(LESSON) $(NOTEBOOK) $(PULL_ARGS)

try-answers: setup ## run right and wrong answers to the lessons' exercises and print every verdict
	PYTHONPATH=tools $(VENV_PYTHON) -m notebook_build try $(LESSON)

check-notebooks: setup ## check that the notebooks are what the lessons' sources say, without executing them
	PYTHONPATH=tools $(VENV_PYTHON) -m notebook_build check $(LESSON)

docs: setup ## write the generated pages and pictures of docs/, and the tables of lessons
	PYTHONPATH=ipu_model/validation $(VENV_PYTHON) tools/docs.py

site: setup ## build the site with the lessons, the documents and the reference in build/site (LESSON=02: only its explorers move)
	@$(VENV_PYTHON) -c "import axe_playwright_python, furo, myst_nb, sphinx" 2>/dev/null || \
	    $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-site.txt
	PYTHONPATH=tools $(VENV_PYTHON) -m course_site $(LESSON) $(SITE_ARGS)

check-site: setup ## check every page of build/site in a browser: contrast, keyboard, widths, print, search (after make site)
	$(VENV_PYTHON) -m pytest -n $(TEST_WORKERS) --durations=5 tests/browser/built_site.py $(TEST_ARGS)

lint: setup ## check style and types
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

format: setup ## lay out the Python files and sort their imports
	$(VENV_PYTHON) -m ruff check --fix --quiet --exit-zero .
	$(VENV_PYTHON) -m ruff format .

bench: setup ## measure the speed of this machine's replay against plain PyTorch
	$(VENV_PYTHON) bench/run.py $(BENCH_ARGS)

fuzz: setup ## try random PopTorch programs against plain PyTorch and count what came of them
	PYTHONPATH=ipu_model/tests/long_runs $(VENV_PYTHON) -m fuzz $(FUZZ_ARGS)

soak: setup ## train for 10,000 steps and watch memory, files, threads and processes
	PYTHONPATH=ipu_model/tests/long_runs $(VENV_PYTHON) -m soak $(SOAK_ARGS)

upstream-tests: setup ## run PopTorch's own tests from a checkout and compare the failures with the known ones
	@[ -n "$(TESTS)" ] || { echo "make upstream-tests TESTS=CHECKOUT/tests"; exit 2; }
	PYTHONPATH=tools $(VENV_PYTHON) -m upstream_tests "$(TESTS)" $(UPSTREAM_ARGS)

lock: setup ## resolve the ranges in pyproject.toml anew and write requirements.txt, requirements-companions.txt and requirements-site.txt
	$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check uv
	$(VENV_PYTHON) tools/lock.py

wheelhouse: ## fetch every pinned wheel into a folder, for a room without a network
	@WHEELHOUSE= sh tools/setup.sh
	$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check uv
	$(VENV_PYTHON) tools/wheelhouse.py $(if $(WHEELHOUSE),"$(WHEELHOUSE)") $(if $(PLATFORM),--platform=$(PLATFORM)) \
	    $(if $(PYTHON_VERSION),--python-version=$(PYTHON_VERSION))

wheels: setup ## build wheels and source distributions of both distributions into dist/
	@$(VENV_PYTHON) tools/wheels.py $(if $(DIST),"$(DIST)")

clean: ## remove caches and build results (.venv stays: remove that by hand)
	rm -rf build dist ipu_model/build ipu_model/dist .pytest_cache .mypy_cache .ruff_cache .hypothesis profile
	find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -print | \
	    while IFS= read -r folder; do rm -rf "$$folder"; done
