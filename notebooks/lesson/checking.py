"""How a check asks a learner's function and answers: not attempted, right, or wrong because ..."""
import dis
import functools
import linecache
import math
import random
import traceback
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import torch

from . import progress

EXERCISES = {}                  # number: check, in the order of notebook 04
LARGE = 40                      # numbers; of more, only some are shown
LARGEST = 10**6                 # numbers in an answer; the exercises want a few hundred


class Wrong(Exception):
    """Why an answer is wrong, in words for the learner.

    Args:
        because: the misconception, a sentence.
        shown: the smallest input on which it can be seen.
        expected, given: the two values there.
    """

    def __init__(self, because, *, shown=None, expected=None, given=None):
        super().__init__(because)
        self.because, self.shown, self.expected, self.given = because, shown, expected, given

    def words(self, read):
        lines = [self.because]
        for name, value in (("input", self.shown), ("expected", self.expected), ("given", self.given)):
            if value is not None:
                lines.append(f"{name:>10}: {brief(value)}")
        return "\n".join([*lines, f"{'read again':>10}: {read}"])


def exercise(number, title, *read):
    """Make a check of an exercise out of a function that takes answers and raises Wrong or returns the proof.

    The check prints its answer, keeps it for the progress table, and never raises. Its
    attribute `outcome` gives `(state, words)` without printing. `read` are the headings
    of the sections to read again, as they stand in the notebooks.
    """
    def decorate(check):
        def outcome(*answers):
            try:
                missing = [answer for answer in answers if not attempted(answer)]
                if len(missing) == len(answers):
                    return "not attempted", ""
                if missing:
                    raise Wrong(f"{name(missing[0])} is not attempted yet")
                with global_seeds(0):       # whatever the answer does to global generators, the learner keeps theirs
                    return "right", check(*answers)
            except Wrong as wrong:
                return "wrong", wrong.words(" · ".join(read))
            except (Exception, SystemExit) as error:        # an answer that even the reading of it fails on
                because = f"this answer cannot be read: {type(error).__name__}"
                return "wrong", Wrong(because).words(" · ".join(read))

        @functools.wraps(check)
        def answer(*answers):
            state, words = outcome(*answers)
            progress.keep("exercises", number, {"title": title, "state": state, "words": words})
            link = " because " if state == "wrong" else ". " if words else ""
            print(f"{number} {title}: {state}{link}{words}")

        answer.outcome, answer.title, answer.read = outcome, title, read
        EXERCISES[number] = answer
        return answer
    return decorate


def attempted(answer):
    """False for `...`, None, a dict of such, and a function whose body is still `...`."""
    if isinstance(answer, dict):
        return any(attempted(value) for value in answer.values())
    code = code_of(answer)
    if code is None:
        return answer is not None and answer is not ... and not (isinstance(answer, str) and not answer)
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP")]
    return not all(step.opname in ("LOAD_CONST", "RETURN_CONST", "RETURN_VALUE") and step.argval in (None, ...)
                   for step in steps)


def code_of(function):
    """The code that a learner wrote, also inside `jax.jit`, `functools.partial` and a class with `__call__`."""
    for inner in (function, getattr(function, "__wrapped__", None), getattr(function, "func", None),
                  type(function).__call__ if callable(function) else None):
        if hasattr(inner, "__code__"):
            return inner.__code__
    return None


def call(function, *inputs, framework=None):
    """What the learner's function gives for fresh copies of `inputs`, in `framework` or the one it works in.

    Arrays in `inputs` are NumPy's, also inside lists, tuples and dicts. An exception is
    told as the learner's, with their line; a changed input is told too.
    """
    first_error = None
    for kind in [framework] if framework else frameworks(function):
        handed = convert(inputs, kind)
        before = snapshot(handed)
        try:
            result = function(*handed)
        except (Exception, SystemExit) as error:
            told = f"{name(function)} raised {type(error).__name__}: {error}{line_of(error, function)}"
            first_error = first_error or Wrong(told, shown=inputs)
            continue
        if not same(before, snapshot(handed)):
            raise Wrong(f"{name(function)} changes its input, which others still need; work on a copy", shown=inputs)
        if result is None or result is ...:
            raise Wrong(f"{name(function)} returns {result}; is a `return` missing?", shown=inputs)
        return result
    raise first_error


