"""Bundles for tests: an honest one, ways to change it, and a fuzzer (`python tests/bundles.py 2000`)."""
import functools
import hashlib
import io
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "notebooks"))

from lesson import container, evidence, verify  # noqa: E402

PROGRESS = {
    "exercises": {"4.1": {"title": "Hide the first position", "state": "right", "words": "loss 0.0105"}},
    "questions": {},
    "notes": {"3.1": {"kind": "prediction", "text": "the loss will not move"},
              "5.1": {"kind": "explanation", "text": "<script>alert(1)</script> small loss, three rows"}}}


def progress():
    """What a learner may have answered: one exercise, one right and one wrong choice, two texts."""
    from lesson import questions
    found = json.loads(json.dumps(PROGRESS))
    sealed = questions.load()
    for number, is_right in zip(list(sealed)[:2], (True, False), strict=True):
        entry = questions.unseal(sealed[number])
        letter = next(letter for letter, (right, _) in entry.items() if right is is_right)
        state = "right" if is_right else "wrong"
        found["questions"][number] = {"state": state, "letter": letter, "words": entry[letter][1]}
    return found


def make(path, kept):
    """Write a bundle at `path` with `kept` as progress.json, whatever this process exported before."""
    before = os.environ.get("MLM_OUT")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "progress.json").write_text(json.dumps(kept))
        os.environ["MLM_OUT"] = folder
        try:
            from lesson import progress
            loaded = progress.load
            progress.load = lambda: loaded() | {"notes": kept.get("notes", {})}     # until load() knows them
            return evidence.make(path)
        finally:
            progress.load = loaded
            os.environ.pop("MLM_OUT") if before is None else os.environ.update(MLM_OUT=before)


@functools.cache
def _honest():
    with tempfile.TemporaryDirectory() as folder:
        path, missing = make(Path(folder, "evidence.zip"), progress())
        assert not missing, missing
        return container.open_bundle(path)


def honest():
    """`{name: bytes}` of a bundle that holds, a copy for each caller."""
    return dict(_honest())


def sealed(files):
    """The bytes of a bundle of `files`, with a manifest that fits them: what a careful cheat hands in."""
    about = verify.about()
    files["manifest.json"] = evidence.text({"format": verify.FORMAT, "files": {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "claims": about.get(name, "")}
        for name, content in sorted(files.items()) if name != "manifest.json"}})
    return container.pack(files)


def judged(raw, run=False):
    """Rows of the verifier for the bytes of a bundle."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "evidence.zip")
        path.write_bytes(raw)
        rows = verify.verify(path, run)
        assert [p.name for p in Path(folder).iterdir()] == ["evidence.zip"], "the verifier wrote beside the bundle"
    return rows


def with_verdict(rows, verdict):
    return {row["claim"]: row["reason"] for row in rows if row["verdict"] == verdict}


def edit_json(files, name, change):
    """Change the JSON value of a file in place, or put what `change` returns."""
    value = json.loads(files[name])
    result = change(value)
    files[name] = json.dumps(value if result is None else result, ensure_ascii=False).encode("utf-8", "surrogatepass")


def edit_array(files, file, name, change):
    arrays = dict(np.load(io.BytesIO(files[file])))
    array = arrays[name].copy()
    result = change(array)
    arrays[name] = array if result is None else result
    files[file] = container.pack_arrays(arrays)


def rezip(files, change=lambda entry: None, compress=zipfile.ZIP_STORED, extra=()):
    """A zip of `files`, then of `extra` pairs, whose entries `change` may spoil before they are written."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in [*sorted(files.items()), *extra]:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system, entry.external_attr = compress, 3, 0o100644 << 16
            change(entry)
            archive.writestr(entry, content)
    return out.getvalue()
