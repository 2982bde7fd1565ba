"""The receipt of a machine: what it compares, that it can miss, and the ones that are committed."""
import getpass
import json
import os
import re
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from lesson import receipt

ROOT = Path(__file__).resolve().parents[1]
KEPT = sorted(ROOT.glob("data/receipts/*.json"))


@pytest.fixture(scope="module")
def one():
    return receipt.collect()


def test_this_machine_draws_and_trains_like_the_reference_run(one):
    assert one["holds"] and {run["framework"] for run in one["runs"]} == {"jax", "torch"}
    for run in one["runs"]:
        assert set(run["differences"]) == set(receipt.TOLERANCE)
        assert run["results"]["draws, SHA-256"] == receipt.DRAWS[run["framework"]]
        assert abs(run["results"]["first loss, nats"] - np.log(3)) < 1e-6
    assert {"jax", "jaxlib", "torch", "numpy"} <= set(one["packages"])


def values(**other):
    numbers = json.loads((ROOT / "data" / "fixture.json").read_text())["numbers"]
    found = {name: np.array(numbers[name], float) for name in (
        "loss before each update, nats", "moved mask, nats", "final probability [row, class]", "trained embedding",
        "trained head")}
    found["loss before each update, nats"][0] = np.log(3)
    return found


@pytest.mark.parametrize("name, missed", [
    ("loss before each update, nats", "100 losses, nats"), ("trained head", "trained parameters"),
    ("final probability [row, class]", "final probabilities"), ("moved mask, nats", "moved mask, nats")])
@pytest.mark.parametrize("by", [0.01, np.nan])
def test_a_number_that_is_off_is_missed(name, missed, by):
    masked = [np.stack([case["jax"]["corrupted"], case["jax"]["selected"]], -1) for case in receipt.golden()]
    found = values()
    apart = receipt.compared("jax", found, masked, receipt.DRAWS["jax"])
    assert all(apart[what] <= allowed for what, allowed in receipt.TOLERANCE.items())
    found[name].flat[-1] += by
    apart = receipt.compared("jax", found, masked, receipt.DRAWS["jax"])
    assert [what for what, allowed in receipt.TOLERANCE.items() if not apart[what] <= allowed] == [missed]


def test_one_other_bit_of_a_draw_is_missed():
    masked = [np.stack([case["torch"]["corrupted"], case["torch"]["selected"]], -1) for case in receipt.golden()]
    masked[3][0, 0, 0] += 1
    apart = receipt.compared("torch", values(), masked, receipt.DRAWS["jax"])
    assert apart["golden draws, wrong entries"] == 1 and apart["draws of four shapes, other bits"] == 1


def test_the_command_keeps_a_receipt_and_its_status_tells(tmp_path, monkeypatch, one, capsys):
    monkeypatch.setattr(receipt, "collect", lambda: one)
    monkeypatch.setattr(receipt, "PROJECT", tmp_path)
    assert receipt.main(["--keep", "tpu-v5e"]) == 0
    assert json.loads((tmp_path / "data" / "receipts" / "tpu-v5e.json").read_text()) == one
    assert "golden draws, wrong entries" in capsys.readouterr().out
    monkeypatch.setattr(receipt, "collect", lambda: one | {"holds": False})
    assert receipt.main(["--keep", "other"]) == 1
    with pytest.raises(SystemExit):
        receipt.main(["--keep", "../up"])


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_a_committed_receipt_holds_and_names_nobody(path):
    text = path.read_text()
    kept = json.loads(text)
    assert kept["holds"] and "tolerance" not in kept        # that key marks what notebooks export
    for run in kept["runs"]:
        assert all(entry["met"] and entry["difference"] <= receipt.TOLERANCE[what] == entry["allowed"]
                   for what, entry in run["differences"].items())
        assert set(run["differences"]) == set(receipt.TOLERANCE)
        assert run["results"]["draws, SHA-256"] == receipt.DRAWS[run["framework"]]
    for private in (getpass.getuser(), socket.gethostname(), str(Path.home()), str(ROOT), sys.prefix):
        assert not re.search(rf"(?<!\w){re.escape(private)}(?!\w)", text), private
    assert not [value for value in os.environ.values() if len(value) > 12 and value in text]


def test_there_is_a_receipt_of_a_cpu():
    assert "cpu" in [path.stem for path in KEPT]
