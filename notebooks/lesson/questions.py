"""Questions with choices by letter. What is right, and why the others are wrong, is sealed in `data/questions.json`.

Sealed means unreadable at a glance, not secret. To edit them: `python -m lesson.questions > plain.json`, edit, and
`python -m lesson.questions plain.json`.
"""
import base64
import json
import sys
import zlib
from pathlib import Path

from . import progress
from .figures import PROJECT

FILE = PROJECT / "data" / "questions.json"


def answer(number, letter):
    """Say whether `letter` is right for a question, and why not; keeps it for the progress table."""
    sealed = load()
    if number not in sealed:
        print(f"{number} is no question; there are {', '.join(sealed)}")
        return
    entry, letter = unseal(sealed[number]), "" if letter in (None, ...) else str(letter).strip().lower()
    if not letter:
        state, words = "not attempted", ""
    elif letter not in entry:
        state, words = "not attempted", f"{letter!r} is none of {', '.join(entry)}"
    else:
        right, words = entry[letter]
        state = "right" if right else "wrong"
    progress.keep("questions", number, {"state": state, "letter": letter, "words": words})
    print(f"{number} {state}" + f". {words}" * bool(words))


def load():
    return json.loads(FILE.read_text(encoding="utf-8"))


def seal(entry):
    """`{letter: [right, why]}` as one unreadable string."""
    return base64.b85encode(zlib.compress(json.dumps(entry).encode(), 9)).decode()


def unseal(text):
    return json.loads(zlib.decompress(base64.b85decode(text)))


def main(arguments):
    if arguments:
        plain = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        sealed = {number: seal(entry) for number, entry in plain.items()}
        FILE.write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps({number: unseal(text) for number, text in load().items()}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
