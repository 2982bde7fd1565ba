"""What a bundle claims about notebooks, answers and files of the person who made it."""
import base64
import binascii
import functools
import hashlib
import json
import re

from . import questions
from .claims import Verdict, claim
from .container import Malformed, plain, read_json
from .figures import PROJECT
from .recompute import numbers
from .recorded import own_bytes, same_picture

# Cells that say something else to each learner: their outputs are not compared.
PERSONAL = re.compile(r"^(?:progress|checks|questions|evidence)\.|execution_record", re.M)
NOT_FOR_STUDENTS = {"notebooks/lesson/editions.py", "notebooks/lesson/grade.py"}
LONGEST_TEXT, MOST_CELLS = 20_000, 2_000
RECORD = {"utc": str, "python": str, "platform": str, "processor": str, "jax_devices": dict, "torch_devices": dict,
          "packages": dict, "jax_flags": dict, "files": dict, "seconds": dict, "seconds_from": str,
          "commit": (str, type(None))}


def wanted(is_so, words):
    if not is_so:
        raise Verdict("fails", words)


def joined(text):
    return "".join(text) if isinstance(text, list) and all(isinstance(line, str) for line in text) else text


def cells(raw, name):
    """`[(source, tags, outputs, execution count)]` of the code cells of a notebook, or Malformed."""
    nb = read_json(raw, name)
    found = nb.get("cells") if isinstance(nb, dict) else None
    if not isinstance(found, list) or len(found) > MOST_CELLS or not all(isinstance(cell, dict) for cell in found):
        raise Malformed(f"{name} is no notebook: wanted a list of at most {MOST_CELLS} cells")
    code = []
    for cell in found:
        source, outputs = joined(cell.get("source")), cell.get("outputs", [])
        if cell.get("cell_type") not in ("code", "markdown", "raw") or not isinstance(source, str):
            raise Malformed(f"{name} is no notebook: a cell has no kind or no source")
        if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
            raise Malformed(f"{name} is no notebook: outputs are no list")
        metadata = cell.get("metadata")
        tags = metadata.get("tags") if isinstance(metadata, dict) else None
        if cell["cell_type"] == "code":
            code.append((source, tags if isinstance(tags, list) else [], outputs, cell.get("execution_count")))
    return code


@functools.cache
def own_cells(name):
    """`{source: [(number, tags, outputs)]}` of the course's own notebook, in a list, for sources may be equal."""
    found = {}
    for number, (source, tags, outputs, _) in enumerate(cells(own_bytes(name), name), 1):
        found.setdefault(source, []).append((number, tags, outputs))
    return found


def bare(output):
    """An output without its count, streams and texts in one piece."""
    output = {key: joined(value) for key, value in output.items() if key != "execution_count"}
    if isinstance(output.get("data"), dict):
        output["data"] = {kind: joined(value) for kind, value in output["data"].items()}
    return output


def same_output(given, own):
    """None if two outputs show the same, else what differs."""
    given, own = bare(given), bare(own)
    pictures = [x["data"].pop("image/png", None) if isinstance(x.get("data"), dict) else None for x in (given, own)]
    if given != own:
        key = next((key for key in own if given.get(key) != own[key]), "something")
        is_there, should_be = (plain(json.dumps(output.get(key)), 90) for output in (given, own))
        return f"its {plain(key)} is {is_there}; wanted {should_be}"
    if pictures[0] == pictures[1]:
        return None
    try:
        same_picture(*(base64.b64decode(x.replace("\n", ""), validate=True) for x in pictures))
    except (binascii.Error, ValueError, AttributeError):
        return "its picture is there on one side only, or is not base64"
    except (Verdict, Malformed) as error:
        return f"its picture: {error}"
    return None


def notebook(name):
    def check(bundle):
        left = {source: list(entries) for source, entries in own_cells(name).items()}
        compared, not_run, changed, doubtful = 0, 0, 0, []
        for source, _, outputs, count in cells(bundle[name], name):
            if not left.get(source):
                changed += 1
                continue
            number, tags, own = left[source].pop(0)
            if count is None and not outputs:
                not_run += 1
            elif "nbval-ignore-output" not in tags and not PERSONAL.search(source):
                compared += 1
                words = next((w for pair in zip(outputs, own, strict=False) if (w := same_output(*pair))), None)
                if len(outputs) != len(own):
                    words = f"it has {len(outputs)} outputs; wanted {len(own)}"
                if words:
                    doubtful.append(f"{name}, code cell {number} of the course: {words}")
                    wanted(changed, doubtful[-1])
        if doubtful:
            raise Verdict("unverifiable", f"{doubtful[0]}; a cell above it is the learner's own")
        missing = sum(map(len, left.values()))
        raise Verdict("holds", f"{compared} outputs equal; cells changed or added {changed}, left out {missing}, "
                               f"not run {not_run}")
    return check


