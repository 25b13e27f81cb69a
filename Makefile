# Every target makes the virtual environment first when it is missing. Needs python3 (3.11+, with venv and pip) and make.
# TORCH_BUILD=cpu or TORCH_BUILD=cuda says which build of torch; without, the CPU build where no NVIDIA GPU is found.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# Tests go to whichever process is idle. Threads that wait sleep, and leave their core to the other process.
PYTEST := OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -n 2 --dist worksteal

.PHONY: verify test test-all integrations lint docs docs-update wheel release golden verdicts review matrix bench bench-data bench-checkpoint bench-integrations chaos soak gpu clean

verify: .venv/installed  ## the main job: prove the digits example bit for bit
	$(BIN)/samebits verify examples/digits.py

test: $(READY)  ## every test that is not slow: 18 minutes on two cores
	$(PYTEST) -m "not slow and not chaos and not soak" $(ARGS)

test-all: $(READY)  ## the slow tests, too (hours); CI runs it with a thirty-second part of them (ARGS="--slow-share=0/32")
	$(PYTEST) -m "not chaos and not soak" $(ARGS)

integrations: .venv-integrations$(if $(OLDEST),-oldest)/ready  ## Lightning, Transformers, Keras, Ignite and Stable-Baselines3, in an environment of their own, killed and resumed (ARGS="-m 'not slow'"); OLDEST=1: their oldest versions
	$(<D)/bin/pytest -n 2 --dist worksteal tests/integrations $(ARGS)

.venv-integrations/ready .venv-integrations-oldest/ready: pyproject.toml constraints.txt tests/integrations/oldest.txt
	$(PYTHON) -m venv $(@D)
	@tools/install_torch $(@D)/bin/python $(TORCH_BUILD)
	sed -n 's/\(.*\)==.*/^\1==/p' $(if $(findstring oldest,$@),tests/integrations/oldest.txt,/dev/null) | grep -vif - constraints.txt | cat - $(if $(findstring oldest,$@),tests/integrations/oldest.txt) > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(@D)/constraints.txt --editable '.[examples,ignite,keras,lightning,stable-baselines3,transformers,test]'
	@touch $@

lint: $(READY)  ## style, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

docs: $(READY)  ## site/: the pages of docs/ as a site; no network is needed (two minutes; one, once its pictures are made)
	@$(BIN)/python -c 'import furo, matplotlib, myst_parser, sphinx, sphinx_copybutton, sphinx_design, towncrier' 2>/dev/null || { echo "the extra is missing: $(BIN)/python -m pip install -c constraints.txt -e '.[docs]'" >&2; exit 2; }
	$(BIN)/python -m sphinx -n -W --keep-going -q -b html docs site
	@echo "open site/index.html"

docs-update: $(READY)  ## runs the pages of docs/ and writes what their commands print (minutes; PAGES="docs/start/prove.md")
	$(BIN)/python tools/docs.py --update $(PAGES)

wheel: $(READY)  ## dist/: the wheel, with the machine code of all kernels (minutes)
	$(BIN)/python tools/wheel.py

release: $(READY)  ## dist/: sdist and wheel, checked in empty environments; uploads nothing (half an hour; ARGS=--allow-dev for a .dev version)
	$(BIN)/python tools/release.py $(ARGS)

golden: $(READY)  ## does this tree compute the bits of BASE=<commit>? 0 yes, 1 no: each fact that moved; WRITE=1 writes this CPU's text to tests/golden/
	@OMP_WAIT_POLICY=PASSIVE $(BIN)/python tools/golden $(if $(WRITE),--write) $(BASE)

verdicts: $(READY)  ## do the readers of programs say what they said at BASE=<commit>? each verdict that moved, of every program in this tree (minutes)
	@PYTHONPATH=src:tests/support:. $(BIN)/python tools/verdicts.py $(if $(BASE),--base $(BASE)) $(ARGS)

review: $(READY)  ## is the op table true on this machine: a battery of ops over runs and threads (minutes; ARGS="--only sum")
	$(BIN)/python -m lab.review $(ARGS)

bench: $(READY)  ## what it costs, against the alternatives
	for script in $(filter-out bench/figures.py bench/quality.py bench/data.py bench/checkpoint_peers.py bench/checkpoint_large.py bench/integrations.py,$(wildcard bench/*.py)); do echo "== $$script"; $(BIN)/python $$script || [ $$? -eq 2 ] || exit 1; done  # 2: no such device here

bench-data: .venv-peers/ready  ## input pipelines against the peers, in an environment of their own
	.venv-peers/bin/python bench/data.py

bench-checkpoint: .venv-peers-checkpoint/ready  ## what saving and resuming cost, against the peers, in an environment of their own
	.venv-peers-checkpoint/bin/python bench/checkpoint.py

bench-integrations: .venv-integrations/ready  ## what an adapter costs per step, in the environment of `make integrations`
	.venv-integrations/bin/python bench/integrations.py

.venv-peers/ready: bench/data-peers.txt
.venv-peers-checkpoint/ready: bench/checkpoint-peers.txt
.venv-peers/ready .venv-peers-checkpoint/ready: constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . --requirement $(filter bench/%,$^)
	@touch $@

gpu:  ## on a GPU, with a Python whose torch sees it: the tests of tests/gpu (ARGS="tests/gpu/test_random.py -k normal"), MINUTES=9 for each file; the next call continues
	@$(PYTHON) tests/gpu/run.py $(ARGS)

matrix:  ## the quick tests, verify and the op review with the oldest, the pinned and the newest torch, or TORCH="2.12.0 newest" (half an hour to an hour for each; 6 GB)
	$(PYTHON) tools/matrix.py $(TORCH)

chaos: $(READY)  ## 300 kills of the digits run, aimed at nine phases and counted (SAMEBITS_CHAOS_KILLS), and other slow attacks
	OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -m chaos  # in one process: those of -n print no counts

soak: $(READY)  ## every broken script and its repaired twin, with every check, and other slow searches; prints its counts (hours)
	$(PYTEST) -m soak

clean:
	rm -rf .venv .venv-gpu .venv-integrations .venv-integrations-oldest .venv-peers .venv-peers-checkpoint

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "samebits needs Python 3.11 or newer; say which: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@tools/install_torch $(BIN)/python $(TORCH_BUILD)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[examples]'
	@touch $@

# What a user does not need: a gigabyte and a half, and most of the time.
$(READY): .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs,examples,libraries,lint,test]'
	@touch $@
