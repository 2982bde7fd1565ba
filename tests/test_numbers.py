"""The numbers behind every figure, as re-run, against the recorded ones.

nbval does not compare images; the numbers that they draw are compared here, each within the
tolerance that its own file states. Integers, truth values and text must be equal.
"""
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def recorded():
    """What notebooks export: all figures, and those files in data/ that state a tolerance."""
    numbers = {path for path in ROOT.glob("data/**/*.json") if "tolerance" in read(path)}
    return sorted(path.relative_to(ROOT).as_posix() for path in numbers | {*ROOT.glob("data/figures/*")})


def figures(root):
    return {path.name: path.read_bytes()[16:24] for path in root.glob("figures/*")}     # width and height of a PNG


def difference(old, new, rtol, atol):
    """The first difference between two JSON values in words, or None."""
    if type(old) is not type(new):
        return f": {type(old).__name__} became {type(new).__name__}"
    if isinstance(old, dict):
        if old.keys() != new.keys():
            return f": keys {sorted(old.keys() ^ new.keys())} are on one side only"
        pairs = [(f"[{key!r}]", old[key], new[key]) for key in old]
    elif isinstance(old, list):
        if len(old) != len(new):
            return f": length {len(old)} became {len(new)}"
        pairs = [(f"[{i}]", *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    elif isinstance(old, float):
        return None if abs(new - old) <= atol + rtol * abs(old) else f": {old} became {new} (rtol {rtol}, atol {atol})"
    else:
        return None if old == new else f": {old!r} became {new!r}"
    found = ((where, difference(a, b, rtol, atol)) for where, a, b in pairs)
    return next((where + words for where, words in found if words), None)


@pytest.mark.parametrize("name", recorded())
def test_numbers_agree_within_their_tolerance(name, exports):
    assert (exports / name).is_file(), f"{name} is recorded, but no notebook exported it when re-run"
    old, new = ({key: value for key, value in read(root / name).items() if key != "packages"}
                for root in (ROOT, exports))
    words = difference(old.pop("numbers"), new.pop("numbers"), **old["tolerance"])
    assert words is None, f"{name}, recorded and as re-run: numbers{words}"
    assert old == new, f"{name}: source, alternative text or tolerance are not those of the notebook; make run"


def test_figures_are_the_same_files_of_the_same_size(exports):
    assert figures(exports) == figures(ROOT), "figures/ as re-run has other names or sizes than the recorded ones"


def test_everything_that_is_exported_is_recorded(exports):
    files = [*exports.glob("figures/**/*"), *exports.glob("data/**/*")]
    new = {path.relative_to(exports).as_posix() for path in files if path.is_file()}
    assert new, "the notebooks exported nothing when re-run"
    missing = sorted(name for name in new if not (ROOT / name).is_file())
    assert not missing, f"exported when re-run, but not recorded (make run): {missing}"


def test_the_comparison_itself():
    same = {"a": [1, 2.0, True, "x", None]}
    assert difference(same, json.loads(json.dumps(same)), 0, 0) is None
    assert difference([1.0], [1.00009], 1e-4, 0) is None
    for old, new in (([1.0], [1.001]), ([1], [2]), ([1], [1.0]), ([1], [True]), (["x"], ["y"]), ([1.0], [1.0, 1.0]),
                     ({"a": 1}, {"b": 1}), ({"a": {"b": [0.0]}}, {"a": {"b": [1e-3]}}), ([0.0], [float("nan")])):
        assert difference(old, new, 1e-4, 1e-6), f"{old} and {new} pass as equal"
