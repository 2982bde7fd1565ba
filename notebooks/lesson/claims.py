"""What a bundle claims about the fixture, the objective, the draws and the corpus.

This table is all that counts: a bundle cannot say what is computed, in which unit, or how exact it has to be.
"""
import math

import numpy as np

from .recompute import (
    FIXTURE,
    GOLDEN,
    HIDE,
    MASK_ID,
    OBJECTIVE,
    ORDER,
    arrays,
    fixture_batch,
    golden_cases,
    hidden_losses,
    logits,
    loss,
    masked,
    moved_loss,
    objective,
    objective_batch,
    softmax,
    trained,
    trained_loss,
)

TABLE = {}                      # id: {"statement", "unit", "tolerance", "files", "function", "states": a number or not}
# Of the lesson's reference run, in nats.
FIRST_LOSS, LAST_LOSS, FINAL_LOSS, TOKEN_MEAN, ROW_MEAN = math.log(3), 0.010633036, 0.010457751, 0.6577723, 0.512896
HIDDEN = {1: 0.0104578, 2: 0.0584577, 3: 0.297487, 4: 1.09923}


class Verdict(Exception):
    """A claim's verdict that is no comparison: `fails`, `unverifiable`, `not checked` or `holds`, and why."""

    def __init__(self, verdict, words):
        super().__init__(words)
        self.verdict, self.words = verdict, words


def claim(name, statement, unit, tolerance, *files):
    """Enter a function in the table.

    It takes the bundle, and the number that the bundle states unless that stands in the files. It gives triples
    `(what, given, wanted)` that must agree within `tolerance`; or it raises a Verdict or Malformed.
    """
    def enter(function):
        TABLE[name] = {"statement": statement, "unit": unit, "tolerance": tolerance, "files": list(files),
                       "function": function, "states": function.__code__.co_argcount == 2}
        return function
    return enter


def against(given, wanted):
    return [(name, given[name], values) for name, values in wanted.items()]


@claim("fixture.batch", "clean targets, selection and corrupted inputs are the lesson's batch", "IDs", 0, FIXTURE)
def _(bundle):
    return against(arrays(bundle, FIXTURE), fixture_batch())


@claim("fixture.count", "selected positions, counted in the mask", "tokens", 0, FIXTURE)
def _(bundle, stated):
    return [("count", stated, arrays(bundle, FIXTURE)["selected"].sum()), ("of the lesson", stated, 3)]


@claim("fixture.baseline", "a model that knows nothing scores log V, V the columns of the head", "nats", 1e-6, FIXTURE)
def _(bundle, stated):
    return [("log V", stated, math.log(arrays(bundle, FIXTURE)["jax_initial_head"].shape[1]))]


@claim("fixture.initial", "parameters before training, from key 7, both frameworks", "1", 1e-6, FIXTURE)
def _(bundle):
    return against(arrays(bundle, FIXTURE), {k: v for k, v in trained().items() if "initial" in k})


@claim("fixture.first_loss", "first loss, from the initial parameters, is log 3", "nats", 1e-6, FIXTURE)
def _(bundle, stated):
    a = arrays(bundle, FIXTURE)
    found = [loss(logits(a[f"{f}_initial_embedding"], a[f"{f}_initial_head"], a["corrupted"]), a["targets"],
                  a["selected"])[0] for f in ("jax", "torch")]
    return [("JAX", stated, found[0]), ("PyTorch", stated, found[1]), ("log 3", stated, FIRST_LOSS),
            ("first of jax_history", a["jax_history"][0], found[0])]


@claim("fixture.history", "losses before each of 100 updates, as a fresh training gives them", "nats", 1e-5, FIXTURE)
def _(bundle):
    return against(arrays(bundle, FIXTURE), {k: v for k, v in trained().items() if "history" in k})


@claim("fixture.last_loss", "last recorded loss, before the last update", "nats", 1e-5, FIXTURE)
def _(bundle, stated):
    return [("last of jax_history", stated, arrays(bundle, FIXTURE)["jax_history"][-1]),
            ("fresh training", stated, trained()["jax_history"][-1]), ("of the lesson", stated, LAST_LOSS)]


@claim("fixture.trained", "parameters after 100 updates, as a fresh training gives them", "1", 1e-4, FIXTURE)
def _(bundle):
    return against(arrays(bundle, FIXTURE), {k: v for k, v in trained().items() if "trained" in k})


@claim("fixture.final_loss", "loss after the last update, from the saved parameters", "nats", 1e-6, FIXTURE)
def _(bundle, stated):
    a = arrays(bundle, FIXTURE)
    return [(f, stated, trained_loss(a, a["corrupted"], a["selected"], f)) for f in ("jax", "torch")]


