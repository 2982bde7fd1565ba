"""The commands, on a project of two tiny notebooks: what they record, say, and leave alone."""
import asyncio
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lesson import execution, run, script

ROOT = Path(__file__).resolve().parents[1]
GOOD = ["import os, pathlib\nprint('one', flush=True)\nprint('two')",
        "out = pathlib.Path(os.environ['MLM_OUT'], 'figures')\nout.mkdir(parents=True)\n"
        "_ = (out / '01_dot.png').write_bytes(b'a dot')",
        "def fail():\n    raise ValueError('three\\nlines\\nlong')\n\nfail()"]


def write(path, sources, tags=()):
    cells = [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(sources)]
    for cell, tag in tags:
        cells[cell].metadata.tags = [tag]
    cells[0].metadata.execution = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    metadata = {"language_info": {"name": "python", "version": "3.9"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)


@pytest.fixture
def project(tmp_path, monkeypatch):
    notebooks = tmp_path / "a project" / "notebooks"
    shutil.copytree(ROOT / "notebooks" / "lesson", notebooks / "lesson", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "requirements-cpu.txt"):
        shutil.copy(ROOT / name, notebooks.parent)
    write(notebooks / "01_good.ipynb", GOOD, [(2, "raises-exception")])
    write(notebooks / "02_build.ipynb", ["x = 6 * 7\nx"])
    monkeypatch.setattr(run, "NOTEBOOKS", notebooks)
    monkeypatch.setattr(run, "PROJECT", notebooks.parent)
    return notebooks.parent


def tree(project):
    return {path: path.read_bytes() for path in project.rglob("*") if path.is_file() and "build" not in path.parts}


def code(project, name):
    return nbformat.read(project / "notebooks" / name, as_version=4).cells


def test_run_records_and_a_second_run_only_mends(project, capsys):
    run.main([])
    said = capsys.readouterr().out
    assert "01_good: 3 cells" in said       # not in a terminal: a line for each notebook instead of a bar
    assert "output of cell 1, 3; figures/01_dot.png" in said
    assert (project / "figures" / "01_dot.png").read_bytes() == b"a dot"

    first, _, third = code(project, "01_good.ipynb")
    assert [output.text for output in first.outputs] == ["one\ntwo\n"], "one stream, however it came in"
    assert third.outputs[0].traceback == ["ValueError: three\nlines\nlong"], "no path of this machine"
    assert nbformat.read(project / "notebooks" / "01_good.ipynb", as_version=4).metadata == execution.METADATA
    assert first.metadata == {} and third.metadata == {"tags": ["raises-exception"]}

    recorded = tree(project)
    notebook = project / "notebooks" / "02_build.ipynb"
    notebook.write_bytes(recorded[notebook].replace(b'"42"', b'"43"'))
    assert notebook.read_bytes() != recorded[notebook]
    (project / "figures" / "01_dot.png").write_bytes(b"another dot")
    before = (project / "notebooks" / "01_good.ipynb").stat().st_mtime_ns
    run.main([])
    rows = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"01_good +[\d.]+ +3 +1  figures/01_dot.png", rows[-3]), rows
    assert re.fullmatch(r"02_build +[\d.]+ +1 +0  output of cell 1", rows[-2]), rows
    assert rows[-1].startswith("total ")
    assert tree(project) == recorded
    assert (project / "notebooks" / "01_good.ipynb").stat().st_mtime_ns == before, "written although nothing changed"


def test_execution_record_says_on_what_but_not_whose(project, monkeypatch):
    for name in ("LOGNAME", "USER", "USERNAME"):
        monkeypatch.setenv(name, "some-body")
    monkeypatch.setenv("TOKEN", "a-secret")
    monkeypatch.setattr(socket, "gethostname", lambda: "some-host")
    text = run.execution_record({"01_good": 1.5}).decode()
    record = json.loads(text)
    assert set(record) == {"utc", "python", "platform", "processor", "jax_devices", "packages", "seconds"}
    assert record["packages"]["nbval"] and record["jax_devices"]["count"] >= 1
    for private in ("some-body", "some-host", "a-secret", getpass.getuser(), str(Path.home()), str(ROOT), sys.prefix):
        assert private not in text


