# What one can do here; `make` prints it. PYTHON=python3.13 after a command makes .venv with that Python.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
OLD_PYTHON = needs Python 3.11 or newer. Try: make $(or $(MAKECMDGOALS),run) PYTHON=python3.13
NEW_ENOUGH = -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help run test lab lint script student grade evidence verify report receipt clean

help:           ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

run: $(READY)   ## execute all notebooks and rewrite their outputs, figures/ and data/
	@cd notebooks && ../$(VENV)/bin/python -m lesson.run

test: $(READY)  ## execute all notebooks, compare with the recorded outputs, run the tests; writes nothing
	@$(VENV)/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lab: $(READY)   ## open the course in JupyterLab
	@$(VENV)/bin/python -m jupyterlab --LabApp.default_url=/lab/tree/notebooks/01_understand.ipynb

lint: $(READY)  ## check the style of code and notebooks
	@$(VENV)/bin/python -m ruff check

script: $(READY)  ## write the worked example of notebook 02 to build/worked_example.py and run it
	@cd notebooks && ../$(VENV)/bin/python -m lesson.script

student: $(READY)  ## write the edition without solutions to build/student/ and build/student.zip
	@cd notebooks && ../$(VENV)/bin/python -m lesson.editions

grade: $(READY)  ## grade learners' copies of notebook 04: make grade NOTEBOOK=path (a notebook or a folder)
	@test -n "$(NOTEBOOK)" || { echo "Which one? make grade NOTEBOOK=path/to/04_exercise.ipynb, or a folder"; exit 2; }
	@PYTHONPATH=notebooks $(VENV)/bin/python -m lesson.grade "$(NOTEBOOK)"

evidence: $(READY)  ## gather figures, numbers, notebooks and answers in build/evidence.zip
	@cd notebooks && ../$(VENV)/bin/python -m lesson.evidence make

verify: $(READY)  ## check a bundle without trusting it: make verify BUNDLE=path (RUN=--run grades the answers, too)
	@test -n "$(BUNDLE)" || { echo "Which one? make verify BUNDLE=path/to/evidence.zip"; exit 2; }
	@PYTHONPATH=notebooks $(VENV)/bin/python -m lesson.evidence verify "$(BUNDLE)" $(RUN) --json build/verdict.json

report: $(READY)  ## turn a bundle into one page, build/report.html: make report BUNDLE=path
	@PYTHONPATH=notebooks $(VENV)/bin/python -m lesson.evidence report "$(or $(BUNDLE),build/evidence.zip)"

receipt: $(READY)  ## run fixture and masking on this machine's devices, compare (NAME=tpu-v5e keeps it in data/receipts/)
	@cd notebooks && ../$(VENV)/bin/python -m lesson.receipt $(if $(NAME),--keep "$(NAME)")

clean:          ## remove build/, caches and checkpoints; .venv stays (rm -r .venv removes it)
	rm -rf build .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

# The mark is set last, so that an interrupted set-up is taken up again. A .venv that works is kept:
# it may hold a PyTorch that was chosen by hand. The settings spare JupyterLab a question about news.
$(READY): requirements-cpu.txt
	@$(PYTHON) $(NEW_ENOUGH) || { echo "This course $(OLD_PYTHON)"; exit 1; }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || { \
	    echo "Making .venv"; $(PYTHON) -m venv --clear $(VENV); }
	@$(VENV)/bin/python $(NEW_ENOUGH) || { echo "This .venv is too old (rm -r .venv): the course $(OLD_PYTHON)"; exit 1; }
	@echo "Installing the packages of requirements-cpu.txt: 2 GB or more on disk, a few minutes"
	@$(VENV)/bin/python -m pip install --disable-pip-version-check -r requirements-cpu.txt
	@mkdir -p $(VENV)/share/jupyter/lab/settings
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' \
	    > $(VENV)/share/jupyter/lab/settings/overrides.json
	@touch $@
