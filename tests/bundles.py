"""Bundles for tests: an honest one, ways to change it, and a fuzzer (`python tests/bundles.py 2000`)."""
import functools
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "notebooks"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")       # as the command does, before PyTorch is imported

from lesson import container, evidence, handed_in, verify  # noqa: E402

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
            return evidence.make(path)
        finally:
            os.environ.pop("MLM_OUT") if before is None else os.environ.update(MLM_OUT=before)


@functools.cache
def _honest():
    shared = Path(os.environ.get("MLM_OUT", "no such folder"), "tests-evidence.zip")      # of all processes of pytest
    if not shared.exists():
        with tempfile.TemporaryDirectory() as folder:
            path, missing = make(Path(folder, "evidence.zip"), progress())
            assert not missing, missing
            if not shared.parent.exists():
                return container.open_bundle(path)
            part = shared.with_name(f"{os.getpid()}.part")           # two processes may come here at once
            part.write_bytes(path.read_bytes())
            part.replace(shared)
    return container.open_bundle(shared)


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


# The fuzzer: each mutation gives the bytes of a bundle, what it is, and whether a claim changed

FREE = ("record.json", "notes.json", "exercises.json")          # what no recomputation can refuse
STRANGE = ("", "x", "\0\x1b[2J", "\ud800", "../../etc", "9" * 300, -1, 0, 7, 10**18, -10**19, 1e300, 5e-324, True,
           False, None, [], {}, [[]], {"": {}}, [1] * 1000)


