"""The bundle: what is in it, always the same bytes, whole or not written, and nothing personal."""
import getpass
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from bundles import PROGRESS, ROOT, fuzz, honest, make, progress

from lesson import container, evidence, verify

MEASURED, REAL = evidence.measured, (socket.gethostname(), getpass.getuser())


@pytest.fixture
def measured_once(monkeypatch):
    """Spare a test the training, which others look at."""
    files = {name: content for name, content in honest().items() if name.startswith("arrays/")}
    stated = {name: entry["stated"] for name, entry in json.loads(honest()["claims.json"]).items()}
    monkeypatch.setattr(evidence, "measured", lambda: (dict(files), dict(stated)))


def read(name):
    return json.loads(honest()[name])


def without_record(files):
    """All files, the manifest without its line about the record."""
    manifest = json.loads(files["manifest.json"])
    del manifest["files"]["record.json"]
    return {**files, "manifest.json": manifest, "record.json": None}


def test_another_process_makes_the_same_bytes_but_for_the_record(tmp_path):
    (tmp_path / "progress.json").write_text(json.dumps({**progress(), "notes": {}}))
    env = {**os.environ, "MLM_OUT": str(tmp_path), "PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}
    start = time.monotonic()
    said = subprocess.run([sys.executable, "-m", "lesson.evidence", "make"], cwd=ROOT / "notebooks", env=env,
                          capture_output=True, text=True)
    assert said.returncode == 0 and time.monotonic() - start < 60, said.stderr      # 20 s, were this machine idle
    one, another = honest(), container.open_bundle(tmp_path / "build" / "evidence.zip")
    differing = [name for name in one if one[name] != another[name]]
    apart = {"record.json", "manifest.json"} | {"notes.json", "claims.json"}        # the other has no notes
    assert set(differing) <= apart, differing
    assert another["notes.json"] == b"{}\n"
    assert [p.name for p in (tmp_path / "build").iterdir()] == ["evidence.zip"]


def test_the_same_inputs_give_the_same_bytes(tmp_path, measured_once, monkeypatch):
    one, another = tmp_path / "one.zip", tmp_path / "another.zip"
    make(one, progress())
    monkeypatch.setattr(evidence, "record", lambda files: {"utc": "another day"})
    make(another, progress())
    one, another = container.open_bundle(one), container.open_bundle(another)
    assert without_record(one) == without_record(another) and one["record.json"] != another["record.json"]
    assert without_record(one) == without_record(honest())


def test_measuring_twice_gives_the_same_bytes():
    assert MEASURED() == MEASURED()


def test_what_is_in_it():
    files = honest()
    assert set(files) == {"manifest.json", *verify.about()}
    assert len([name for name in files if name.startswith("figures/")]) == len(list(ROOT.glob("figures/*.png")))
    assert len([name for name in files if name.startswith("notebooks/")]) == 5
    table = read("claims.json")
    assert all(set(entry) == {"statement", "stated", "unit", "tolerance", "files"} for entry in table.values())
    stated = {name: entry["stated"] for name, entry in table.items()}
    assert abs(stated["fixture.first_loss"] - np.log(3)) < 1e-6 and table["hidden.moved_mask"]["unit"] == "nats"
    assert stated["questions"] == [1, 1] and stated["exercises"] == [1, 0] and stated["notes"] == 2
    assert {name: entry["files"] for name, entry in table.items() if not set(entry["files"]) <= set(files)}.keys() <= {
        "corpus.evaluation"}
    assert read("exercises.json") == PROGRESS["exercises"] and read("notes.json") == PROGRESS["notes"]
    assert {entry["state"] for entry in read("questions.json").values()} == {"right", "wrong"}
    for name, content in files.items():
        if name.endswith(".npz"):
            assert dict(np.load(io.BytesIO(content), allow_pickle=False))


def test_record_says_when_and_on_what():
    record = read("record.json")
    assert set(record) == {"utc", "python", "platform", "processor", "jax_devices", "torch_devices", "packages",
                           "jax_flags", "files", "seconds", "seconds_from", "commit"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["utc"])
    assert record["python"] == platform.python_version() and record["jax_devices"]["count"] >= 1
    assert record["packages"]["nbval"] and len(record["packages"]) > 50
    assert record["jax_flags"]["jax_threefry_partitionable"] in (True, False) and len(record["jax_flags"]) == 4
    helper = {"notebooks/mlm/masking.py", "notebooks/lesson/verify.py"}
    assert helper | {name for name in honest() if name.endswith(".ipynb")} <= set(record["files"])
    notebooks = {path.stem for path in ROOT.glob("notebooks/0*.ipynb")}
    assert record["seconds_from"] in ("build/execution.json", "data/reference_run.json")
    whole = record["seconds_from"].startswith("data")       # the other may be of one notebook, run by itself
    assert set(record["seconds"]) == notebooks if whole else set() < set(record["seconds"]) <= notebooks


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="no repository here")
def test_commit_is_the_one_that_is_checked_out(monkeypatch, tmp_path):
    assert re.fullmatch(r"[0-9a-f]{40}", evidence.commit())
    monkeypatch.setattr(evidence, "PROJECT", tmp_path)
    assert evidence.commit() is None


