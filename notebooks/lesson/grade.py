"""Grade learners' copies of notebook 04: `python -m lesson.grade PATH [PATH ...]`, notebooks or folders.

Only what the learner wrote counts. Their code runs in a fresh kernel in a scratch folder, with the helper as it is
here; their check cells and printed results are ignored. Then each check of the original notebook is asked, from a
fresh copy of its own, about the functions that the kernel now holds.

This runs other people's code with your rights. It withstands mistakes and faked output, not malice: use an
account or a container that has nothing to lose.
"""
import argparse
import ast
import json
import os
import queue
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager

from .execution import own_kernel, quick
from .figures import PROJECT

NOTEBOOK = PROJECT / "notebooks" / "04_exercise.ipynb"
CELL_SECONDS, CHECK_SECONDS, GRACE_SECONDS, NOTEBOOK_SECONDS = 20, 20, 5, 300
STATES = ("right", "wrong", "not attempted", "error", "timed out")

ASK = """
def _ask(nonce, folder, check, names):
    import importlib, json, sys
    sys.path.insert(0, folder)                      # a copy under a name that nothing has patched
    try:
        checks = importlib.import_module(nonce + ".checks")
    finally:
        sys.path.remove(folder)
    answers = [globals().get(name) for name in names]
    state, words = getattr(checks, check).outcome(*answers)
    if all(answer is None for answer in answers):
        words = f"{{', '.join(names)}} is not there"
    print("\\n" + nonce + json.dumps([state, words]))
_ask({nonce!r}, {folder!r}, {check!r}, {names!r})
"""


def exercises():
    """`{number: (check, names of the answers, title)}`, read from the check cells of the original notebook."""
    from . import checking, checks
    by_check = {getattr(checks, name): name for name in dir(checks) if hasattr(getattr(checks, name), "outcome")}
    number_of = {by_check[check]: number for number, check in checking.EXERCISES.items()}
    found = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if "check" in cell.metadata.get("tags", ()):
            call = ast.parse(cell.source).body[-1].value
            check = call.func.attr
            found[number_of[check]] = (check, [argument.id for argument in call.args], getattr(checks, check).title)
    return found


def grade(path):
    """One row for each exercise: `{"notebook", "exercise", "title", "state", "words"}`."""
    wanted, rows = exercises(), {}

    def row(number, state, words=""):
        rows[number] = {"notebook": path.name, "exercise": number, "title": wanted[number][2],
                        "state": state, "words": words}
    try:
        nb = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        nbformat.validate(nb)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        for number in wanted:
            row(number, "error", f"not a readable notebook: {first[:120]}")
        return list(rows.values())
    cells = [cell.source for cell in nb.cells if cell.cell_type == "code"
             and "solution" not in cell.metadata.get("tags", ()) and not re.match(r"\s*checks\.\w+\(", cell.source)]
    skip, deadline = set(), time.monotonic() + NOTEBOOK_SECONDS
    while len(rows) < len(wanted):          # a kernel that hangs or dies is replaced, without the cell that did it
        with Session() as session:
            failed = run_cells(session, cells, skip, deadline)
            if not session.alive():
                continue
            for number, (check, names, _) in wanted.items():
                if number in rows:
                    continue
                if time.monotonic() > deadline:
                    row(number, "timed out", f"the notebook takes longer than {NOTEBOOK_SECONDS} s in all")
                    continue
                trouble = next((failed[name] for name in names if name in failed), None)
                if trouble:
                    row(number, *trouble)
                    continue
                state, words = session.check(check, names)
                row(number, state, words)
                if not session.alive():
                    break
    return [rows[number] for number in wanted]


def run_cells(session, cells, skip, deadline):
    """Run the learner's cells; gives `{name: (state, words)}` for what a failed cell would have defined."""
    failed = {}
    for index, source in enumerate(cells):
        if index in skip:
            outcome = ("timed out", f"its cell hangs or stops the kernel (limit {CELL_SECONDS} s)")
        elif time.monotonic() > deadline:
            outcome = ("timed out", f"the notebook takes longer than {NOTEBOOK_SECONDS} s in all")
        else:
            outcome, _ = session.run(source, CELL_SECONDS)
            if not session.alive():
                skip.add(index)
                return failed
        if outcome:
            for name in re.findall(r"^(?:def (\w+)|(\w+)\s*=)", source, re.M):
                failed["".join(name)] = outcome
    return failed


