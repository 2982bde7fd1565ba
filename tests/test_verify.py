"""The verifier against cheats, each caught by name, and against files made to break it."""
import base64
import io
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from zipfile import ZIP_DEFLATED

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from bundles import ROOT, edit_array, edit_json, honest, judged, peak, rezip, sealed, with_verdict

import mlm
from lesson import claims, container, corpus_claims, evidence, handed_in, recompute, recorded, verify
from lesson.container import Malformed

RANDOM = np.random.default_rng(0)


def test_an_honest_bundle_holds():
    rows = judged(container.pack(honest()))
    assert with_verdict(rows, "fails") == {} == with_verdict(rows, "unverifiable") and verify.status(rows) == 0
    assert set(with_verdict(rows, "not checked")) == {"exercises", "notes", "record.self"}
    assert len(rows) == len(verify.TABLE) + 1


# Cheats with a manifest that fits: what was changed, and the claim that must be named.

def stated(name, value):
    return lambda files: edit_json(files, "claims.json", lambda table: table[name].update(stated=value))


def says(name, key, value):
    return lambda files: edit_json(files, "claims.json", lambda table: table[name].update({key: value}))


def without(name):
    return lambda files: edit_json(files, "claims.json", lambda table: {k: v for k, v in table.items() if k != name})


def entry(file, array, place, value):
    def change(values):
        values[place] = value
    return lambda files: edit_array(files, f"arrays/{file}.npz", array, change)


def noise(file, *arrays):
    def cheat(files):
        for array in arrays:
            edit_array(files, f"arrays/{file}.npz", array,
                       lambda values: RANDOM.normal(size=values.shape).astype(values.dtype))
    return cheat


def untrained(files):
    start = recompute.arrays(files, recompute.FIXTURE)["jax_initial_embedding"]
    edit_array(files, "arrays/fixture.npz", "jax_trained_embedding", lambda values: start)


def number(file, *path, by=1.5):
    """Multiply the number at the end of `path` by something, or put a text or a truth value in its place."""
    def change(value):
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = value[path[-1]] * by if isinstance(by, float) else by
    return lambda files: edit_json(files, file, change)


def figure(name, *path, by=1.5):
    return number(f"data/figures/{name}.json", "numbers", *path, by=by)


def painted(files, name="figures/02_training.png", at=(300, 300), size=10):
    """Paint a small square black, of about the size of a digit."""
    image = matplotlib.image.imread(io.BytesIO(files[name]), format="png").copy()
    image[at[0]:at[0] + size, at[1]:at[1] + size] = (0, 0, 0, 1)
    files[name] = png(image)


def png(image):
    out = io.BytesIO()
    matplotlib.image.imsave(out, image, format="png", dpi=200, metadata={"Software": None})
    return out.getvalue()


def with_chunk(kind, content):
    def cheat(files):
        old = files["figures/02_training.png"]
        chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        files["figures/02_training.png"] = old[:33] + chunk + old[33:]
    return cheat


def swapped(files):
    files["figures/03_branch_loss.png"] = files["figures/03_hidden_count.png"]


def longer(files):
    files["figures/02_training.png"] += b"more"


def output(name, find, change, before=None):
    """Change the first output that holds the text `find`; `before` is put in front of the first code cell."""
    def edit(nb):
        if before:
            first = next(cell for cell in nb["cells"] if cell["cell_type"] == "code")
            first["source"] = [before, *first["source"]]
        for cell in nb["cells"]:
            if cell["cell_type"] == "code" and find in json.dumps(cell["outputs"]):
                return change(cell)
        raise AssertionError(f"no output of {name} holds {find}")

    def cheat(files):
        file = f"notebooks/{name}.ipynb"
        edit_json(files, file, edit)
        edit_json(files, "record.json", lambda record: record["files"].update({file: handed_in.hashlib.sha256(
            files[file]).hexdigest()}))
    return cheat


def other_text(cell):
    cell["outputs"][0]["text"] = ["first 1.0986 nats, last recorded 0.0001\n"]


def other_picture(cell):
    files = {"figures/02_training.png": base64.b64decode("".join(cell["outputs"][0]["data"]["image/png"]))}
    painted(files)
    cell["outputs"][0]["data"]["image/png"] = base64.b64encode(files["figures/02_training.png"]).decode()


def nothing(cell):
    cell["outputs"] = []


def first_answer(key, value):
    return lambda files: edit_json(files, "questions.json", lambda table: table[min(table)].update({key: value}))


def corpus(part, name, **values):
    """Change what the evaluation of the corpus says."""
    return lambda files: edit_json(files, "data/corpus_evaluation.json",
                                   lambda body: body["numbers"][part][name].update(values))


def encoder(change):
    """Change a parameter of the saved encoder."""
    def cheat(files):
        with np.load(io.BytesIO(files["data/encoder.npz"])) as stored:
            arrays = {name: stored[name].copy() for name in stored}
        change(arrays)
        files["data/encoder.npz"] = container.pack_arrays(arrays)
    return cheat