def test_a_failing_notebook_leaves_everything_as_it_was(project, capsys):
    write(project / "notebooks" / "02_build.ipynb", ["x = 1", "y = 2\nx + z"])
    before = tree(project)
    with pytest.raises(SystemExit) as stopped:
        run.main([])
    for words in ("02_build.ipynb failed in code cell 2:", "y = 2", "NameError: name 'z'", "Nothing was written"):
        assert words in stopped.value.code
    assert tree(project) == before and not (project / "build").exists()


def test_run_names_what_there_is(project):
    assert [path.stem for path in run.choose(["02"])] == ["02_build"]
    with pytest.raises(SystemExit, match="no notebook 09; there are: 01_good, 02_build"):
        run.main(["09"])
    with pytest.raises(SystemExit):
        run.main(["--reference", "02"])


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent in another way there")
def test_ctrl_c_leaves_everything_as_it_was(project):
    slow = "import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(60)"
    write(project / "notebooks" / "01_good.ipynb", [slow])
    before, started = tree(project), project / "notebooks" / "started"
    process = subprocess.Popen([sys.executable, "-m", "lesson.run"], cwd=project / "notebooks", stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    for _ in range(600):
        if started.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=50)[0]           # the cell would sleep for longer
    assert process.returncode == 1 and "Stopped. Nothing was written" in said and "Traceback" not in said, said
    started.unlink()
    assert tree(project) == before


def test_what_misses_one_stop_is_stopped_again(monkeypatch):
    monkeypatch.setattr(execution, "AGAIN", 0.05)

    async def stubborn():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(30)

    async def fails():
        await asyncio.sleep(0.05)
        raise ValueError("of the other")
    start = time.monotonic()
    with pytest.raises(ValueError, match="of the other"):
        execution.wait_for(stubborn(), fails())
    assert time.monotonic() - start < 10


def test_script_is_made_of_the_tagged_cells_in_order():
    text, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    tag = {"tags": ["script"]}
    nb = nbformat.v4.new_notebook(cells=[
        text("# 2 Build\n\n```python\n# not a heading\n```"), code("left_out = 1"),
        text("## 2.1 First"), code("a = 1", metadata=tag), code("b = 2", metadata=tag),
        text("## 2.2 Second"), code("print('PASS', a + b)", metadata=tag)])
    program = script.collect(nb, "02_build.ipynb")
    assert "made by `make script`" in program and "left_out" not in program
    body = program.split("\n\n\n", 1)[1]
    assert body == "# 2.1 First\na = 1\n\n\nb = 2\n\n\n# 2.2 Second\nprint('PASS', a + b)\n"

    nb.cells[-1].source = "%time print('PASS')"
    with pytest.raises(SystemExit, match="not plain Python"):
        script.collect(nb, "02_build.ipynb")
    with pytest.raises(SystemExit, match="No cell of 02_build.ipynb is tagged"):
        script.collect(nbformat.v4.new_notebook(cells=nb.cells[:2]), "02_build.ipynb")


@pytest.mark.parametrize("program, says", [
    ("print('PASS'); print('no')", "last line"), ("", "last line"), ("print('PASS'); raise SystemExit(3)", "status 3")])
def test_script_ends_in_pass_or_fails(tmp_path, program, says):
    (tmp_path / "program.py").write_text(program)
    with pytest.raises(SystemExit, match=says):
        script.run(tmp_path / "program.py")


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make here; README says how to do without")


def make(project, *arguments):
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}       # of `make test`
    return subprocess.run(["make", *arguments], cwd=project, env=env, capture_output=True, text=True)


@needs_make
def test_make_alone_names_every_target(project):
    targets = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[1].split()
    said = make(project)
    assert said.returncode == 0 and said.stdout == make(project, "help").stdout
    assert [line.split()[1] for line in said.stdout.splitlines()] == targets
    assert {"run", "test", "lab", "lint", "script", "clean"} <= set(targets)


@needs_make
def test_make_wants_a_newer_python_in_words(project):
    for python in ("no-such-python", "false"):
        said = make(project, "test", f"PYTHON={python}")
        assert said.returncode and "needs Python 3.11 or newer" in said.stdout
        assert not (project / ".venv").exists()