class Session:
    """A kernel in a scratch copy of the course; a `with` block."""

    def __enter__(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="grade"))
        for name in ("mlm", "lesson"):
            copy_of(name, self.scratch / "notebooks" / name)
        shutil.copytree(PROJECT / "data", self.scratch / "data")
        self.manager = KernelManager(kernel_name="python3", kernel_spec_manager=own_kernel(self.scratch))
        self.manager.start_kernel(cwd=str(self.scratch / "notebooks"), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL,
                                  env={**quick(), **os.environ, "MLM_OUT": str(self.scratch)})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *_):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def alive(self):
        return self.manager.is_alive()

    def run(self, source, seconds):
        """`(None or (state, words), what was printed)`; a cell that cannot be interrupted costs the kernel."""
        printed, size, raised = [], 0, []
        asked, end = self.client.execute(source, allow_stdin=False, stop_on_error=False), time.monotonic() + seconds
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=0.5)
            except queue.Empty:
                message = None
            if not self.alive():
                return ("error", "it stops the kernel"), ""
            if time.monotonic() > end:
                self.interrupt()
                return ("timed out", f"longer than {seconds} s"), ""
            if not message or message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout" and size < 1_000_000:
                printed.append(content["text"])
                size += len(content["text"])
            elif kind == "error":
                raised.append(f"{content['ename']}: {content['evalue']}"[:300])
            elif kind == "status" and content["execution_state"] == "idle":
                return (("error", f"its cell raises {raised[0]}") if raised else None), "".join(printed)

    def interrupt(self):
        """Stop what runs, or the kernel if it does not listen."""
        self.manager.interrupt_kernel()
        asked, end = self.client.execute("None"), time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=0.5)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == asked:
                return
        self.manager.shutdown_kernel(now=True)

    def check(self, check, names):
        """`(state, words)` of one check, from a copy of the checks that the learner's code has not seen."""
        nonce = "graded" + secrets.token_hex(12)
        folder = Path(tempfile.mkdtemp(prefix="grade"))
        try:
            copy_of("lesson", folder / "notebooks" / nonce)
            shutil.copytree(PROJECT / "data", folder / "data")
            source = ASK.format(nonce=nonce, folder=str(folder / "notebooks"), check=check, names=names)
            outcome, printed = self.run(source, CHECK_SECONDS)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if outcome:
            return outcome
        answers = [line[len(nonce):] for line in printed.splitlines() if line.startswith(nonce)]
        if len(answers) != 1:
            return "error", "the check could not be asked"
        return tuple(json.loads(answers[0]))


def copy_of(package, to):
    shutil.copytree(PROJECT / "notebooks" / package, to, ignore=shutil.ignore_patterns("__pycache__"))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lesson.grade", description=__doc__.partition(":")[0])
    parser.add_argument("paths", nargs="+", type=Path, help="notebooks, or folders of them")
    parser.add_argument("--json", type=Path, default=PROJECT / "build" / "grades.json", help="where rows go as JSON")
    asked = parser.parse_args(arguments)
    rows = []
    for path in asked.paths:
        found = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        if not found or not path.exists():
            sys.exit(f"{path}: no notebook there")
        for notebook in found:
            graded = grade(notebook)
            rows += graded
            counts = {state: sum(row["state"] == state for row in graded) for state in STATES}
            print(f"{notebook}: " + ", ".join(f"{n} {state}" for state, n in counts.items() if n))
            for row in graded:
                first, *rest = row["words"].splitlines() or [""]
                print(f"  {row['exercise']:5s} {row['title']:42s} {row['state']:13s} {first}")
                for line in rest:
                    print(f"{'':64s}{line}")
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"as JSON: {asked.json}")


if __name__ == "__main__":
    main()