@claim("fixture.probability", "final probabilities [row, class] at the hidden position", "1", 1e-6, FIXTURE)
def _(bundle):
    a = arrays(bundle, FIXTURE)
    wanted = softmax(logits(a["jax_trained_embedding"], a["jax_trained_head"], a["corrupted"]))[:, 1]
    return [("final_probability", a["final_probability"], wanted)]


@claim("fixture.frameworks", "largest difference between JAX and PyTorch over 100 losses", "nats", 1e-6, FIXTURE)
def _(bundle, stated):
    a = arrays(bundle, FIXTURE)
    return [("difference", stated, np.abs(a["jax_history"] - a["torch_history"]).max())]


@claim("hidden.inputs", "every choice of hidden places, and its input", "IDs", 0, HIDE, FIXTURE)
def _(bundle):
    a, targets = arrays(bundle, HIDE), fixture_batch()["targets"]
    masks = np.array([np.tile([place in places for place in range(4)], (3, 1)) for places in ORDER])
    return against(a, {"selected": masks, "corrupted": np.where(masks, MASK_ID, targets), "moved_selected": masks[2],
                       "moved_corrupted": np.where(masks[2], MASK_ID, targets)})


@claim("hidden.losses", "loss of every choice, from the saved parameters", "nats", 1e-6, HIDE, FIXTURE)
def _(bundle):
    return [("loss", arrays(bundle, HIDE)["loss"], hidden_losses(bundle))]


@claim("hidden.moved_mask", "loss when the third position is hidden instead", "nats", 1e-6, HIDE, FIXTURE)
def _(bundle, stated):
    return [("from the parameters", stated, moved_loss(bundle)),
            ("of the lesson", stated, FINAL_LOSS)]


def hidden_count(count):
    @claim(f"hidden.{count}", f"mean loss with {count} of 4 hidden", "nats", 1e-5, HIDE, FIXTURE)
    def _(bundle, stated):
        chosen = [len(places) == count for places in ORDER]
        return [("from the parameters", stated, hidden_losses(bundle)[chosen].mean()),
                ("of the lesson", stated, HIDDEN[count])]


for count in HIDDEN:
    hidden_count(count)


@claim("objective.batch", "probabilities, targets and masks of the unequal batch", "1", 0, OBJECTIVE)
def _(bundle):
    return against(arrays(bundle, OBJECTIVE), objective_batch())


@claim("objective.token_mean", "mean over selected tokens, 1 and 3 of them", "nats", 1e-6, OBJECTIVE)
def _(bundle, stated):
    return [("float64", stated, loss(*objective(bundle))[0]), ("of the lesson", stated, TOKEN_MEAN)]


@claim("objective.row_mean", "mean of the two row means, another objective", "nats", 1e-6, OBJECTIVE)
def _(bundle, stated):
    rows = [loss(scores[None], targets[None], selected[None])[0] for scores, targets, selected
            in zip(*objective(bundle), strict=True)]
    return [("float64", stated, np.mean(rows)), ("of the lesson", stated, ROW_MEAN)]


@claim("gradient.formula", "automatic gradients against (softmax - onehot) / count", "1", 1e-6, OBJECTIVE)
def _(bundle):
    a, formula = arrays(bundle, OBJECTIVE), loss(*objective(bundle))[1]
    return [(name, a[name], formula) for name in ("jax_gradient", "torch_gradient")]


@claim("gradient.unselected", "gradients at unselected positions are zero, exactly", "1", 0, OBJECTIVE)
def _(bundle):
    a = arrays(bundle, OBJECTIVE)
    return [(name, a[name][~a["selected"]], np.zeros_like(a[name][~a["selected"]]))
            for name in ("jax_gradient", "torch_gradient")]


@claim("gradient.fixture", "gradient at the trained fixture's logits against the formula", "1", 1e-6, FIXTURE)
def _(bundle):
    a = arrays(bundle, FIXTURE)
    scores = logits(a["jax_trained_embedding"], a["jax_trained_head"], a["corrupted"])
    return [("output_gradient", a["output_gradient"], loss(scores, a["targets"], a["selected"])[1])]


@claim("golden.draws", "masking arrays [row, place, ID or selected], drawn again from their seeds", "IDs", 0, GOLDEN)
def _(bundle):
    recorded = {f"{stream}_{i}": np.stack([case[stream]["corrupted"], case[stream]["selected"]], -1)
                for stream in ("jax", "torch") for i, case in enumerate(golden_cases())}
    if any((masked()[name] != values).any() for name, values in recorded.items()):
        raise Verdict("unverifiable", "this machine does not draw what data/golden_masking.json records; try another")
    return against(arrays(bundle, GOLDEN), masked())


@claim("golden.counts", "selected in each case, JAX and then PyTorch, counted in the masks", "tokens", 0, GOLDEN)
def _(bundle, stated):
    a = arrays(bundle, GOLDEN)
    return [("counts", stated, [int(a[f"{stream}_{i}"][..., 1].sum()) for stream in ("jax", "torch")
                                for i in range(len(golden_cases()))])]
