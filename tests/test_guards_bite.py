"""The guards bite: what is wrong in a copy of the project makes the suite red there, and only what is wrong."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("conftest.py", "pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements-cpu.txt",
          "notebooks", "figures", "data", "tests/test_notebooks.py", "tests/test_numbers.py")


def copy_of_the_project(tree):
    left_out = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in COPIED:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=left_out)
        else:
            shutil.copy(ROOT / name, tree / name)
    return tree


def failures(tree, *arguments):
    """Run pytest in `tree`: `{test: what it said}` of those that failed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MLM_"))}
    quick = "-p", "no:cacheprovider", "-p", "no:hypothesispytest"
    command = [sys.executable, "-m", "pytest", *quick, "--junitxml=report.xml", *arguments]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    failed = {f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}": "".join(failure.itertext())
              for case in ET.parse(tree / "report.xml").iter("testcase") for failure in case.iter("failure")}
    assert bool(failed) == bool(done.returncode), done.stdout[-2000:]
    return failed


@contextlib.contextmanager
def edited(tree, name):
    """The recorded notebook as JSON, written back afterwards."""
    file = tree / "notebooks" / f"{name}.ipynb"
    nb = json.loads(file.read_text(encoding="utf-8"))
    yield nb
    file.write_text(json.dumps(nb), encoding="utf-8")


def code(nb, tag=None):
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"
            and (tag is None or tag in cell["metadata"].get("tags", []))]


def output(cell, kind, **more):
    cell["outputs"].append({"output_type": kind, **more})


def text_cell(nb, source):
    nb["cells"].append({"cell_type": "markdown", "id": "added", "metadata": {}, "source": source})


# Each: what is done to the notebook or, without one, to the folder; the guard that must answer; a word of its answer.
HONEST = "test_every_cell_was_run_once_and_in_order"
TAMPERED = {
    "execution count emptied": ("01_understand", lambda nb: code(nb)[1].update(execution_count=None), HONEST, "None"),
    "cell run twice": ("02_build", lambda nb: code(nb)[1].update(execution_count=99), HONEST, "99"),
    "output on stderr": (
        "01_understand", lambda nb: output(code(nb)[0], "stream", name="stderr", text="UserWarning: beware"),
        "test_nothing_was_written_to_stderr", "beware"),
    "traceback in an untagged cell": (
        "02_build", lambda nb: output(code(nb)[0], "error", ename="KeyError", evalue="'x'", traceback=[]),
        "test_errors_stand_only_where_they_are_announced", "KeyError"),
    "announced error that never came": (
        "03_experiment", lambda nb: code(nb)[0]["metadata"].update(tags=["raises-exception"]),
        "test_errors_stand_only_where_they_are_announced", "nothing was raised"),
    "Python version in the metadata": (
        "01_understand", lambda nb: nb["metadata"]["language_info"].update(version="3.13.0"),
        "test_metadata_is_the_same_on_every_machine", "3.13.0"),
    "time of execution in the metadata": (
        "02_build", lambda nb: code(nb)[0]["metadata"].update(execution={"iopub.status.busy": "2026-01-01T00:00:00Z"}),
        "test_metadata_is_the_same_on_every_machine", "execution"),
    "cell taken out of the comparison": (
        "01_understand", lambda nb: code(nb)[1]["metadata"].update(tags=["nbval-skip"]),
        "test_tags_are_known_and_no_comment_switches_the_comparison_off", "nbval-skip"),
    "path of a machine in an output": (
        "02_build", lambda nb: output(code(nb)[0], "stream", name="stdout", text="in /" + "home/somebody/notebooks"),
        "test_outputs_hold_no_path_no_address_and_no_time_of_day", "/home"),
    "address in an output": (
        "03_experiment", lambda nb: output(code(nb)[0], "stream", name="stdout", text="<function f at 0x7f10aa55>"),
        "test_outputs_hold_no_path_no_address_and_no_time_of_day", "0x7f10aa55"),
    "figure deleted": (
        None, lambda tree: (tree / "data/figures/01_who_sees_whom.json").unlink(),
        "test_every_figure_is_exported_with_its_numbers[01_understand]", "01_who_sees_whom"),
    "figure that no notebook shows": (
        None, lambda tree: (tree / "figures/09_old.png").write_bytes(b""),
        "test_every_exported_figure_belongs_to_a_notebook", "09_old"),
    "figure exchanged": (
        None, lambda tree: (tree / "figures/02_training.png").write_bytes(b""),
        "test_recorded_images_are_the_exported_ones_and_have_alternative_text[02_build]", "02_training"),
    "figure without alternative text": (
        "03_experiment", lambda nb: code(nb, "figure")[0]["outputs"][-1]["metadata"].clear(),
        "test_recorded_images_are_the_exported_ones_and_have_alternative_text", "too short"),
    "figure without its reading": (
        "04_exercise", lambda nb: nb["cells"].insert(nb["cells"].index(code(nb, "figure")[0]) + 1, {
            "cell_type": "markdown", "id": "added-too", "metadata": {}, "source": "A nice figure."}),
        "test_every_figure_is_read_after_it_was_predicted", "Look at"),
    "scaffold that does not parse": (
        "04_exercise", lambda nb: code(nb, "scaffold")[0].update(source="loss = float(...\n)\n)"),
        "test_scaffolds_parse_and_run_unsolved", "SyntaxError"),
    "solution unfolded": (
        "04_exercise", lambda nb: code(nb, "solution")[0]["metadata"].pop("jupyter"),
        "test_every_exercise_has_scaffold_check_and_folded_solution", "not folded"),
    "code cell too long": (
        "01_understand", lambda nb: code(nb)[0].update(source="x = 1\n" * 26),
        "test_cells_and_prose_are_short", "26 lines"),
    "prose too long": (
        "02_build", lambda nb: text_cell(nb, "## Long\n\n" + "word " * 131),
        "test_cells_and_prose_are_short", "132 words"),
    "something left to do": (
        "05_evidence", lambda nb: code(nb)[0].update(source="pass  # TODO"),
        "test_nothing_is_left_to_do_and_there_are_no_emojis", "TODO"),
    "emoji": (
        "03_experiment", lambda nb: text_cell(nb, "Well done \U0001F389"),
        "test_nothing_is_left_to_do_and_there_are_no_emojis", "emoji"),
    "link to no file": (
        "05_evidence", lambda nb: text_cell(nb, "[next](06_more.ipynb)"),
        "test_every_link_leads_somewhere", "06_more.ipynb"),
    "link to no heading": (
        "01_understand", lambda nb: text_cell(nb, "[there](02_build.ipynb#9.9-Nothing)"),
        "test_every_link_leads_somewhere", "9.9-Nothing"),
    "image without words": (
        "04_exercise", lambda nb: text_cell(nb, "![](../figures/02_training.png)"),
        "test_every_image_in_the_text_has_alternative_text", "too short"),
    "cell id used twice": (
        "05_evidence", lambda nb: nb["cells"][1].update(id=nb["cells"][0]["id"]),
        "test_format_is_valid_and_cell_ids_are_unique", "twice"),
}


