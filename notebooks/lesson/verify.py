"""Check a bundle without trusting anything in it: every claim is computed again, by this copy of the course."""
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from . import corpus_claims, handed_in, recorded
from .claims import TABLE, Verdict
from .container import Malformed, open_bundle, plain, read_json
from .figures import PROJECT

FORMAT = 1
VERDICTS = ("holds", "fails", "unverifiable", "not checked")
RUN_SECONDS = 600               # for the learner's answers to all exercises
ALWAYS = {"claims.json": "what is claimed, with its value, unit and tolerance",
          "record.json": "when and on what this was made, as reported by that machine",
          "notes.json": "predictions and explanations in the learner's words",
          "exercises.json": "what the checks said to the learner's answers",
          "questions.json": "the learner's choices and what was said to them",
          "data/golden_masking.json": "cases and seeds of the golden draws",
          "arrays/fixture.npz": "batch, parameters, losses and final probabilities of the fixture",
          "arrays/hidden.npz": "every choice of hidden places, its input and its loss",
          "arrays/objective.npz": "the unequal batch and its automatic gradients",
          "arrays/golden.npz": "masking arrays of the golden cases in both frameworks"}
KINDS = {"numbers": "the numbers that the course exports", "picture": "a figure of the course",
         "notebook": "a notebook as it stands"}         # of these, some may not be there yet
BY_SOLUTIONS = ("numbers.04_gradient", "picture.04_gradient")

recorded.enter(PROJECT)
handed_in.enter(PROJECT)


def about():
    """`{name: what it claims}` of every file that a bundle may hold besides its manifest."""
    found = dict(ALWAYS)
    for name, entry in TABLE.items():
        if name.partition(".")[0] in KINDS:
            found[entry["files"][0]] = KINDS[name.partition(".")[0]]
    return found | {name: words for name, words in corpus_claims.FILES.items() if (PROJECT / name).exists()}


def verify(path, run=False):
    """One row for each claim: `{"claim", "statement", "unit", "tolerance", "stated", "recomputed", "difference",
    "verdict", "reason"}`. A file that cannot be read, or is not whole, gives one row."""
    return open_and_verify(path, run)[1]


def open_and_verify(path, run=False):
    """`(bundle, rows)`, both from one reading of the file; the bundle is empty if it is not whole."""
    try:
        bundle = open_bundle(path)
        stated = integrity(bundle)
    except Malformed as error:
        return {}, [row("integrity", "fails", str(error))]
    rows = [row("integrity", "holds", f"{len(bundle)} files, all listed, all of the listed size and SHA-256")]
    found = bundle | ({"graded": graded(bundle.get("notebooks/04_exercise.ipynb"))} if run else {})
    rows += [judge(name, stated, found) for name in TABLE]
    strange = sorted(stated.keys() - TABLE.keys())
    return bundle, rows + [row(plain(name), "fails", "this course makes no such claim") for name in strange]


def row(name, verdict, reason, stated=None, recomputed=None, difference=None):
    entry = TABLE.get(name, {"statement": "every file is listed and hashed, nothing is extra" if name == "integrity"
                             else "", "unit": "", "tolerance": 0})
    return {"claim": name, **{key: entry[key] for key in ("statement", "unit", "tolerance")}, "stated": stated,
            "recomputed": recomputed, "difference": difference, "verdict": verdict, "reason": reason}