def raises(function, *inputs):
    """The learner's refusal of fresh copies of `inputs`, a ValueError, or what they get instead.

    Returns:
        `(error, None)` or `(None, result)`, from the framework that the function works in.
    """
    failed = None
    for kind in frameworks(function):
        try:
            return None, function(*convert(inputs, kind))
        except ValueError as error:
            return error, None
        except (Exception, SystemExit) as error:        # perhaps only a matter of the framework
            failed = failed or error
    return failed, None


def frameworks(function):
    """JAX first, PyTorch first if the function names it, NumPy last: whichever works is welcome."""
    used = names_in(code_of(function))
    return ("torch", "jax", "numpy") if "torch" in used and not used & {"jax", "jnp"} else ("jax", "torch", "numpy")


def names_in(code):
    """The names that a piece of code uses, functions inside it included."""
    inner = [constant for constant in getattr(code, "co_consts", ()) if hasattr(constant, "co_names")]
    return set(getattr(code, "co_names", ())).union(*map(names_in, inner))


def convert(x, framework):
    """A copy of `x` with its NumPy arrays in `framework`; scalars and functions stay."""
    if isinstance(x, np.ndarray):
        if framework == "torch" and x.dtype.kind == "i":
            x = x.astype(np.int64)          # what PyTorch makes of typed-in IDs, and what its losses take
        return {"jax": jnp.array, "torch": torch.tensor, "numpy": np.array}[framework](x)
    if isinstance(x, dict):
        return {key: convert(value, framework) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(convert(value, framework) for value in x)
    return x


def snapshot(x):
    """`x` with its arrays copied to NumPy."""
    if isinstance(x, torch.Tensor):
        return np.array(x.numpy())
    if isinstance(x, (jax.Array, np.ndarray)):
        return np.array(x)
    if isinstance(x, dict):
        return {key: snapshot(value) for key, value in x.items()}
    return type(x)(map(snapshot, x)) if isinstance(x, (list, tuple)) else x


def same(a, b):
    """Equal, arrays element by element."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or a == b


def array(x, what="the answer"):
    """`x` as a NumPy array of its own, or Wrong."""
    if isinstance(x, (str, bytes, dict, set)) or callable(x):
        raise Wrong(f"wanted an array or a number for {what}; this is of type {type(x).__name__}", given=str(x)[:60])
    if math.prod(getattr(x, "shape", ())) > LARGEST:
        raise Wrong(f"the shape of {what} is {tuple(x.shape)}, far more than was asked for")
    try:
        values = np.array(x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x)
    except Exception:
        raise Wrong(f"{what} cannot be read as an array", given=type(x).__name__) from None
    if values.dtype.kind not in "bifu" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise Wrong(f"wanted numbers for {what}; this holds {values.dtype}", given=str(x)[:60])
    return values


def judge(trials, *, kind=None, what="the answer", tolerance=1e-5):
    """Raise Wrong unless every trial is right: first the type, then shape, then dtype, then values.

    Args:
        trials: yields `(got, want, slips, shown)`, the smallest first. `slips` are pairs
            `(because, values)`: what a known misconception gives there, in the same order
            in each trial; or a function that gives these pairs, asked for only if need be.
        kind: "float", "float32", "bool" or "int", if the dtype matters.
    """
    seen, late = [], None
    try:
        for trial in trials:
            seen.append(trial)
    except Wrong as wrong:              # an earlier, smaller trial may tell more than an exception in a later one
        late = wrong
    for place, (got, want, _, shown) in enumerate(seen):
        values, want = array(got, what), np.asarray(want)
        if values.shape != want.shape:
            because = misconception(seen, place, tolerance) or (
                f"the shape of {what} is not right" if want.shape else f"wanted one number for {what}")
            raise Wrong(because, shown=shown, expected=f"shape {want.shape}", given=f"shape {values.shape}")
        if kind and not {"bool": values.dtype.kind == "b", "int": values.dtype.kind in "iu",
                         "float32": values.dtype == np.float32,
                         "float": jnp.issubdtype(values.dtype, jnp.floating)}[kind]:
            raise Wrong(f"the dtype of {what} is not right", shown=shown, expected=kind, given=str(values.dtype))
        if not close(values, want, tolerance):
            finite = np.isfinite(values.astype(np.float64)).all()
            because = misconception(seen, place, tolerance) if finite else (
                f"{what} is not finite: something was divided by zero, or the logarithm of zero was taken")
            because = because or f"the values of {what} are not right"
            raise Wrong(because, shown=shown, **difference(want, values, tolerance))
    if late:
        raise late


def difference(want, values, tolerance):
    """What was expected and given; of a large answer, the first place where they differ."""
    if want.size <= LARGE:
        return {"expected": want, "given": values}
    at = np.argwhere(~close(values, want, tolerance, every=False))[0]
    at = tuple(map(int, at[:-1] if want.shape[-1] <= 6 else at))
    return {key: f"{brief(x[at])} at {list(at)}" for key, x in (("expected", want), ("given", values))}


def misconception(seen, place, tolerance):
    """The slip that explains this trial and most others, or None. Only trials count in which it gives something wrong.

    Half of those are enough, for a second slip may spoil the rest; one of many may be chance.
    """
    found = []
    for got, want, slips, _ in seen:
        slips = slips() if callable(slips) else slips
        found.append([(explains(got, slip, tolerance), not explains(want, slip, tolerance)) for _, slip in slips])
    hits, counts = np.array(found, bool).reshape(len(seen), -1, 2).transpose(2, 0, 1)
    share = hits[place] * (hits & counts).sum(0) / np.maximum(counts.sum(0), 1)
    if share.size and share.max() >= 0.5:
        return slips[int(share.argmax())][0]
    first, *others = (array(got) for got, *_ in seen)
    if others and first.shape == np.shape(seen[0][1]) and all(same(first, other) for other in others):
        return "it gives the same for every input: does it use its arguments?"
    return None


def explains(got, slip, tolerance):
    got = array(got)
    return np.shape(slip) == got.shape and bool(close(got, slip, tolerance))


def close(a, b, tolerance, every=True):
    near = np.isclose(np.asarray(a, np.float64), np.asarray(b, np.float64), 10 * tolerance, tolerance, equal_nan=True)
    return near.all() if every else near


def global_states():
    return snapshot((random.getstate(), np.random.get_state(), torch.get_rng_state()))      # noqa: NPY002


@contextmanager
def global_seeds(seed):
    """All global generators at `seed`, and afterwards as they were; gives a function that says if one was used."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()                # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)                                                                    # noqa: NPY002
    torch.manual_seed(seed)
    seeded = global_states()
    try:
        yield lambda: not same(seeded, global_states())
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])                                                      # noqa: NPY002
        torch.set_rng_state(before[2])


def name(function):
    return f"`{getattr(function, '__name__', type(function).__name__)}`"


def line_of(error, function):
    """The learner's own line in the traceback of `error`, the deepest one."""
    file = getattr(code_of(function), "co_filename", None)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not lines:
        return ""
    text = linecache.getline(file, lines[-1].lineno).strip()
    return f"\n   at line {lines[-1].lineno}: {text}" if text else f"\n   at line {lines[-1].lineno} of its cell"


def brief(x):
    """A value in one short line."""
    if isinstance(x, str):
        return x
    if isinstance(x, dict):
        return "{" + ", ".join(f"{key}: {brief(value)}" for key, value in x.items()) + "}"
    if isinstance(x, (list, tuple)) and any(isinstance(v, (np.ndarray, dict, jax.Array)) or callable(v) for v in x):
        return ", ".join(brief(value) for value in x)
    if callable(x):
        return name(x)
    if isinstance(x, (np.ndarray, np.generic, jax.Array, torch.Tensor)):
        text = np.array2string(array(x), precision=4, suppress_small=True, separator=", ", threshold=LARGE)
        return " ".join(text.split())
    return " ".join(str(x)[:60].split())
