"""What a bundle claims about numbers in `data/` and about figures, against this copy of the course and its arrays."""
import functools
import io
import json
import re
import struct

import numpy as np

from .claims import Verdict, claim
from .container import Malformed, plain
from .figures import PROJECT
from .recompute import (
    FIXTURE,
    GOLDEN,
    HIDE,
    OBJECTIVE,
    ORDER,
    arrays,
    attention,
    golden_cases,
    hidden_losses,
    logits,
    loss,
    moved_loss,
    numbers,
    softmax,
)

PATCH, VISIBLE = 8, 0.06        # pixels a side; what the mean colour of a patch may differ, of 1
TEXTURE = 0.25                  # what its pixels may differ on average: edges of letters are drawn in more than one way


def own_json(name):
    """A JSON file of this copy of the course. A student's edition has not all of them."""
    return _json(own_bytes(name))


@functools.lru_cache(maxsize=64)
def _json(raw):
    return json.loads(raw)


@functools.cache
def own_bytes(name):
    if not (PROJECT / name).exists():
        raise Verdict("unverifiable", f"this copy of the course has no {name}")
    return (PROJECT / name).read_bytes()


# Numbers in JSON

def difference(old, new, rtol, atol):
    """The first difference between two JSON values in words, or None. Only floats have a tolerance."""
    if type(old) is not type(new):
        return f" is of type {type(new).__name__}; wanted {type(old).__name__}"
    if isinstance(old, dict):
        if old.keys() != new.keys():
            return f": {plain(min(old.keys() ^ new.keys()))} is on one side only"
        pairs = [(f"[{key!r}]", old[key], new[key]) for key in old]
    elif isinstance(old, list):
        if len(old) != len(new):
            return f" has length {len(new)}; wanted {len(old)}"
        pairs = [(f"[{i}]", *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    elif isinstance(old, float):
        return None if abs(new - old) <= atol + rtol * abs(old) else f" is {new}; wanted {old}"
    else:
        return None if old == new else f" is {plain(new)}; wanted {plain(old)}"
    return next((where + words for where, a, b in pairs if (words := difference(a, b, rtol, atol))), None)


def exported(name, derive=None):
    """The function of a claim about a file that `figures.record` wrote."""
    def check(bundle):
        own, given = own_json(name), numbers(bundle, name)
        if not isinstance(given, dict) or given.keys() != own.keys():
            raise Verdict("fails", f"{name} does not hold {', '.join(own)}")
        versions = given["packages"]
        if not isinstance(versions, dict) or versions.keys() != own["packages"].keys() or not all(
                isinstance(version, str) and re.fullmatch(r"[\w.+]{1,30}", version) for version in versions.values()):
            raise Verdict("fails", f"{name}: packages are not the versions of {', '.join(own['packages'])}")
        exact = {"rtol": 0, "atol": 0}
        for key in own.keys() - {"packages"}:
            words = difference(own[key], given[key], **(own["tolerance"] if key == "numbers" else exact))
            if words:
                raise Verdict("fails", f"{name}: {key}{words}")
        for key, wanted in (derive(bundle) if derive else {}).items():
            words = difference(json.loads(json.dumps(wanted)), given["numbers"][key], **own["tolerance"])
            if words:
                raise Verdict("fails", f"{name}: {key}{words}, from the arrays")
        return [("numbers in the file", leaves(given["numbers"]), leaves(own["numbers"]))]
    return check


def leaves(value):
    """How many numbers and texts a JSON value holds."""
    if isinstance(value, (dict, list)):
        return sum(map(leaves, value.values() if isinstance(value, dict) else value))
    return 1


def final(bundle, read, framework="jax"):
    a = arrays(bundle, FIXTURE)
    return logits(a[f"{framework}_trained_embedding"], a[f"{framework}_trained_head"], np.asarray(read))


def from_fixture(bundle):
    a = arrays(bundle, FIXTURE)
    found = {name: a[name] for name in ("targets", "selected", "corrupted")}
    found |= {f"{when} {part}": a[f"jax_{when}_{part}"] for when in ("initial", "trained")
              for part in ("embedding", "head")}
    found |= {"loss before each update, nats": a["jax_history"],
              "final probability [row, class]": a["final_probability"]}
    found = {name: value.tolist() for name, value in found.items()}
    return found | {"selected count": int(a["selected"].sum()), "baseline log V, nats": float(np.log(3)),
                    "moved mask, nats": float(moved_loss(bundle)),
                    "first position, nats": float(hidden_losses(bundle)[0])}


def from_softmaxes(bundle):
    embedding, read = arrays(bundle, FIXTURE)["jax_trained_embedding"].astype(np.float64), np.array([0, 3, 0, 0])
    h, scores = embedding[read], final(bundle, read)
    return {"attention, over keys (correct)": attention(embedding, read).tolist(),
            "attention, over queries (wrong)": softmax((h @ h.T / np.sqrt(6)).T).T.tolist(),
            "probability, over classes (correct)": softmax(scores).tolist(),
            "probability, over positions (wrong)": softmax(scores.T).T.tolist()}


def from_hidden(bundle):
    losses = hidden_losses(bundle)
    choices = [[float(x) for x, places in zip(losses, ORDER, strict=True) if len(places) == n] for n in (1, 2, 3, 4)]
    return {"each choice, nats": choices, "mean loss, nats": [sum(x) / len(x) for x in choices]}


def from_golden(bundle):
    a, found = arrays(bundle, GOLDEN), {"tokens": golden_cases()[0]["tokens"]}
    for name, stream in (("JAX", "jax"), ("PyTorch", "torch")):
        out = a[f"{stream}_0"].astype(int)
        found |= {f"{name} corrupted": out[..., 0].tolist(), f"{name} selected": out[..., 1].tolist()}
    return found


def from_gradient(bundle):
    a = arrays(bundle, OBJECTIVE)
    formula = loss(np.log(a["probability"]), a["targets"], a["selected"])[1] + 0.0
    return {"automatic": (a["jax_gradient"].astype(float) + 0.0).tolist(), "from the formula": formula.tolist(),
            "selected": a["selected"].tolist()}


def from_leak(bundle):
    a = arrays(bundle, FIXTURE)
    honest = loss(final(bundle, a["corrupted"]), a["targets"], a["selected"])[0]
    return {"honest": {"training": float(a["jax_history"][-1]), "honest": float(honest), "moved": 0.0}}


def from_table(bundle):
    exported("data/claims.json")(bundle)            # or there is no table to compute with
    rows = numbers(bundle, "data/claims.json")["numbers"]
    return {"share of the tolerance used": {
        name: abs(row["measured"] - row["expected"]) / row["tolerance"] if row["tolerance"] else 0.0
        for name, row in rows.items()}}


def from_failure(bundle):
    texts = own_json("data/failure.json")["numbers"]["texts"]
    return {"texts": texts, "probability [text, class]": softmax(final(bundle, texts))[:, 2].tolist()}


def from_arrays(bundle):
    """Rows of notebook 05's table that follow from the arrays, with all that is said beside the number."""
    rows, a = own_json("data/claims.json")["numbers"], arrays(bundle, FIXTURE)
    means = from_hidden(bundle)["mean loss, nats"]
    measured = {"first loss is log 3, nats": a["jax_history"][0], "last recorded loss, nats": a["jax_history"][-1],
                "moved mask, nats": moved_loss(bundle), **{f"{n + 1} of 4 hidden, nats": means[n] for n in range(4)}}
    return {name: rows[name] | {"measured": float(value)} for name, value in measured.items() if name in rows}


DERIVED = {"data/fixture.json": from_fixture, "data/failure.json": from_failure, "data/claims.json": from_arrays,
           "data/figures/01_softmax_axes.json": from_softmaxes,
           "data/figures/02_training.json": lambda bundle: {key: value for key, value in from_fixture(bundle).items()
                                                            if key.startswith(("loss before", "final prob"))},
           "data/figures/02_jax_vs_torch.json": lambda bundle: {
               "JAX loss, nats": arrays(bundle, FIXTURE)["jax_history"].tolist(),
               "PyTorch loss, nats": arrays(bundle, FIXTURE)["torch_history"].tolist()},
           "data/figures/02_corruption.json": from_golden, "data/figures/03_hidden_count.json": from_hidden,
           "data/figures/03_leak_audit.json": from_leak, "data/figures/04_gradient.json": from_gradient,
           "data/figures/05_claims.json": from_table}
RESTS_ON = {"data/figures/02_corruption.json": (GOLDEN,), "data/figures/04_gradient.json": (OBJECTIVE,),
            "data/figures/05_claims.json": ("data/claims.json",), "data/figures/02_training.json": (FIXTURE,),
            "data/figures/02_jax_vs_torch.json": (FIXTURE,), "data/figures/01_softmax_axes.json": (FIXTURE,),
            "data/figures/03_leak_audit.json": (FIXTURE,), "data/failure.json": (FIXTURE,)}


# Pictures

def chunks(png):
    """Kinds of the parts of a PNG, in order, or Malformed."""
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise Malformed("it is no PNG")
    at, kinds = 8, []
    while at < len(png) and len(kinds) < 1000:
        size, kind = struct.unpack(">I4s", png[at:at + 8].ljust(8, b"\0"))
        kinds.append(kind)
        at += 12 + size
    if at != len(png) or kinds[-1:] != [b"IEND"]:
        raise Malformed("the PNG is cut short, or something follows its end")
    return kinds


def same_picture(png, own):
    """How two PNGs compare, in words; raises Verdict or Malformed if one sees a difference."""
    if png == own:
        return "same bytes"
    if not set(chunks(png)) <= {b"IHDR", b"pHYs", b"IDAT", b"IEND"}:
        raise Verdict("fails", "the PNG holds more than one picture: other parts than size, resolution and pixels")
    if png[8:33] != own[8:33]:
        raise Verdict("fails", f"the PNG is of another size or kind; wanted {struct.unpack('>2I', own[16:24])}")
    try:
        change = pixels(png)
        change -= pixels(own)           # in place, for these are large
    except Exception as error:          # a decoder on a stranger's bytes raises what it likes
        raise Malformed(f"the PNG cannot be decoded: {plain(error)}") from None
    for allowed in (VISIBLE, TEXTURE):
        size, x, y = largest_change(change)
        if size > allowed:
            raise Verdict("fails", f"the picture differs from the course's own near pixel {x}, {y}: {size:.0%} of the "
                                   f"range, averaged over {PATCH} by {PATCH} pixels; wanted at most {allowed:.0%}")
        np.abs(change, out=change)      # of a texture, the mean alone may be right
    return "other bytes, same picture"


def pixels(png):
    import matplotlib.image
    image = matplotlib.image.imread(io.BytesIO(png), format="png")
    return image[..., :3] * image[..., 3:] + 1 - image[..., 3:] if image.shape[-1] == 4 else image     # on white


def largest_change(change):
    """`(size, x, y)` of the patch whose mean changes most, in any colour of `[y, x, colour]`."""
    found = []
    for colour in np.moveaxis(change, -1, 0):           # one at a time: these are large
        sums = np.pad(colour, ((1, 0), (1, 0))).cumsum(0, np.float64).cumsum(1)
        means = np.abs(sums[PATCH:, PATCH:] - sums[:-PATCH, PATCH:] - sums[PATCH:, :-PATCH] + sums[:-PATCH, :-PATCH])
        y, x = np.unravel_index(means.argmax(), means.shape)
        found.append((means[y, x] / PATCH**2, x, y))
    return max(found)


def picture(name):
    def check(bundle):
        try:
            words = same_picture(bundle[name], own_bytes(name))
        except (Verdict, Malformed) as error:
            raise Verdict("fails", f"{name}: {error}") from None
        raise Verdict("holds", words)
    return check


EXPORTED = ("data/fixture.json", "data/failure.json", "data/claims.json", "data/corpus_evaluation.json",
            "data/failure_corpus.json")


def enter(root):
    """Enter a claim for each file of numbers and each figure that the course in the folder `root` has."""
    names = [*EXPORTED, *sorted(path.relative_to(root).as_posix() for path in root.glob("data/figures/*.json"))]
    for name in names:
        files = (name, *RESTS_ON.get(name, (FIXTURE, HIDE) if name in DERIVED else ()))
        claim(f"numbers.{name.rpartition('/')[2][:-5]}", f"{name} agrees with the course and the arrays", "as named",
              "as the course's file states", *files)(exported(name, DERIVED.get(name)))
    for name in sorted(path.relative_to(root).as_posix() for path in root.glob("figures/*.png")):
        claim(f"picture.{name[8:-4]}", f"{name} shows what the course's own shows", "of the range", VISIBLE,
              name)(picture(name))
    claim("golden.seeds", "cases and seeds of the golden draws are the course's", "as named", 0,
          "data/golden_masking.json")(golden_seeds)


def golden_seeds(bundle):
    name = "data/golden_masking.json"
    words = difference(own_json(name), numbers(bundle, name), 0, 0)
    if words:
        raise Verdict("fails", f"{name}{words}")
    return [("cases", len(golden_cases()), len(own_json(name)["cases"]))]
