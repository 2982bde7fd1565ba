"""What a learner has answered and written: one local file that git ignores."""
import json
import re
import textwrap

from .figures import PROJECT, output_folder

FILE = "progress.json"
PARTS = "exercises", "questions", "notes"


def load():
    """`{part: {number: ...}}` with each of `PARTS`; empty if there is no readable file."""
    try:
        kept = json.loads((output_folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    kept = kept if isinstance(kept, dict) else {}
    parts = {part: kept[part] if isinstance(kept.get(part), dict) else {} for part in PARTS}
    return {part: {number: entry for number, entry in entries.items() if isinstance(entry, dict)}
            for part, entries in parts.items()}


def keep(part, number, entry):
    """Remember one answer. Only attempts are kept, so a fresh run of a notebook writes nothing."""
    kept = load()
    if entry["state"] == "not attempted":
        if number not in kept[part]:
            return
        del kept[part][number]
    else:
        kept[part][number] = entry
    path = output_folder() / FILE
    new = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:            # an answer is worth more than its record
        print(f"({path} cannot be written, so this answer is not kept: {error.strerror})")


def predict(number, text):
    """Keep what you expect before an experiment. An empty text keeps nothing."""
    _write(number, "prediction", text)


def explain(number, text):
    """Keep an explanation in your own words. An empty text keeps nothing."""
    _write(number, "explanation", text)


def _write(number, kind, text):
    text = str(text).strip()
    keep("notes", number, {"kind": kind, "text": text, "state": "written" if text else "not attempted"})
    if text:
        print(f"{kind} {number} kept")


def asked():
    """`{number: kind}` of every prediction and explanation that the notebooks ask for, in their order."""
    found = {}
    for path in sorted((PROJECT / "notebooks").glob("0*_*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for call, number in re.findall(r'^progress\.(predict|explain)\("([\w.]+)"', "".join(cell["source"]), re.M):
                found[number] = "prediction" if call == "predict" else "explanation"
    return found


def show_notes():
    """Print which predictions and explanations are written, and which are still empty."""
    written, wanted = load()["notes"], asked()
    for kind in ("prediction", "explanation"):
        numbers = [number for number, of in wanted.items() if of == kind]
        empty = [number for number in numbers if number not in written]
        print(f"{kind}s: {len(numbers) - len(empty)} of {len(numbers)} written")
        if empty:
            print(textwrap.fill(" ".join(empty), 90, initial_indent="  still empty: ", subsequent_indent=" " * 15))


def show():
    """Print what was answered so far, exercises and questions apart."""
    from . import checking, checks, questions  # noqa: F401  (checks fills EXERCISES; both keep their results here)

    kept = load()
    states = {number: kept["exercises"].get(number, {}).get("state") for number in checking.EXERCISES}
    print(f"exercises: {sum(state == 'right' for state in states.values())} of {len(states)} right")
    for number, check in checking.EXERCISES.items():
        print(f"  {number:5s} {check.title:42s} {states[number] or 'not attempted'}")
    numbers = list(questions.load())
    states = {number: kept["questions"].get(number, {}).get("state") for number in numbers}
    print(f"questions: {sum(state == 'right' for state in states.values())} of {len(numbers)} right")
    for first in dict.fromkeys(number.split(".")[0] for number in numbers):
        row = [f"{n} {states[n] or 'open'}" for n in numbers if n.split(".")[0] == first]
        print("  " + " · ".join(row))
