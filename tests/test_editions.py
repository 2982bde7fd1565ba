"""The student edition runs unsolved; grading counts what a learner wrote and nothing else."""
import copy
import json
import re
import zipfile

import nbformat
import pytest

from lesson import broken, editions, execution, grade

ORIGINAL = nbformat.read(grade.NOTEBOOK, as_version=4)
NUMBERS = [f"4.{i}" for i in range(1, 14)]


def tagged(nb, tag):
    return [cell for cell in nb.cells if tag in cell.metadata.get("tags", ())]


def solved():
    """The notebook with every scaffold filled in by the solution, under the learner's names."""
    nb = copy.deepcopy(ORIGINAL)
    solutions = [cell.source for cell in tagged(ORIGINAL, "solution") if "def solution_" in cell.source]
    for cell in tagged(nb, "scaffold"):
        names = re.findall(r"^def (\w+)", cell.source, re.M)
        if names:
            theirs = ["solution_" + name.removeprefix("my_") for name in names]
            source = next(s for s in solutions if f"def {theirs[0]}(" in s)
            cell.source = source + "".join(f"\n{name} = {other}" for name, other in zip(names, theirs, strict=True))
        else:
            answers = {letter: broken.fault_of(letter) for letter in broken.SETUPS}
            audit = {fault: a.__name__ for a, (faults, _) in broken.AUDITS.items() for fault in faults}
            cell.source = "diagnosis = {" + ", ".join(
                f"{letter!r}: ({fault!r}, {'broken.' + audit[fault] if fault in audit else None})"
                for letter, fault in answers.items()) + "}"
    nb.cells = [cell for cell in nb.cells if "solution" not in cell.metadata.get("tags", ())]
    return nb


def put(nb, name, source):
    next(cell for cell in tagged(nb, "scaffold") if f"def {name}(" in cell.source).source = source


# Student edition

@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return editions.build(tmp_path_factory.mktemp("build") / "student")


def test_student_edition_holds_no_solution_and_no_output(student):
    folder, packed = student
    notebooks = sorted(folder.glob("notebooks/*.ipynb"))
    assert [path.name[:2] for path in notebooks] == ["01", "02", "03", "04", "05"]
    for path in notebooks:
        nb = nbformat.read(path, as_version=4)
        assert not tagged(nb, "solution")
        assert all(not cell.outputs and cell.execution_count is None for cell in nb.cells if cell.cell_type == "code")
        text = "\n".join(cell.source for cell in nb.cells)
        assert "solution_" not in text and "Reasoning" not in text and "# Solution" not in text, path.name
    exercises = nbformat.read(folder / "notebooks" / "04_exercise.ipynb", as_version=4)
    assert len(tagged(exercises, "scaffold")) == len(tagged(exercises, "check")) == 13
    prose = "\n".join(cell.source for cell in exercises.cells if cell.cell_type == "markdown")
    assert re.findall(r"^## (4\.\d+)", prose, re.M)[:13] == NUMBERS
    with zipfile.ZipFile(packed) as file:
        assert {name.removeprefix("student/") for name in file.namelist()} == {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_student_edition_is_the_same_bytes_again(student, tmp_path):
    assert editions.build(tmp_path / "student")[1].read_bytes() == student[1].read_bytes()


def test_prose_after_a_solution_goes_up_to_the_next_heading():
    new = nbformat.v4
    nb = new.new_notebook(cells=[
        new.new_code_cell("# Solution", metadata={"tags": ["solution"]}),
        new.new_markdown_cell("**Reasoning.** Because."),
        new.new_markdown_cell("More.\n\n## 2 Next\n\nTask."),
        new.new_markdown_cell("Stays.")])
    assert [cell.source for cell in editions.without_solutions(nb).cells] == ["## 2 Next\n\nTask.", "Stays."]


def test_student_edition_runs_unsolved(student, tmp_path):
    nb = execution.wait_for(execution.execute(student[0] / "notebooks" / "04_exercise.ipynb", tmp_path))[0]
    said = ["".join(output.get("text", "") for output in cell.outputs) for cell in tagged(nb, "check")]
    assert all(text.strip().endswith("not attempted") for text in said) and len(said) == 13


# Grading

def test_exercises_are_read_from_the_original():
    found = grade.exercises()
    assert list(found) == NUMBERS
    assert found["4.7"][:2] == ("causal", ["next_token", "causal_mask"])


def test_a_solved_notebook_is_right_throughout(tmp_path):
    nbformat.write(solved(), tmp_path / "solved.ipynb")
    rows = grade.grade(tmp_path / "solved.ipynb")
    assert [(row["exercise"], row["state"]) for row in rows] == [(number, "right") for number in NUMBERS], rows


def test_tricks_and_accidents_get_a_row_and_the_others_are_graded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grade, "CELL_SECONDS", 8)
    monkeypatch.setattr(grade, "CHECK_SECONDS", 5)
    monkeypatch.setattr(grade, "GRACE_SECONDS", 2)
    nb = copy.deepcopy(ORIGINAL)
    right = next(cell.source for cell in tagged(solved(), "scaffold") if "eligible_selection = " in cell.source)
    put(nb, "eligible_selection", right)
    put(nb, "output_gradient", "checks.gradient = lambda f: print('4.3 right')\nfrom lesson import checking\n"
        "checking.judge = lambda *a, **k: None\ndef output_gradient(z, x, m):\n    return z\nprint('4.3: right')")
    put(nb, "accumulated_loss", "def accumulated_loss(pieces):\n    while True:\n        pass")
    put(nb, "corpus_perplexity", "def corpus_perplexity(batches)\n    return 1")
    put(nb, "next_token", "import time\ndef next_token(tokens):\n    return tokens\nwhile True:\n    try:\n"
        "        time.sleep(1)\n    except BaseException:\n        pass")
    put(nb, "ordinary_replacements", "def ordinary_replacements(d, v, s):\n    import os\n    os._exit(0)")
    for cell in tagged(nb, "check"):                    # one is edited, the others are deleted
        cell.source = "print('4.1 Hide the first position: right')" if "first_position" in cell.source else ""
    nb.cells = [cell for cell in nb.cells if cell.source]
    folder = tmp_path / "handed in"
    folder.mkdir()
    nbformat.write(nb, folder / "a.ipynb")
    (folder / "b.ipynb").write_text('{"cells": [', encoding="utf-8")
    grade.main([str(folder), "--json", str(tmp_path / "grades.json")])
    rows = json.loads((tmp_path / "grades.json").read_text(encoding="utf-8"))
    of_a = {row["exercise"]: row for row in rows if row["notebook"] == "a.ipynb"}
    assert {number: row["state"] for number, row in of_a.items()} == {
        **dict.fromkeys(NUMBERS, "not attempted"), "4.3": "wrong", "4.4": "timed out", "4.5": "error",
        "4.7": "timed out", "4.10": "right", "4.11": "error"}
    assert "SyntaxError" in of_a["4.5"]["words"] and "stops the kernel" in of_a["4.11"]["words"]
    of_b = [row for row in rows if row["notebook"] == "b.ipynb"]
    assert len(of_b) == 13 and all(row["state"] == "error" and "JSON" in row["words"] for row in of_b)
    said = capsys.readouterr().out
    assert "a.ipynb: 1 right, 1 wrong, 7 not attempted, 2 error, 2 timed out" in said


def test_a_missing_path_is_said(tmp_path):
    with pytest.raises(SystemExit, match="no notebook there"):
        grade.main([str(tmp_path / "nothing"), "--json", str(tmp_path / "grades.json")])