@claim("questions", "answers to questions, right and wrong, judged again", "answers", 0, "questions.json")
def _(bundle, stated):
    given, sealed = numbers(bundle, "questions.json"), questions.load()
    wanted(isinstance(given, dict), "questions.json is no table")
    states = []
    for number, entry in given.items():
        wanted(number in sealed, f"{plain(number)} is no question of this course")
        wanted(isinstance(entry, dict) and entry.keys() == {"state", "letter", "words"}, f"{number} is no answer")
        letters = questions.unseal(sealed[number])
        wanted(isinstance(entry["letter"], str) and entry["letter"] in letters, f"{number}: no such letter")
        is_right, words = letters[entry["letter"]]
        state = "right" if is_right else "wrong"
        wanted(entry["state"] == state, f"{number} is stated as {plain(entry['state'])}; {entry['letter']} is {state}")
        wanted(entry["words"] == words, f"{number}: other words than the course's own")
        states.append(state)
    return [("right and wrong", stated, [states.count("right"), states.count("wrong")])]


def exercise_states(bundle):
    """`{number: state}` as the bundle states them, or a Verdict."""
    from . import checking, checks  # noqa: F401  (fills EXERCISES)
    given = numbers(bundle, "exercises.json")
    wanted(isinstance(given, dict), "exercises.json is no table")
    for number, entry in given.items():
        wanted(number in checking.EXERCISES, f"{plain(number)} is no exercise of this course")
        wanted(isinstance(entry, dict) and entry.keys() == {"title", "state", "words"}
               and all(isinstance(value, str) and len(value) <= LONGEST_TEXT for value in entry.values())
               and entry["state"] in ("right", "wrong"), f"{number} is no result of a check")
        wanted(entry["title"] == checking.EXERCISES[number].title, f"{number} has another title")
    return {number: given.get(number, {}).get("state", "not attempted") for number in checking.EXERCISES}


@claim("exercises", "exercises, right and wrong, by running the learner's answers", "exercises", 0, "exercises.json",
       "notebooks/04_exercise.ipynb")
def _(bundle, stated):
    states = exercise_states(bundle)
    counts = [list(states.values()).count(state) for state in ("right", "wrong")]
    wanted(stated == counts, f"{plain(stated)} are stated as right and wrong; the table has {counts}")
    graded = bundle.get("graded")           # put there by verify when it was asked to run
    if graded is None:
        raise Verdict("not checked", "needs --run, which runs the learner's code")
    if isinstance(graded, str):
        raise Verdict("unverifiable", graded)
    for number, state in states.items():
        wanted(graded.get(number) == state, f"{number} is stated as {state}; re-run it is {graded.get(number)}")
    return [("right and wrong", stated, counts)]


@claim("notes", "predictions and explanations, in the learner's words", "texts", 0, "notes.json")
def _(bundle, stated):
    given = numbers(bundle, "notes.json")
    wanted(isinstance(given, dict) and len(given) <= 200, "notes.json is no table of at most 200 texts")
    for number, entry in given.items():
        wanted(len(number) <= 40 and isinstance(entry, dict) and entry.keys() == {"kind", "text"}
               and entry["kind"] in ("prediction", "explanation") and isinstance(entry["text"], str)
               and len(entry["text"]) <= LONGEST_TEXT, f"{plain(number)} is no prediction and no explanation")
    wanted(type(stated) is int and stated == len(given), f"{plain(stated)} texts are stated; there are {len(given)}")
    raise Verdict("not checked", "a reader judges these")


def record(bundle):
    given = numbers(bundle, "record.json")
    wanted(isinstance(given, dict) and given.keys() == RECORD.keys(), f"record.json does not hold {', '.join(RECORD)}")
    for key, kind in RECORD.items():
        wanted(isinstance(given[key], kind), f"record.json: {key} is of another type")
    return given


@claim("record.files", "the helper and the notebooks are those of this course and this bundle", "SHA-256", 0,
       "record.json")
def _(bundle):
    files = record(bundle)["files"]
    helper = {f"notebooks/{path.relative_to(PROJECT / 'notebooks').as_posix()}" for part in ("mlm", "lesson")
              for path in (PROJECT / "notebooks" / part).glob("*.py")}
    there = {name for name in bundle if name.endswith(".ipynb")}
    wanted(there <= files.keys(), "a notebook of the bundle is not in the record")
    for name in sorted(there):
        wanted(files[name] == hashlib.sha256(bundle[name]).hexdigest(), f"{name} is not the recorded one")
    strange = files.keys() - there - helper
    wanted(not strange, f"{plain(min(strange, default=''))} is recorded, but neither in the bundle nor in this course")
    absent = helper - files.keys() - NOT_FOR_STUDENTS
    if absent:
        raise Verdict("unverifiable", f"{min(absent)} is not in the record")
    other = [name for name in sorted(helper & files.keys())
             if files[name] != hashlib.sha256((PROJECT / name).read_bytes()).hexdigest()]
    if other:
        raise Verdict("unverifiable", f"{', '.join(other[:3])} was another version; this course's commit may differ")
    return [("files", len(files), len(there) + len(helper & files.keys()))]


@claim("record.self", "when and on what this ran", "self-reported", 0, "record.json")
def _(bundle):
    record(bundle)
    raise Verdict("not checked", "nobody can compute this again")


def enter(root):
    """Enter a claim for each notebook of the course in the folder `root`."""
    for path in sorted(root.glob("notebooks/0*_*.ipynb")):
        name, statement = f"notebooks/{path.name}", "outputs of the course's own cells are the recorded ones"
        claim(f"notebook.{path.stem}", statement, "outputs", 0, name)(notebook(name))
