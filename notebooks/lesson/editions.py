"""The student edition: the course without solutions, recorded outputs and figures: `python -m lesson.editions`."""
import re
import shutil
import zipfile

import nbformat

from .execution import tidy
from .figures import PROJECT

TARGET = PROJECT / "build" / "student"
COPIED = ["requirements-cpu.txt", "LICENSE", "notebooks/mlm", "notebooks/lesson",
          "data/golden_masking.json", "data/questions.json", "data/corpus.json", "data/tokenizer.json",
          "data/corpus_evaluation.json", "data/corpus_bands.json", "data/encoder.npz"]
README = """\
# Masked language modeling: student edition

Five notebooks: understand, build, experiment, exercise, evidence. Solutions are left out; the checks below
each scaffold tell you whether an answer is right, and if not, why.

    python3 -m venv .venv
    .venv/bin/python -m pip install -r requirements-cpu.txt
    .venv/bin/python -m jupyterlab notebooks/01_understand.ipynb

In PowerShell:

    py -3 -m venv .venv
    .\\.venv\\Scripts\\python.exe -m pip install -r requirements-cpu.txt
    .\\.venv\\Scripts\\python.exe -m jupyterlab notebooks\\01_understand.ipynb

Python 3.11 or newer. Hand in `notebooks/04_exercise.ipynb`; only what you wrote counts, not what is printed in it.
"""


def without_solutions(nb):
    """Take out solutions and what is said about them, outputs and counts; `nb` is changed and returned.

    Prose that follows a solution belongs to it, up to the next heading.
    """
    cells, after_solution = [], False
    for cell in nb.cells:
        if "solution" in cell.metadata.get("tags", ()):
            after_solution = cell.cell_type == "code"
            continue
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count, after_solution = [], None, False
        elif after_solution:
            heading = re.search(r"^#{1,6} ", cell.source, re.M)
            cell.source = cell.source[heading.start():] if heading else ""
            after_solution = not heading
        if cell.source:
            cells.append(cell)
    nb.cells = cells
    return nb


def build(target=TARGET):
    """Write the edition to the folder `target`, and beside it as a zip; gives both paths."""
    shutil.rmtree(target, ignore_errors=True)
    for name in COPIED:
        source, to = PROJECT / name, target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", "editions.py", "grade.py"))
        else:
            shutil.copy(source, to)
    (target / "README.md").write_text(README, encoding="utf-8")
    for path in sorted((PROJECT / "notebooks").glob("0*_*.ipynb")):
        nb = without_solutions(tidy(nbformat.read(path, as_version=4)))
        nbformat.write(nb, target / "notebooks" / path.name)
    packed = target.with_suffix(".zip")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(p for p in target.rglob("*") if p.is_file()):
            entry = zipfile.ZipInfo(f"{target.name}/{path.relative_to(target).as_posix()}")     # no time of day inside
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            file.writestr(entry, path.read_bytes())
    return target, packed


if __name__ == "__main__":
    for path in build():
        print("written:", path.relative_to(PROJECT))