def test_nothing_personal_is_in_it(tmp_path, monkeypatch, measured_once):
    planted = ["some-body-7f3", "some-host-7f3", "a-secret-7f3", "/home/some-body-7f3"]
    for name in ("LOGNAME", "USER", "USERNAME"):
        monkeypatch.setenv(name, planted[0])
    monkeypatch.setenv("API_TOKEN", planted[2])
    monkeypatch.setenv("HOME", planted[3])
    monkeypatch.setenv("HOSTNAME", planted[1])
    monkeypatch.setattr(socket, "gethostname", lambda: planted[1])
    monkeypatch.setattr(platform, "node", lambda: planted[1])
    notebook = json.loads((ROOT / "notebooks" / "01_understand.ipynb").read_text())
    for cell, folder in zip(notebook["cells"][1:], (planted[3], str(ROOT), sys.prefix), strict=False):
        outputs = [{"output_type": "stream", "name": "stderr", "text": [f"{folder}/x.py:1: a warning\n", folder]},
                   {"output_type": "error", "ename": "E", "evalue": f"in {folder}", "traceback": [f"{folder}\x1b[0m"]}]
        cell.update(cell_type="code", outputs=outputs, execution_count=1)
    find = evidence.find
    monkeypatch.setattr(evidence, "find", lambda name: tmp_path / "01.ipynb" if "01_und" in name else find(name))
    (tmp_path / "01.ipynb").write_text(json.dumps(notebook))
    make(tmp_path / "evidence.zip", progress())
    files = container.open_bundle(tmp_path / "evidence.zip")
    private = {*planted, str(Path.home()), str(ROOT), sys.prefix, os.path.realpath(sys.prefix)}
    for name, content in files.items():
        found = [word for word in private if word.encode() in content]
        assert not found, f"{name} holds {found}"
    assert b"<home>/x.py:1: a warning" in files["notebooks/01_understand.ipynb"]
    assert b"<course>/x.py" in files["notebooks/01_understand.ipynb"]
    for name in ("record.json", "claims.json", "manifest.json", "exercises.json", "questions.json"):
        real = {*REAL, *(value for value in os.environ.values() if len(value) > 12)}
        assert not [word for word in real if word.encode() in files[name]], name


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_run_leaves_the_old_bundle_whole(tmp_path, monkeypatch, measured_once, moment):
    path = tmp_path / "evidence.zip"
    make(path, progress())
    before = path.read_bytes()

    def interrupt(*arguments):
        raise KeyboardInterrupt
    monkeypatch.setattr(container.os, moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        make(path, {})
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["evidence.zip"]


def test_what_is_not_there_yet_is_said(tmp_path, monkeypatch, measured_once, capsys):
    find = evidence.find
    monkeypatch.setattr(evidence, "find", lambda name: None if "02_training" in name else find(name))
    path, missing = make(tmp_path / "evidence.zip", {})
    assert missing == ["data/figures/02_training.json", "figures/02_training.png"]
    rows = {row["claim"]: row["verdict"] for row in verify.verify(path)}
    assert rows["picture.02_training"] == rows["numbers.02_training"] == "unverifiable" and "fails" not in rows.values()
    monkeypatch.setattr(evidence, "make", lambda out: (path, missing))
    assert evidence.main(["make"]) == 0
    assert "not in it: figures/02_training.png" in capsys.readouterr().out


def test_arrays_are_packed_again_so_that_the_verifier_can_read_them(tmp_path):
    np.savez(tmp_path / "encoder.npz", embedding=np.ones((2, 3), np.float32))
    raw = evidence.gathered(tmp_path / "encoder.npz")
    assert (container.read_arrays(raw, "encoder.npz", {"embedding": ("float32", (2, 3))})["embedding"] == 1).all()
    np.savez(tmp_path / "encoder.npz", embedding=np.array([{}]))
    with pytest.raises(ValueError, match="allow_pickle"):
        evidence.gathered(tmp_path / "encoder.npz")


def test_help_does_not_wait_for_jax():
    code = "import sys, lesson.evidence as e; assert not {'jax', 'torch', 'nbformat'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "notebooks", check=True)


def test_mutated_bundles_never_crash_the_verifier_and_never_pass_with_a_changed_claim():
    found, longest, _ = fuzz(100, seed="tests")           # more of them: python tests/bundles.py 2000
    assert found[1] > 80 and longest < 20