def integrity(bundle):
    """The table of claims that a bundle states, or Malformed if files and manifest do not fit."""
    known = about()
    strange = sorted(bundle.keys() - known.keys() - {"manifest.json"})
    if strange:
        raise Malformed(f"{plain(strange[0])} is no file of a bundle of this course")
    if "manifest.json" not in bundle:
        raise Malformed("manifest.json is missing")
    manifest = read_json(bundle["manifest.json"], "manifest.json")
    whole = isinstance(manifest, dict) and manifest.keys() == {"format", "files"}
    if not whole or not isinstance(manifest["files"], dict):
        raise Malformed("manifest.json holds other things than format and files")
    if type(manifest["format"]) is not int or manifest["format"] != FORMAT:
        raise Malformed(f"the bundle has format {plain(manifest['format'])}; this course reads {FORMAT}")
    listed = manifest["files"]
    apart = sorted(listed.keys() ^ (bundle.keys() - {"manifest.json"}))
    if apart:
        raise Malformed(f"{plain(apart[0])} is " + ("listed, but not there" if apart[0] in listed else "not listed"))
    for name in sorted(listed):
        wanted = {"bytes": len(bundle[name]), "sha256": hashlib.sha256(bundle[name]).hexdigest(), "claims": known[name]}
        if listed[name] != wanted or type(listed[name]["bytes"]) is not int:
            keys = [key for key in wanted if not isinstance(listed[name], dict) or listed[name].get(key) != wanted[key]]
            raise Malformed(f"{name} is not the file that manifest.json lists: other {', '.join(keys) or 'entries'}")
    missing = sorted(ALWAYS.keys() - bundle.keys())
    if missing:
        raise Malformed(f"{missing[0]} is missing")
    stated = read_json(bundle["claims.json"], "claims.json")
    if not isinstance(stated, dict):
        raise Malformed("claims.json is no table")
    return stated


def is_absent(name, files):
    """Whether a claim has nothing to rest on because a file is not there that may be missing."""
    return name.partition(".")[0] in KINDS and TABLE[name]["files"][0] not in files


def judge(name, stated, bundle):
    """The row of one claim."""
    entry = TABLE[name]
    if is_absent(name, bundle):
        if name in stated:
            return row(name, "fails", f"it is claimed, but {entry['files'][0]} is not in the bundle")
        if name in BY_SOLUTIONS:
            return row(name, "not checked", "a solution draws it, and a student's edition has none")
        return row(name, "unverifiable", f"{entry['files'][0]} is not in the bundle")
    if name not in stated:
        return row(name, "fails", "claims.json leaves this claim out")
    given = stated[name]
    wanted = {key: entry[key] for key in ("statement", "unit", "tolerance", "files")}
    if not isinstance(given, dict) or given.keys() != {*wanted, "stated"}:
        return row(name, "fails", f"claims.json does not say {', '.join([*wanted, 'stated'])} of it")
    other = [key for key in wanted if json.dumps(given[key]) != json.dumps(wanted[key])]        # False equals 0
    if other:
        return row(name, "fails", f"claims.json has another {other[0]}: {plain(given[other[0]])}; "
                                  f"wanted {plain(wanted[other[0]])}")
    value = given["stated"]
    if not (is_numbers(value) if entry["states"] else value is None):
        return row(name, "fails", f"{plain(value)} is stated; wanted " +
                   ("a number" if entry["states"] else "null, for the values stand in the files"))
    try:
        with np.errstate(all="ignore"):
            triples = entry["function"](bundle, *[value] * entry["states"])
    except Verdict as verdict:
        return row(name, verdict.verdict, verdict.words, None if value is None else told(value))
    except Malformed as error:
        return row(name, "fails", str(error))
    except Exception as error:          # hostile values; the tests see to it that this is never needed
        return row(name, "fails", f"not foreseen, {type(error).__name__}: {plain(error)}")
    tolerance, rows = entry["tolerance"] if not isinstance(entry["tolerance"], str) else 0, []
    for what, one, another in triples:
        apart = distance(one, another)
        holds = apart <= tolerance      # False for NaN
        words = "" if holds else f"{what}: " + mismatch(one, another, tolerance)
        rows.append(row(name, "holds" if holds else "fails", words, told(one), told(another), apart))
    worst = max(rows, key=lambda r: (r["verdict"] == "fails", r["difference"]))
    return worst if worst["verdict"] == "fails" else {**rows[0], "difference": worst["difference"]}