def bytes_changed(rng, raw):
    """`raw` with a few bytes flipped, put in, taken out, moved or cut off."""
    raw, at = bytearray(raw), rng.randrange(len(raw) + 1)
    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 2, 8, 100))):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        raw[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
    elif kind == 2:
        del raw[at:at + rng.choice((1, 4, 1000))]
    elif kind == 3:
        del raw[at:]
    elif kind == 4:
        raw[at:at + 64] = rng.choice((b"\0", b"\xff", b"PK\1\2", b"PK\5\6")) * rng.choice((1, 16))
    else:
        raw[at:at] = raw[:rng.randrange(200)]
    return bytes(raw)


def leaves(value, path=()):
    """Paths to all that a JSON value holds."""
    if isinstance(value, (dict, list)):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield (*path, key)
            yield from leaves(inner, (*path, key))


def other(rng, value):
    """Another value in place of a JSON value, beyond any tolerance."""
    if rng.random() < 0.5:
        return rng.choice(STRANGE)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value * rng.choice((1.5, -3)) + 1 if isinstance(value, float) else value + rng.choice((-1, 1, 1000))
    return value[:len(value) // 2] + "?" if isinstance(value, str) else rng.choice(STRANGE)


def json_changed(rng, files):
    name = rng.choice([name for name in files if name.endswith((".json", ".ipynb")) and name != "manifest.json"])
    value = json.loads(files[name])
    path = rng.choice(list(leaves(value)) or [()])
    claimed = name not in FREE and "packages" not in path
    if name.endswith(".ipynb"):
        cell = value["cells"][path[1]] if path[:1] == ("cells",) and len(path) > 3 and path[2] == "outputs" else {}
        compared = cell and not handed_in.PERSONAL.search("".join(cell["source"]))
        claimed = (compared and "execution_count" not in path
                   and "nbval-ignore-output" not in cell["metadata"].get("tags", []))
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    before = json.dumps(value)
    if path and rng.random() < 0.2:
        del inner[path[-1]]
    elif path:
        old, inner[path[-1]] = inner[path[-1]], other(rng, inner[path[-1]])
        if path[0] == "numbers" and type(old) is type(inner[path[-1]]) is float:
            allowed = value["tolerance"]        # a share of a tolerance has a wide one
            claimed &= abs(inner[path[-1]] - old) > allowed["atol"] + allowed["rtol"] * abs(old)
    else:
        value = rng.choice(STRANGE)
    claimed = claimed and json.dumps(value) != before
    files[name] = json.dumps(value).encode()
    if name.endswith(".ipynb"):
        edit_json(files, "record.json", lambda record: record["files"].update(
            {name: hashlib.sha256(files[name]).hexdigest()}))
    return f"{name} {path}", claimed


def array_changed(rng, files):
    encoder = rng.random() < 0.1        # seldom, for its losses take seconds
    file = "data/encoder.npz" if encoder else rng.choice([name for name in files if name.startswith("arrays/")])
    arrays = dict(np.load(io.BytesIO(files[file])))
    name = rng.choice(sorted(arrays))
    array, kind = arrays[name].copy(), rng.randrange(5)
    if kind == 0:
        array = rng.choice((array[..., :1], array[None], array.ravel(), array.astype("f2"), array.astype("c16"),
                            array.astype("S9"), array[::-1]))
    elif array.dtype.kind == "b":
        array.flat[rng.randrange(array.size)] ^= True
    elif kind == 1 and array.dtype.kind == "f":
        array.flat[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-3))
    elif kind == 2:
        array = (np.random.default_rng(rng.randrange(2**32)).normal(size=array.shape) * 3 + 1).astype(array.dtype)
    else:
        array.flat[rng.randrange(array.size)] += rng.choice((-1, 1, 1000))
    before = arrays[name]
    claimed = array.dtype != before.dtype or array.shape != before.shape or not np.allclose(array, before, 0, 1e-3)
    if encoder and kind > 1 and not (kind == 2 and before.ndim > 1):
        claimed = False                 # what is claimed is its losses, and one parameter may not matter
    if encoder and kind == 1:
        claimed = not np.isfinite(array).all()
    arrays[name] = array
    files[file] = container.pack_arrays(arrays)
    return f"{file}: {name}", claimed


def files_changed(rng, files):
    one, another = rng.sample(sorted(files.keys() - {"manifest.json"}), 2)
    kind = rng.randrange(3)
    if kind == 0:
        del files[one]
    elif kind == 1:
        files[one], files[another] = files[another], files[one]
    else:
        files[rng.choice(("data/more.json", "notebooks/06_more.ipynb", "arrays/more.npz", "x.png"))] = files[one]
    return f"files {kind}: {one}, {another}", True


def large(rng, files):
    name = rng.choice(sorted(files.keys() - {"manifest.json"}))
    quoted = b'"' + b'\\"' * 4 * 10**6
    files[name] = rng.choice((b"[" * 10**7, b"[0," * 10**6, quoted + b'"', quoted, b"9" * 8 * 10**6,
                              b"\0" * 25 * 10**6, b"[" + b"{}," * 290_000 + b"{}]", b'{"' + b'a":{},"' * 10**6,
                              b"\x89PNG\r\n\x1a\n" * 10**6))
    return f"large {name}", name not in FREE


def mutated(rng, files):
    kind = rng.randrange(100)
    if kind < 25:
        raw = container.pack(files)
        changed = bytes_changed(rng, raw)
        return changed, "bytes of the file", changed != raw
    if kind < 35:                                   # the bytes of one file, with a manifest that fits
        name = rng.choice(sorted(files.keys() - {"manifest.json"}))
        changed = bytes_changed(rng, files[name])
        claimed = name.endswith(".npz") and changed != files[name]
        files[name] = changed
        what = f"bytes of {name}"
    elif kind < 65:
        what, claimed = json_changed(rng, files)
    elif kind < 90:
        what, claimed = array_changed(rng, files)
    elif kind < 98:
        what, claimed = files_changed(rng, files)
    else:
        what, claimed = large(rng, files)
    return sealed(files), what, claimed


def peak(reset=False):
    """The most memory that this process has held since the last reset, in MiB; 0 where Linux does not say."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 2**10
    except (OSError, IndexError):
        return 0


def fuzz(count, seed=0):
    """Judge `count` mutated bundles; gives counts by status, the longest time in s, the most memory, or raises."""
    found, longest, most = {0: 0, 1: 0, 3: 0}, 0.0, 0
    assert verify.status(judged(container.pack(honest()))) == 0     # it also computes what is the same for all
    for i in range(count):
        raw, what, claimed = mutated(random.Random(f"{seed} {i}"), honest())
        start = time.monotonic()
        peak(reset=True)
        rows = judged(raw)
        said = "\n".join(verify.table(rows)) + verify.as_json(rows)
        longest, most = max(longest, time.monotonic() - start), max(most, peak())
        status = verify.status(rows)
        found[status] += 1
        said.encode("utf-8")
        assert all(row["reason"].isprintable() and "not foreseen" not in row["reason"] for row in rows), (i, what, said)
        assert status != 0 or not claimed, f"mutation {i}, {what}, changes a claim and passes"
        assert longest < 20, f"mutation {i}, {what}, took {longest:.1f} s"
    return found, longest, most


if __name__ == "__main__":
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MLM_OUT": folder, "PYTHONPATH": os.pathsep.join([str(ROOT / "notebooks"), str(ROOT / "tests")])}
        # Made by another process: what that takes is not the verifier's memory.
        subprocess.run([sys.executable, "-c", "import bundles; bundles.honest()"], check=True)
        found, longest, most = fuzz(int(sys.argv[1]), *sys.argv[2:])
    print(f"{sum(found.values())} mutated bundles in {time.monotonic() - start:.0f} s: {found[1]} fail, "
          f"{found[3]} unverifiable, {found[0]} change no claim and hold; none crashes")
    print(f"longest {longest:.2f} s; most memory of the process while it judged one: {most} MiB")
    assert most < 1024