def added(files):
    edit_json(files, "claims.json", lambda table: {**table, "sky.is_blue": table["fixture.count"]})


CHEATS = {
    "a stated number": (stated("fixture.first_loss", 1.05), "fixture.first_loss"),
    "a stated number, of another type": (stated("fixture.count", "3"), "fixture.count"),
    "a stated number, far too large": (stated("fixture.last_loss", 10**19), "fixture.last_loss"),
    "a number where none is stated": (stated("fixture.batch", 12), "fixture.batch"),
    "a stated list": (stated("golden.counts", [10] * 12), "golden.counts"),
    "a stated list, shorter": (stated("golden.counts", [10]), "golden.counts"),
    "a wider tolerance": (says("fixture.trained", "tolerance", 10), "fixture.trained"),
    "a tolerance that is no number": (says("fixture.count", "tolerance", False), "fixture.count"),
    "another unit": (says("hidden.3", "unit", "bits"), "hidden.3"),
    "another statement": (says("hidden.4", "statement", "the model knows four hidden tokens"), "hidden.4"),
    "other files": (says("hidden.1", "files", []), "hidden.1"),
    "a claim removed": (without("hidden.2"), "hidden.2"),
    "a claim added": (added, "sky.is_blue"),
    "random parameters": (noise("fixture", "jax_trained_embedding", "jax_trained_head"), "fixture.trained"),
    "random parameters, their loss": (noise("fixture", "jax_trained_embedding"), "fixture.final_loss"),
    "random parameters, what follows": (noise("fixture", "jax_trained_head"), "hidden.losses"),
    "random parameters in PyTorch": (noise("fixture", "torch_trained_head"), "fixture.trained"),
    "random parameters before training": (noise("fixture", "jax_initial_embedding"), "fixture.initial"),
    "a head that is not zero": (noise("fixture", "jax_initial_head"), "fixture.first_loss"),
    "one parameter": (entry("fixture", "jax_trained_head", (5, 2), 0.01), "fixture.trained"),
    "untrained parameters": (untrained, "fixture.probability"),
    "a mask": (entry("fixture", "selected", (1, 2), True), "fixture.batch"),
    "a mask, its count": (entry("fixture", "selected", (1, 2), True), "fixture.count"),
    "an empty mask": (entry("fixture", "selected", ..., False), "fixture.first_loss"),
    "a target": (entry("fixture", "targets", (0, 1), 2), "fixture.batch"),
    "a target outside the classes": (entry("fixture", "targets", (0, 1), -7), "fixture.first_loss"),
    "an input": (entry("fixture", "corrupted", (2, 1), 2), "fixture.batch"),
    "an input outside the table": (entry("fixture", "corrupted", (2, 1), 2**30), "fixture.final_loss"),
    "the history": (entry("fixture", "jax_history", 50, 0.01), "fixture.history"),
    "the history in PyTorch": (entry("fixture", "torch_history", 99, 0.0), "fixture.history"),
    "final probabilities": (entry("fixture", "final_probability", (0, 0), 0.999), "fixture.probability"),
    "a gradient of the fixture": (entry("fixture", "output_gradient", (0, 1, 0), 0.0), "gradient.fixture"),
    "the moved mask": (entry("hidden", "moved_selected", (0, 2), False), "hidden.inputs"),
    "a hidden place": (entry("hidden", "selected", (4, 0, 0), False), "hidden.inputs"),
    "a loss of a choice": (entry("hidden", "loss", 14, 0.9), "hidden.losses"),
    "a probability": (entry("objective", "probability", (0, 0, 0), 0.9), "objective.batch"),
    "a probability of zero": (entry("objective", "probability", (0, 0, 0), 0), "gradient.formula"),
    "a gradient": (entry("objective", "jax_gradient", (1, 1, 1), 0.5), "gradient.formula"),
    "a gradient where nothing is selected": (entry("objective", "torch_gradient", (0, 1, 1), 1e-12),
                                             "gradient.unselected"),
    "a golden array": (entry("golden", "jax_4", (0, 0, 0), 1), "golden.draws"),
    "a golden array in PyTorch": (entry("golden", "torch_5", (0, 0, 1), 1), "golden.draws"),
    "a seed": (number("data/golden_masking.json", "cases", 0, "seed", by=8), "golden.seeds"),
    "the saved fixture": (number("data/fixture.json", "numbers", "moved mask, nats"), "numbers.fixture"),
    "the saved mask": (number("data/fixture.json", "numbers", "selected", 0, 0, by=True), "numbers.fixture"),
    "the saved failure": (number("data/failure.json", "numbers", "probability [text, class]", 0, 0), "numbers.failure"),
    "the saved table": (number("data/claims.json", "numbers", "3 of 4 hidden, nats", "measured"), "numbers.claims"),
    "a limit in the table": (number("data/claims.json", "numbers", "moved mask, nats", "limit", by="none"),
                             "numbers.claims"),
    "a curve": (figure("02_training", "loss before each update, nats", 60), "numbers.02_training"),
    "a curve in PyTorch": (figure("02_jax_vs_torch", "PyTorch loss, nats", 60), "numbers.02_jax_vs_torch"),
    "a figure's bar": (figure("03_branch_loss", "trained on 80/10/10", "random"), "numbers.03_branch_loss"),
    "a figure's count": (figure("03_branch_shares", "selected in all", "JAX", by=15270), "numbers.03_branch_shares"),
    "a figure's tolerance": (number("data/figures/03_leak_audit.json", "tolerance", "rtol", by=9),
                             "numbers.03_leak_audit"),
    "a figure's description": (number("data/figures/04_gradient.json", "alt", by="All is well."),
                               "numbers.04_gradient"),
    "a picture": (painted, "picture.02_training"),
    "another picture": (swapped, "picture.03_branch_loss"),
    "a picture that moves": (with_chunk(b"acTL", struct.pack(">II", 2, 0)), "picture.02_training"),
    "a picture with a tail": (longer, "picture.02_training"),
    "an output": (output("02_build", "last recorded", other_text), "notebook.02_build"),
    "an output's picture": (output("02_build", "image/png", other_picture), "notebook.02_build"),
    "an output removed": (output("03_experiment", "stream", nothing), "notebook.03_experiment"),
    "the encoder, random": (encoder(lambda arrays: arrays.update({
        name: RANDOM.normal(size=x.shape).astype(x.dtype) * 0.1 for name, x in arrays.items()})), "corpus.encoder"),
    "the encoder, another shape": (encoder(lambda arrays: arrays.update(bias=arrays["bias"][:9])), "corpus.encoder"),
    "the encoder, one not finite": (encoder(lambda arrays: arrays["bias"].fill(np.nan)), "corpus.encoder"),
    "the encoder, far too large": (encoder(lambda arrays: arrays["token"].fill(3e38)), "corpus.encoder"),
    "a loss of the encoder": (corpus("library", "encoder, masked", nats=1e5), "corpus.encoder"),
    "a loss of the encoder, a little": (corpus("documents", "encoder, kept", nats=1700.0), "corpus.encoder"),
    "a loss of the neighbours": (corpus("rows", "neighbours, all", nats=9e4), "corpus.neighbours"),
    "a loss that is text": (corpus("rows", "unigram, all", nats="many"), "corpus.neighbours"),
    "a count of the corpus": (corpus("library", "encoder, all", tokens=10**5), "corpus.masks"),
    "an evaluation mask": (number("data/corpus_evaluation.json", "numbers", "library", "selected positions, SHA-256",
                                  by="0" * 64), "corpus.masks"),
    "an overlap": (number("data/corpus_evaluation.json", "numbers", "library", "12-token overlap", by=0.1),
                   "numbers.corpus_evaluation"),
    "a document": (number("data/corpus.json", "documents", 0, 3, by="library"), "corpus.documents"),
    "the tokenizer": (number("data/tokenizer.json", "model", "vocab", "the", by=7), "corpus.tokenizer"),
    "the failure of the corpus": (number("data/failure_corpus.json", "numbers", "hidden", by="array"),
                                  "numbers.failure_corpus"),
    "a right answer": (first_answer("state", "wrong"), "questions"),
    "what was said to an answer": (first_answer("words", "Well done."), "questions"),
    "a letter": (first_answer("letter", "z"), "questions"),
    "an unknown question": (lambda files: edit_json(files, "questions.json", lambda t: {"Q9.9": t[min(t)]}),
                            "questions"),
    "a number of right answers": (stated("questions", [22, 0]), "questions"),
    "a number of right exercises": (stated("exercises", [13, 0]), "exercises"),
    "a wrong answer removed": (lambda files: edit_json(files, "questions.json", lambda t: {min(t): t[min(t)]}),
                               "questions"),
    "an exercise that is none": (number("exercises.json", "4.1", "state", by="perfect"), "exercises"),
    "a note that is none": (number("notes.json", "3.1", "kind", by="proof"), "notes"),
    "the hash of a notebook": (lambda files: edit_json(files, "record.json", lambda record: record["files"].update(
        {"notebooks/01_understand.ipynb": "0" * 64})), "record.files"),
    "a figure left out, but claimed": (lambda files: files.pop("figures/04_gradient.png"), "picture.04_gradient"),
    "a notebook left out, but recorded": (lambda files: files.pop("notebooks/04_exercise.ipynb"), "record.files"),
    "a line of the record": (lambda files: edit_json(files, "record.json", lambda record: record.pop("utc")),
                             "record.self"),
}
assert len(CHEATS) >= 25


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_caught_by_name(cheat):
    files = honest()
    change, name = CHEATS[cheat]
    change(files)
    rows = judged(sealed(files))
    assert name in with_verdict(rows, "fails") and verify.status(rows) == 1, verify.table(rows)
    assert not any("not foreseen" in row["reason"] for row in rows), with_verdict(rows, "fails")
    json.loads(verify.as_json(rows), parse_constant=lambda text: pytest.fail(text))


