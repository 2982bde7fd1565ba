"""What a learner has answered: one local file that git ignores, exercises and questions kept apart."""
import json

from .figures import output_folder

FILE = "progress.json"


def load():
    """`{"exercises": {number: ...}, "questions": {number: ...}}`; empty if there is no readable file."""
    try:
        kept = json.loads((output_folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    kept = kept if isinstance(kept, dict) else {}
    parts = {part: kept[part] if isinstance(kept.get(part), dict) else {} for part in ("exercises", "questions")}
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
