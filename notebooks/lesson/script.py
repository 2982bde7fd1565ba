"""The worked example of notebook 02 as one plain Python program: `python -m lesson.script`.

Its source is the notebook: the code cells tagged `script`, in their order.
"""
import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[1]
SOURCE = NOTEBOOKS / "02_build.ipynb"
PROGRAM = NOTEBOOKS.parent / "build" / "worked_example.py"


def collect(nb, name):
    """The program as text. Each cell stands below the heading of its section.

    Args:
        nb: a notebook.
        name: the notebook's file name, for the header and for what goes wrong.
    """
    parts = [f"# The worked example of notebooks/{name}, made by `make script`. Edit the notebook, not this file.\n"
             "# To run it on its own: PYTHONPATH=notebooks python build/worked_example.py"]
    heading = said = None
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.M | re.S)     # a # in there is no heading
            heading = (re.findall(r"^#{1,6} +(.+)", prose, re.M) or [heading])[-1]
        elif "script" in cell.metadata.get("tags", []):
            try:
                ast.parse(cell.source)
            except SyntaxError as error:
                sys.exit(f"{name}, cell {cell.execution_count}, tagged `script`, is not plain Python: {error}")
            parts.append((f"# {heading}\n" if heading != said else "") + cell.source)
            said = heading
    if len(parts) == 1:
        sys.exit(f"No cell of {name} is tagged `script`, so there is no worked example to write.")
    return "\n\n\n".join(parts) + "\n"


def run(program):
    """Run the program where the notebook's kernel runs, show what it prints, and judge its last line."""
    with tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, "PYTHONPATH": str(NOTEBOOKS), "MLM_OUT": scratch, "MPLBACKEND": "agg"}
        done = subprocess.run([sys.executable, str(program)], cwd=NOTEBOOKS, env=env, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    if done.returncode:
        sys.exit(f"The worked example stopped with exit status {done.returncode}.")
    if not done.stdout.rstrip().rpartition("\n")[2].startswith("PASS"):
        sys.exit("The worked example ran, but its last line does not start with PASS.")


def main():
    program = collect(nbformat.read(SOURCE, as_version=4), SOURCE.name)
    PROGRAM.parent.mkdir(exist_ok=True)
    PROGRAM.write_text(program, encoding="utf-8")
    run(PROGRAM)


if __name__ == "__main__":
    main()