def test_nothing_else_is_blamed():
    files = honest()
    CHEATS["a picture"][0](files)
    rows = judged(sealed(files))
    assert list(with_verdict(rows, "fails")) == ["picture.02_training"]
    assert "near pixel 30" in with_verdict(rows, "fails")["picture.02_training"]


# What cannot be checked is said, and is no failure

def left_out(name, claim):
    def change(files):
        del files[name]
        without(claim)(files)
        not_recorded(name)(files)
    return change


def not_recorded(name):
    return lambda files: edit_json(files, "record.json", lambda record: record.update(
        files={key: value for key, value in record["files"].items() if key != name}))


UNVERIFIABLE = {
    "a figure left out": (left_out("figures/02_training.png", "picture.02_training"), "picture.02_training"),
    "numbers left out": (left_out("data/figures/02_training.json", "numbers.02_training"), "numbers.02_training"),
    "a notebook left out": (left_out("notebooks/04_exercise.ipynb", "notebook.04_exercise"), "notebook.04_exercise"),
    "an output below a cell of one's own": (output("02_build", "last recorded", other_text, "rate = 1\n"),
                                            "notebook.02_build"),
    "the hash of a helper": (lambda files: edit_json(files, "record.json", lambda record: record["files"].update(
        {"notebooks/mlm/masking.py": "0" * 64})), "record.files"),
    "a helper not recorded": (not_recorded("notebooks/mlm/masking.py"), "record.files")}


