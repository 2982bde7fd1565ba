"""Run the notebooks, each from a fresh kernel, and record what they gave: `python -m lesson.run`.

Nothing in the tree changes before every notebook has succeeded.
"""
import argparse
import json
import platform
import re
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from tqdm import tqdm

from .execution import LONGEST_CELL, execute, tidy, wait_for

NOTEBOOKS = Path(__file__).resolve().parents[1]
PROJECT = NOTEBOOKS.parent
AS_IT_WAS = "Nothing was written: notebooks, figures/ and data/ are as they were."


def differences(old, new, exports):
    """What a run changed against the record, in words, by execution count and file name."""
    recorded = {cell.id: cell.get("outputs") for cell in tidy(old).cells}
    cells = [str(cell.execution_count) for cell in new.cells
             if cell.cell_type == "code" and recorded.get(cell.id) != cell.outputs]
    files = [name for name, content in exports.items()
             if not name.startswith("build/") and not same(PROJECT / name, content)]       # build/ is no record
    return "; ".join(["output of cell " + ", ".join(cells)] * bool(cells) + files) or "nothing"


def same(path, content):
    return path.is_file() and path.read_bytes() == content


def execution_record(seconds):
    """When and on what this ran. No name of a person or a machine, no path, no setting."""
    import jax  # only here: who asks for --help need not wait for it

    installed = {package.name.lower(): package.version for package in distributions()}
    pinned = re.findall(r"^([\w.-]+)==", (PROJECT / "requirements-cpu.txt").read_text(encoding="utf-8"), re.M)
    info = Path("/proc/cpuinfo")        # on Linux, where Python does not know the processor
    model = re.search(r"^model name\s*:\s*(.+)", info.read_text(), re.M) if info.exists() else None
    record = {"utc": datetime.now(UTC).isoformat(timespec="seconds"), "python": platform.python_version(),
              "platform": f"{platform.system()} {platform.machine()}",
              "processor": model[1] if model else platform.processor(),
              "jax_devices": {"kind": jax.devices()[0].device_kind, "count": jax.device_count()},
              "packages": {name: installed.get(name) for name in pinned}, "seconds": seconds}
    return (json.dumps(record, indent=1) + "\n").encode()


def choose(names):
    """The notebooks that `names` mean, all of them for none: 03, 03_experiment or a path."""
    paths = sorted(NOTEBOOKS.glob("0*_*.ipynb"))
    wrong = [name for name in names if not any(path.name.startswith(Path(name).name) for path in paths)]
    if wrong or not paths:
        there = ", ".join(path.stem for path in paths) or "none"
        sys.exit(f"no notebook {', '.join(wrong) or '0*_*.ipynb'}; there are: {there}")
    return [path for path in paths if not names or any(path.name.startswith(Path(name).name) for name in names)]


async def run_one(path, out, bar):
    """Run one notebook and move `bar`; gives `(notebook, seconds)` or raises `Failed` in words."""
    reached, start = [], time.monotonic()

    def on_cell(cell):
        bar.set_postfix_str(f"{path.stem}, cell {len(reached) + 1}")
        bar.update(bool(reached))           # the one before is done
        reached.append(cell)
    try:
        nb = await execute(path, out, on_cell)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        why = (f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else
               f"It ran longer than {LONGEST_CELL} s." if isinstance(error, CellTimeoutError) else
               "Its kernel stopped (was there enough memory?)")
        lines = ["    " + line for line in reached[-1].source.splitlines()] if reached else []
        words = [f"\n{path.name} failed in code cell {len(reached)}:", "", *lines[:6], *["    ..."] * (len(lines) > 6),
                 "", why, "", AS_IT_WAS, f"To see the whole traceback, run {path.name} up to that cell in JupyterLab."]
        raise Failed("\n".join(words)) from None
    bar.update(bool(reached))
    seconds = time.monotonic() - start
    bar.write(f"{path.stem}: {len(reached)} cells in {seconds:.1f} s")
    return nb, seconds


class Failed(Exception):
    pass


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lesson.run", description=__doc__.partition(":")[0])
    parser.add_argument("notebooks", nargs="*", help="only these, by the beginning of their name, for example 03")
    parser.add_argument("--reference", action="store_true", help="also keep the execution record in data/")
    asked = parser.parse_args(arguments)
    if asked.reference and asked.notebooks:
        parser.error("--reference is a record of all notebooks; name none")
    paths, writes, seconds = choose(asked.notebooks), {}, {}
    before, start = {path: path.read_bytes() for path in paths}, time.monotonic()
    rows = [("notebook", "seconds", "cells", "figures", "differs from the recorded run")]
    recorded = {path: nbformat.reads(text.decode(), as_version=4) for path, text in before.items()}
    cells = sum(cell.cell_type == "code" for nb in recorded.values() for cell in nb.cells)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with tqdm(total=cells, unit="cell", disable=None) as bar:          # None: a bar only in a terminal
                done = wait_for(*(run_one(path, Path(scratch, path.stem), bar) for path in paths))
        except Failed as failed:
            sys.exit(str(failed))
        for path, (nb, took) in zip(paths, done, strict=True):
            out = Path(scratch, path.stem)
            exports = {p.relative_to(out).as_posix(): p.read_bytes() for part in ("figures", "data", "build")
                       for p in sorted(out.glob(part + "/**/*")) if p.is_file()}    # not a learner's progress.json
            seconds[path.stem] = round(took, 1)
            rows.append((path.stem, f"{took:.1f}", str(sum(cell.cell_type == "code" for cell in nb.cells)),
                         str(sum(name.endswith(".png") for name in exports)),
                         differences(recorded[path], nb, exports)))
            writes |= {PROJECT / name: content for name, content in exports.items()}
            writes[path] = (nbformat.writes(nb).rstrip("\n") + "\n").encode()
    edited = [path.name for path, content in before.items() if not same(path, content)]
    if edited:
        sys.exit(f"{', '.join(edited)} was edited while it ran. {AS_IT_WAS} Run again.")
    for name in ["build/execution.json"] + ["data/reference_run.json"] * asked.reference:
        writes[PROJECT / name] = execution_record(seconds)
    listening = signal.signal(signal.SIGINT, signal.SIG_IGN)        # from here on all of it, file by file, each whole
    for path, content in writes.items():
        if not same(path, content):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(path.name + ".part").write_bytes(content)
            path.with_name(path.name + ".part").replace(path)
    signal.signal(signal.SIGINT, listening)
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print(f"{row[0]:{widths[0]}}  " + "  ".join(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3)) + f"  {row[4]}")
    print(f"total {time.monotonic() - start:.1f} s, two at a time; when and on what: build/execution.json")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(f"\nStopped. {AS_IT_WAS}")