def is_numbers(value):
    return all(type(x) in (int, float) for x in (value if isinstance(value, list) else [value]))


def distance(one, another):
    """The largest difference of two numbers or arrays of equal shape, else infinity."""
    try:
        one, another = (np.asarray(x, np.float64) for x in (one, another))
    except OverflowError:
        return float("inf")
    apart = np.abs(one - another).max(initial=0) if one.shape == another.shape else np.inf
    return float(apart) if np.isfinite(apart) else float("inf")


def mismatch(one, another, tolerance):
    shapes = np.shape(one), np.shape(another)
    if shapes[0] != shapes[1]:
        return f"{told(one)} is stated; wanted {told(another)}"
    one, another = np.asarray(one, np.float64), np.asarray(another, np.float64)
    at = np.argwhere(~(np.abs(one - another) <= tolerance))
    first = tuple(at[0])
    place = f" at {[int(i) for i in first]} and {len(at) - 1} other places" if first else ""
    return f"{one[first]:.9g}{place}; wanted {another[first]:.9g}, tolerance {tolerance:g}"


def told(value):
    """A number as it is, of an array only how much there is."""
    if np.ndim(value) == 0:
        return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    if isinstance(value, list) and len(value) < 4:
        return plain(value)
    return f"{np.size(value)} numbers"


def graded(raw):
    """`{number: state}` from running the answers of a notebook in a scratch folder, or why that did not work."""
    if raw is None:
        return "notebooks/04_exercise.ipynb is not in the bundle"
    with tempfile.TemporaryDirectory(prefix="verify") as scratch:
        notebook, table = Path(scratch, "04_exercise.ipynb"), Path(scratch, "grades.json")
        notebook.write_bytes(raw)
        process = subprocess.Popen([sys.executable, "-m", "lesson.grade", str(notebook), "--json", str(table)],
                                   cwd=PROJECT / "notebooks", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            return f"the answers took longer than {RUN_SECONDS} s in all"
        finally:
            if process.poll() is None:          # its kernels see that it is gone, and stop
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
                process.wait()
        if process.returncode or not table.exists():
            return "lesson.grade could not run here"
        return {entry["exercise"]: entry["state"] for entry in json.loads(table.read_text(encoding="utf-8"))}


def status(rows):
    """The exit status: 0 if all that was checked holds, 1 if something fails, 3 if something is unverifiable."""
    verdicts = {r["verdict"] for r in rows}
    return 1 if "fails" in verdicts else 3 if "unverifiable" in verdicts else 0


def shown(r):
    """What a row states, what was recomputed, and the difference, each as a short text."""
    pair = ["" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)
            for value in (r["stated"], r["recomputed"])]
    return *pair, "" if r["difference"] is None else f"{r['difference']:.1e}" if r["difference"] else "0"


def table(rows):
    """The rows as lines of text."""
    lines = [("claim", "stated", "recomputed", "difference", "verdict")]
    lines += [(r["claim"], *shown(r), r["verdict"]) for r in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line, r in zip(lines, [None, *rows], strict=True):
        text.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if r and r["reason"] and (r["verdict"] != "holds" or r["stated"] is None):
            text.append(f"    {r['reason']}")
    return [*text, counts(rows)]


def counts(rows):
    """How many rows have each verdict, in words."""
    found = {verdict: sum(r["verdict"] == verdict for r in rows) for verdict in VERDICTS}
    return ", ".join(f"{count} {verdict}" for verdict, count in found.items() if count)


def as_json(rows):
    """The rows as JSON text; what is not finite is null there."""
    plain_rows = [{key: None if isinstance(value, float) and not np.isfinite(value) else value
                   for key, value in r.items()} for r in rows]
    body = {"status": status(rows), "rows": plain_rows}
    return json.dumps(body, indent=1, allow_nan=False) + "\n"