@pytest.mark.parametrize("case", UNVERIFIABLE)
def test_what_cannot_be_checked_is_no_failure_and_no_success(case):
    files = honest()
    change, name = UNVERIFIABLE[case]
    change(files)
    rows = judged(sealed(files))
    assert list(with_verdict(rows, "unverifiable")) == [name] and with_verdict(rows, "fails") == {}
    assert verify.status(rows) == 3


def test_a_figure_that_only_a_solution_draws_may_be_missing():
    files = honest()
    left_out("figures/04_gradient.png", "picture.04_gradient")(files)
    left_out("data/figures/04_gradient.json", "numbers.04_gradient")(files)
    rows = judged(sealed(files))
    assert verify.status(rows) == 0 and {"picture.04_gradient", "numbers.04_gradient"} <= set(
        with_verdict(rows, "not checked"))


def test_a_learners_own_cells_and_pictures_of_other_bytes_hold():
    files = honest()
    image = matplotlib.image.imread(io.BytesIO(files["figures/02_training.png"]), format="png")
    files["figures/02_training.png"] = png(np.clip(image + 1 / 255, 0, 1))
    output("02_build", "last recorded", lambda cell: cell.update(outputs=[], execution_count=None), "mine = 1\n")(files)
    edit_json(files, "data/fixture.json", lambda body: body["packages"].update(jax="0.10.2"))
    rows = {row["claim"]: row for row in judged(sealed(files))}
    assert verify.status(rows.values()) == 0
    assert rows["picture.02_training"]["reason"] == "other bytes, same picture"
    assert "changed or added 1, left out 1, not run 1" in rows["notebook.02_build"]["reason"]


def test_only_run_judges_exercises(monkeypatch):
    states = dict.fromkeys(handed_in.exercise_states(honest()), "not attempted")
    raw = container.pack(honest())
    for found, verdict in ((states | {"4.1": "right"}, "holds"), (states, "fails"), ("no time", "unverifiable"),
                           (states | {"4.1": "right", "4.2": "wrong"}, "fails")):
        monkeypatch.setattr(verify, "graded", lambda notebook, found=found: found)
        rows = {row["claim"]: row for row in judged(raw, run=True)}
        assert rows["exercises"]["verdict"] == verdict, rows["exercises"]


def test_answers_are_run_in_another_process_with_a_limit(monkeypatch):
    assert set(verify.graded(b"{}").values()) == {"error"}          # no notebook, so no answer
    monkeypatch.setattr(verify, "RUN_SECONDS", 0.2)
    assert verify.graded(b"{}") == "the answers took longer than 0.2 s in all"


# Integrity