@pytest.fixture(scope="module")
def tampered(tmp_path_factory):
    """All of it done to one copy, and what the guards say there."""
    tree = copy_of_the_project(tmp_path_factory.mktemp("tampered"))
    for name, change, _, _ in TAMPERED.values():
        if name is None:
            change(tree)
        else:
            with edited(tree, name) as nb:
                change(nb)
    return failures(tree, "tests/test_notebooks.py")


@pytest.mark.parametrize("what", TAMPERED)
def test_guard_bites(what, tampered):
    name, _, guard, words = TAMPERED[what]
    test = f"test_notebooks::{guard}" + (f"[{name}]" if name else "")
    assert test in tampered, f"{what}: {test} passed all the same"
    assert words in tampered[test]


def test_guards_answer_to_nothing_else(tampered, tmp_path):
    expected = {f"test_notebooks::{guard}" + (f"[{name}]" if name else "") for name, _, guard, _ in TAMPERED.values()}
    assert set(tampered) == expected
    assert failures(copy_of_the_project(tmp_path), "tests/test_notebooks.py") == {}


def test_recorded_numbers_are_compared(tmp_path):
    """The first cells of notebook 01, with one number changed in an output and one behind a figure."""
    tree = copy_of_the_project(tmp_path)
    with edited(tree, "01_understand") as nb:
        last = nb["cells"].index(code(nb, "figure")[0])
        del nb["cells"][last + 1:]
        cell = next(cell for cell in code(nb) if cell["outputs"] and cell["outputs"][0].get("name") == "stdout")
        cell["outputs"][0]["text"][-1] = cell["outputs"][0]["text"][-1].replace("3", "4")
    for file in [*tree.glob("notebooks/0[2-9]*"), *tree.glob("figures/*"), *tree.glob("data/**/*.json")]:
        if file.stem != "01_dataflow":
            file.unlink()
    numbers = tree / "data/figures/01_dataflow.json"
    numbers.write_text(numbers.read_text(encoding="utf-8").replace('"corrupted": [0, 3,', '"corrupted": [0, 2,'))
    failed = failures(tree, "notebooks/01_understand.ipynb", "tests/test_numbers.py")
    words = failed.pop("test_numbers::test_numbers_agree_within_their_tolerance[data/figures/01_dataflow.json]")
    assert "['corrupted'][1]: 2 became 3" in words
    assert len(failed) == 1 and "[0 4 0 0]" in failed.popitem()[1]