@pytest.mark.parametrize("name", ["manifest.json", *sorted(verify.about())])
def test_a_flipped_byte_is_caught_in_every_file(name):
    raw = bytearray(container.pack(honest()))
    at = raw.find(honest()[name])
    raw[at + len(honest()[name]) // 2] ^= 1
    [row] = judged(bytes(raw))
    assert row["claim"] == "integrity" and row["verdict"] == "fails" and name in row["reason"]

    files = honest()                    # and with the checksums of the zip mended, but not the manifest
    content = bytearray(files[name])
    content[len(content) // 2] ^= 1
    files[name] = bytes(content)
    rows = judged(container.pack(files))
    assert len(rows) == 1 and (name in rows[0]["reason"] or "manifest.json" in (name, *rows[0]["reason"].split())), rows


def test_a_flipped_byte_is_caught_everywhere():
    raw = container.pack(honest())
    for at in [*RANDOM.integers(0, len(raw), 60), *range(len(raw) - 22, len(raw)), *range(40)]:
        changed = bytearray(raw)
        changed[at] ^= 1 << int(RANDOM.integers(8))
        assert verify.status(judged(bytes(changed))) == 1, f"byte {at}"


MANIFESTS = {
    "another sentence": (lambda m: m["files"]["claims.json"].update(claims="all is proved"), "claims.json"),
    "another size": (lambda m: m["files"]["record.json"].update(bytes=7), "record.json"),
    "a size that is no number": (lambda m: m["files"]["record.json"].update(bytes=True), "record.json"),
    "another hash": (lambda m: m["files"]["notes.json"].update(sha256="0"), "notes.json"),
    "a line removed": (lambda m: m["files"].pop("notes.json"), "notes.json is not listed"),
    "a line added": (lambda m: m["files"].update(more={}), "more is listed, but not there"),
    "a line that is none": (lambda m: m["files"].update({"notes.json": 7}), "notes.json"),
    "no lines": (lambda m: m.update(files=[]), "format and files"),
    "another format": (lambda m: m.update(format=2), "format 2"),
    "no table": (lambda m: [m], "format and files")}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_does_not_fit(case):
    files = honest()
    change, words = MANIFESTS[case]
    edit_json(files, "manifest.json", lambda manifest: r if isinstance(r := change(manifest), list) else None)
    [row] = judged(container.pack(files))
    assert row["verdict"] == "fails" and words in row["reason"], row


# Hostile files: one line each

def spoiled(change, name="notes.json"):
    def spoil(entry):
        if entry.filename == name:
            change(entry)
    return rezip(honest(), spoil)


def named(name):
    return lambda: rezip(honest(), extra=[(name, b"x")])


def patched(*pairs):
    """A bundle with bytes at the end replaced: pairs of `(place from the end, bytes)`."""
    raw = bytearray(container.pack(honest()))
    for at, content in pairs:
        raw[len(raw) + at:len(raw) + at + len(content)] = content
    return bytes(raw)


def directory_field(offset, content, name="notes.json"):
    """The central directory's line of one file, with the bytes at `offset` replaced."""
    raw = bytearray(container.pack(honest()))
    at = raw.rfind(name.encode()) - 46 + offset
    raw[at:at + len(content)] = content
    return bytes(raw)


def many(entries):
    return rezip({f"a{i}.json": b"" for i in range(entries)})


def nested():
    files = honest()
    files["arrays/golden.npz"] = rezip({"jax_0.npy": b"\0" * 10**6}, compress=ZIP_DEFLATED)
    return sealed(files)


HOSTILE = {
    "nothing": (lambda: b"", "is empty"),
    "text": (lambda: b"hello, this is no zip", "is no zip"),
    "cut short": (lambda: container.pack(honest())[:-1000], "cut short"),
    "cut to its first bytes": (lambda: b"PK\3\4", "cut short"),
    "a tail": (lambda: container.pack(honest()) + b"more", "something follows"),
    "something before it": (lambda: b"PK\3\4 " + container.pack(honest()), "does not fit"),
    "a comment": (lambda: patched((-2, b"\5\0")) + b"hello", "cut short, or something follows"),
    "a folder up": (named("../evil.json"), "../evil.json leads out"),
    "a folder up, inside": (named("data/../../evil.json"), "leads out"),
    "a folder up on Windows": (named("data\\..\\evil.json"), "leads out"),
    "an absolute path": (named("/tmp/evil.json"), "absolute"),
    "a drive": (named("C:evil.json"), "absolute"),
    "a folder": (named("data/evil/"), "is a folder"),
    "a name with control characters": (named("a\x1b[2J.json"), "a?[2J.json is no name"),
    "a name with a NUL": (lambda: named("notes.jsonX.json")().replace(b"notes.jsonX", b"notes.json\0"), "is no name"),
    "a name that is not ASCII": (named("nötes.json"), "is no name"),
    "a long name": (named("a" * 3000 + ".json"), "is no name"),
    "a longer name": (named("a" * 30_000 + ".json"), "directory"),
    "another ending": (named("evil.py"), "evil.py is no name"),
    "a file too many": (lambda: sealed({**honest(), "data/evil.json": b"x"}), "data/evil.json is no file of a bundle"),
    "a name twice": (lambda: named("notes.jsoX")().replace(b"notes.jsoX", b"notes.json"), "twice"),
    "a name twice but for its case": (named("Notes.json"), "twice"),
    "a link": (lambda: spoiled(lambda e: setattr(e, "external_attr", 0o120777 << 16)), "notes.json is a link"),
    "a device": (lambda: spoiled(lambda e: setattr(e, "external_attr", 0o020666 << 16)), "not written as"),
    "executable": (lambda: spoiled(lambda e: setattr(e, "external_attr", 0o100755 << 16)), "not written as"),
    "another date": (lambda: spoiled(lambda e: setattr(e, "date_time", (2026, 1, 1, 0, 0, 0))), "not written as"),
    "hidden bytes": (lambda: spoiled(lambda e: setattr(e, "extra", b"\x99\x99\2\0hi")), "directory|not written as"),
    "compressed": (lambda: rezip(honest(), compress=ZIP_DEFLATED), "compressed"),
    "a bomb": (lambda: rezip({"notes.json": b"\0" * 10**8}, compress=ZIP_DEFLATED), "compressed"),
    "a bomb inside an array": (nested, "arrays/golden.npz: jax_0.npy is compressed"),
    "a bomb of BZIP2": (lambda: directory_field(10, b"\x0c\0"), "compressed"),
    "an unknown method": (lambda: directory_field(10, b"\x63\0"), "compressed"),
    "encrypted": (lambda: directory_field(8, b"\1\0"), "encrypted"),
    "a header that lies about its size": (lambda: directory_field(24, b"\xff\xff\xff\x7f"), "claims 2147483647 bytes"),
    "two headers that lie": (lambda: directory_field(20, b"\xff\xff\xff\x7f" * 2), "more bytes than it has"),
    "an entry elsewhere": (lambda: directory_field(42, b"\xff\xff\xff\x7f"), "damaged"),
    "another entry's place": (lambda: directory_field(42, b"\0\0\0\0"), "damaged"),
    "a million entries": (lambda: patched((-14, struct.pack("<HH", 0xFFFF, 0xFFFF))), "zip64"),
    "sixty thousand entries": (lambda: patched((-14, struct.pack("<HH", 60000, 60000))), "60000 entries"),
    "six hundred entries": (lambda: many(600), "600 entries"),
    "many entries, counted as few": (lambda: many(600)[:-14] + struct.pack("<HH", 5, 5) + many(600)[-10:], "directory"),
    "two disks": (lambda: patched((-18, b"\1\0")), "does not fit"),
    "a directory of no size": (lambda: patched((-10, b"\0\0\0\0")), "does not fit"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_gets_one_line(case):
    make, words = HOSTILE[case]
    rows = judged(make())
    reasons = list({row["reason"] for row in rows if row["verdict"] == "fails"})
    assert verify.status(rows) == 1 and len(reasons) == 1, reasons
    assert any(part in reasons[0] for part in words.split("|")) and "\n" not in reasons[0], reasons
    assert reasons[0].isprintable() and len(reasons[0]) < 250


def test_a_path_that_is_no_bundle(tmp_path):
    (tmp_path / "large.zip").touch()
    with (tmp_path / "large.zip").open("r+b") as file:
        file.truncate(container.LARGEST + 1)                # sparse: no bytes on the disk
    for path, words in ((tmp_path / "none.zip", "No such file"), (tmp_path, "folder"), ("a\0b", "null"),
                        (tmp_path / "large.zip", "wanted at most"), ("/dev/null", "no file"),
                        (tmp_path / "large.zip" / "x", "Not a directory")):
        [row] = verify.verify(path)
        assert row["verdict"] == "fails" and words in row["reason"], row


JSON = {        # what is refused: why
    b'{"a": NaN}': "no finite", b'{"a": [1, -Infinity]}': "no finite", b'{"a": 1e999}': "no finite",
    b'{"a": ' + b"1" * 41 + b".5}": "ordinary length", b"9" * 5000: "5000 digits",
    b'{"a": 1, "a": 2}': "the key a is there twice",
    b"[" * 100_000: "nested deeper", b'{"a": ' * 50 + b"1" + b"}" * 50: "nested deeper",
    b"[" + b"0," * 400_000 + b"0]": "more than", b'"' + b" " * container.LARGEST_JSON + b'"': "wanted at most",
    b'"\xff"': "UTF-8", b"\xef\xbb\xbf{}": "no JSON",
    b"": "no JSON", b'{"a": 1': "no JSON", b'{"a": 1} x': "no JSON"}


@pytest.mark.parametrize("raw", JSON, ids=[str(i) for i in range(len(JSON))])
def test_json_that_is_refused(raw):
    with pytest.raises(Malformed, match=JSON[raw]):
        container.read_json(raw, "x.json")
    files = honest()
    files["notes.json"] = raw
    rows = judged(sealed(files))
    assert list(with_verdict(rows, "fails")) == ["notes"] and JSON[raw] in with_verdict(rows, "fails")["notes"]


@pytest.mark.parametrize("raw", [b'"' + b'\\"' * 40_000, b'\\"' * 40_000, b'["' + b'\\"' * 40_000 + b"\\"])
def test_a_quote_that_nothing_closes_takes_little_time(raw):
    start = time.monotonic()
    with pytest.raises(Malformed, match="no JSON"):
        container.read_json(raw, "x.json")
    assert time.monotonic() - start < 2         # 11 s if the rest is searched again from each quote


def test_a_long_text_needs_little_memory():
    raw = b'"' + b'\\"' * (2 * 10**6) + b'"'
    assert len(container.read_json(raw, "x.json")) == 2 * 10**6


def npy(array, **how):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, **how)
    return out.getvalue()


def header(text, content=b""):
    text = text.ljust(117).encode("latin1") + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + content


GOOD = np.arange(6, dtype="<f4").reshape(2, 3)
ARRAYS = {
    "another shape": (npy(GOOD.T.copy()), "float32 [3, 2]; wanted float32 [2, 3]"),
    "another dtype": (npy(GOOD.astype("f8")), "float64"),
    "big-endian": (npy(GOOD.astype(">f4")), ">f4"),
    "Fortran order": (npy(np.asfortranarray(GOOD)), "Fortran"),
    "an object": (npy(np.array([{}, 1]), allow_pickle=True), "object [2], pickled"),
    "a structure": (npy(np.zeros(2, "f4,i4")), "wanted float32"),
    "a huge shape": (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 10**9)}"), "no plain array"),
    "a large shape": (header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 3)}"), "99999999999"),
    "a negative shape": (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}"), "wanted float32"),
    "code": (header("__import__('os').system('touch /tmp/evil')"), "no plain array"),
    "deep": (header("(" * 5000), "no plain array"),
    "version 2": (npy(GOOD, version=(2, 0)), "wanted float32"),
    "bytes missing": (npy(GOOD)[:-1], "23 bytes of numbers; wanted 24"),
    "bytes too many": (npy(GOOD) + b"x", "25 bytes"),
    "nothing": (b"", "no plain array"),
    "NaN": (npy(np.where(GOOD == 3, np.nan, GOOD).astype("f4")), "NaN or infinity"),
    "infinity": (npy(np.where(GOOD == 3, -np.inf, GOOD).astype("f4")), "NaN or infinity")}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_are_refused(case):
    content, words = ARRAYS[case]
    with pytest.raises(Malformed) as refused:
        container.read_arrays(container.pack({"x.npy": content}), "some.npz", {"x": ("float32", (2, 3))})
    said = str(refused.value)
    assert words in said and said.startswith("some.npz: x ") and len(said) < 200


def test_arrays_come_back_and_strange_truth_values_do_not():
    given = {"a": GOOD, "b": np.array([True, False]), "c": np.array(2.5), "d": np.arange(3)}
    layout = {name: (array.dtype, array.shape) for name, array in given.items()}
    back = container.read_arrays(container.pack_arrays(given), "some.npz", layout)
    assert all((back[name] == given[name]).all() and back[name].dtype == given[name].dtype for name in given)
    raw = container.pack({"x.npy": npy(np.array([True, False]))[:-1] + b"\2"})
    with pytest.raises(Malformed, match="neither True nor False"):
        container.read_arrays(raw, "some.npz", {"x": ("bool", (2,))})
    for wanted in ({"a": layout["a"]}, layout | {"e": layout["a"]}):
        with pytest.raises(Malformed, match="missing or not asked for"):
            container.read_arrays(container.pack_arrays(given), "some.npz", wanted)


BROKEN = {
    "arrays/fixture.npz": (lambda f: f.update({"arrays/fixture.npz": b"PK"}), "fixture.trained", "no zip"),
    "notebook of lists": (lambda f: f.update({"notebooks/01_understand.ipynb": b'{"cells": [[]]}'}),
                          "notebook.01_understand", "is no notebook"),
    "notebook of numbers": (lambda f: f.update({"notebooks/01_understand.ipynb": b'{"cells": [{"cell_type": 1}]}'}),
                            "notebook.01_understand", "no kind"),
    "picture": (lambda f: f.update({"figures/01_dataflow.png": b"GIF89a"}), "picture.01_dataflow", "no PNG"),
    "pixels": (lambda f: f.update({"figures/01_dataflow.png": f["figures/01_dataflow.png"][:41] + b"\0" * 16 +
                                   f["figures/01_dataflow.png"][57:]}), "picture.01_dataflow", "PNG"),
    "numbers": (lambda f: f.update({"data/claims.json": b"[]"}), "numbers.05_claims", "data/claims.json"),
    "a lone surrogate": (lambda f: f.update({"notes.json": b'{"\\ud800\\u001b": 7}'}), "notes", "??")}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named_and_the_rest_is_judged(case):
    files = honest()
    change, name, words = BROKEN[case]
    change(files)
    rows = judged(sealed(files))
    failed = with_verdict(rows, "fails")
    assert words in failed[name] and "not foreseen" not in failed[name] and len(rows) == len(verify.TABLE) + 1
    assert "\n".join(verify.table(rows)).encode("utf-8")        # can be printed
    json.loads(verify.as_json(rows), parse_constant=lambda text: pytest.fail(text))


# The parts by themselves

def test_a_faint_patch_is_seen_and_rounding_is_not():
    image = np.ones((40, 60, 4))
    for by, seen in ((0.1, True), (0.03, False)):
        other = image.copy()
        other[10:20, 10:20, :3] -= by
        if seen:
            with pytest.raises(claims.Verdict, match="10% of the range"):
                recorded.same_picture(png(other), png(image))
        else:
            assert recorded.same_picture(png(other), png(image)) == "other bytes, same picture"


def test_a_texture_whose_mean_is_right_is_seen():
    image = np.full((40, 60, 4), 0.5)
    image[..., 3] = 1
    other = image.copy()
    other[10:26:2, 10:30:2, :3] = other[11:26:2, 11:30:2, :3] = 1
    other[10:26:2, 11:30:2, :3] = other[11:26:2, 10:30:2, :3] = 0
    with pytest.raises(claims.Verdict, match="averaged over 8 by 8 pixels; wanted at most 25%"):
        recorded.same_picture(png(other), png(image))
    assert recorded.same_picture(png(image + [0.01, 0, 0, 0]), png(image)) == "other bytes, same picture"


def test_numbers_that_differ_are_told_where():
    same = {"a": [1, 2.0, True, "x", None]}
    assert recorded.difference(same, json.loads(json.dumps(same)), 0, 0) is None
    assert recorded.difference([1.0], [1.00009], 1e-4, 0) is None
    for old, new in (([1.0], [1.001]), ([1], [2]), ([1], [1.0]), ([1], [True]), (["x"], ["y"]), ([1.0], [1.0, 1.0]),
                     ({"a": 1}, {"b": 1}), ({"a": {"b": [0.0]}}, {"a": {"b": [1e-3]}})):
        assert recorded.difference(old, new, 1e-4, 1e-6), f"{old} and {new} pass as equal"


def test_the_independent_loss_is_the_helpers():
    z, ids = RANDOM.normal(size=(2, 5, 7)), RANDOM.integers(0, 7, (2, 5))
    picked = RANDOM.random((2, 5)) < 0.5
    assert np.isclose(recompute.loss(z, ids, picked)[0], float(mlm.masked_ce(z, ids, picked)), atol=1e-6)
    params = {"embedding": RANDOM.normal(size=(4, 6)).astype("f4"), "head": RANDOM.normal(size=(6, 3)).astype("f4")}
    read = RANDOM.integers(0, 4, (3, 4))
    ours = recompute.logits(params["embedding"], params["head"], read)
    assert np.allclose(ours, mlm.mlm_logits({name: jnp.asarray(x) for name, x in params.items()}, read), atol=1e-5)


def test_the_command_says_it_in_text_json_and_status(tmp_path, capsys):
    files = honest()
    CHEATS["a mask"][0](files)
    (tmp_path / "bundle.zip").write_bytes(sealed(files))
    command = ["verify", str(tmp_path / "bundle.zip"), "--json", str(tmp_path / "verdict.json")]
    assert evidence.main(command) == 1
    assert "selected: 1 at [1, 2] and 0 other places; wanted 0" in capsys.readouterr().out
    table = json.loads((tmp_path / "verdict.json").read_text())
    assert table["status"] == 1 and "fixture.batch" in [r["claim"] for r in table["rows"] if r["verdict"] == "fails"]


def test_what_is_not_finite_is_null_in_json():
    rows = judged(container.pack(honest()))[:3]
    for bad in (np.nan, np.inf, -np.inf):
        rows[1]["difference"] = float(bad)
        told = json.loads(verify.as_json(rows), parse_constant=lambda text: pytest.fail(text))["rows"]
        assert told[1]["difference"] is None and told[2] == rows[2]


def test_another_training_of_the_encoder_is_said():
    files = honest()
    encoder(lambda arrays: arrays["bias"].__setitem__(7, arrays["bias"][7] + 0.01))(files)
    rows = judged(sealed(files))
    assert with_verdict(rows, "fails") == {} and verify.status(rows) == 0
    assert "by up to 0.01: what they score is computed above" in with_verdict(rows, "not checked")["corpus.training"]


@pytest.mark.skipif(not peak(), reason="only Linux tells the peak of a process")
def test_the_losses_of_an_encoder_take_little_memory(tmp_path):
    (tmp_path / "encoder.npz").write_bytes(honest()[corpus_claims.ENCODER])
    code = ("import pathlib; from bundles import peak; from lesson import corpus_claims; corpus_claims.prepared(); "
            "peak(reset=True); before = peak(); "
            "corpus_claims.of_encoder(pathlib.Path('encoder.npz').read_bytes()); print(peak() - before)")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "notebooks"), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True,
                          timeout=300)
    assert int(done.stdout) < 150, done.stderr        # MiB; 280 with 256 rows at once
