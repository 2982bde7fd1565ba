"""The checks of notebook 04, one for each exercise: `from lesson import checks`.

Each looks at type, shape, dtype and then values, on the smallest case first and then on
freshly drawn ones, and knows the misconceptions that it can name. References are NumPy
in float64, or the exercise's own draw lines.
"""
import functools
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

from . import broken
from .checking import (
    Wrong,
    array,
    attempted,
    brief,
    call,
    code_of,
    exercise,
    frameworks,
    global_seeds,
    judge,
    name,
    names_in,
    raises,
)
from .figures import PROJECT

FRESH = 20261130                # seed of the freshly drawn cases, so that answers cannot be typed in


# A: the objective

@exercise("4.1", "Hide the first position", "1.2 The path forks", "3.3 The moved mask, and an honest look at it")
def first_position(function):
    rng = np.random.default_rng(FRESH)
    small = {"embedding": np.array([[0.0, 1.0], [1.0, 0.5], [-0.5, 0.25]], np.float32),
             "head": np.array([[2.0, -1.0], [-1.0, 1.5]], np.float32)}
    fresh = {"embedding": rng.normal(size=(6, 4)).astype(np.float32),
             "head": rng.normal(size=(4, 5)).astype(np.float32)}

    def trials():
        for params, tokens in ((small, np.array([[0, 1, 1], [1, 1, 0]], np.int32)),
                               (fresh, rng.integers(0, 5, (3, 7)).astype(np.int32))):
            mask_id, (row, column) = len(params["embedding"]) - 1, np.indices(tokens.shape)
            got = call(function, params, tokens, mask_id)
            first, second, last = column == 0, column == 1, column == column.max()
            every, corner, row = column >= 0, (row == 0) & first, row == 0

            def loss(hidden, scored, axis=-1, params=params, tokens=tokens, mask_id=mask_id):
                return _nll(_encode(params, np.where(hidden, mask_id, tokens)), tokens, axis)[scored].mean()
            want = loss(first, first)
            yield got, want, [
                ("it hides and scores the second position, as notebook 2 did; wanted the first", loss(second, second)),
                ("it hides and scores the last position; the first is column 0", loss(last, last)),
                ("it hides and scores the first row of the batch; the first position is a column", loss(row, row)),
                ("it hides and scores the first position of one row only; wanted that of every row",
                 loss(corner, corner)),
                ("it hides the first position but scores the second: one mask, two uses", loss(first, second)),
                ("it scores the first position but hides the second: the encoder reads the answer",
                 loss(second, first)),
                ("it hides the first position but averages over all positions; only selected ones are scored",
                 loss(first, every)),
                ("the encoder reads the clean tokens, so it sees the answer", loss(~every, first)),
                ("it hides every position, so no evidence is left", loss(every, first)),
                ("it hides and scores every position; wanted the first only", loss(every, every)),
                ("the softmax runs over positions; wanted over the vocabulary, the last axis", loss(first, first, -2)),
                ("it is the sum over the rows; wanted the mean", want * len(tokens)),
                ("it divides by all positions; wanted the selected ones", want * first.mean()),
                ("it is the pair (sum, count); wanted one number, their quotient", [want * len(tokens), len(tokens)]),
                ("it is in bits, with logarithms to base 2; wanted nats", want / np.log(2)),
                ("it is the perplexity, exp of the loss; wanted the loss in nats", np.exp(want)),
                ("the sign is wrong: the loss is minus the log probability", -want)], (tokens, f"mask_id {mask_id}")
    judge(trials(), kind="float")
    return "Two models agree, one of them drawn for this check. On the fixture any single position gives this loss."


class _Refusal(ValueError):
    """Told apart from a ValueError that the learner's own line raises."""


@exercise("4.2", "Refuse a missing learning signal", "1.5 A baseline that needs no model: log V",
          "2.1 Define the corruption")
def empty_mask(function):
    tokens = np.array([[0, 0, 0], [1, 1, 1]], np.int32)
    handed = []

    def refuses(tokens, selected, mask_id):
        handed.append(selected)
        raise _Refusal("nothing is selected")

    def careless(tokens, selected, mask_id):
        return tokens

    def broken(tokens, selected, mask_id):              # fails for another reason
        raise KeyError("a typo, not a refusal")

    error, _ = raises(function, refuses, tokens)
    if isinstance(error, _Refusal):
        raise Wrong("the ValueError of the refusal goes through your function; catch it and return True",
                    shown="a function that raises ValueError", expected="True", given="ValueError")
    call(function, refuses, tokens)
    if not handed:
        raise Wrong("it never calls the corruption function that it is given")
    mask = array(handed[0], "the mask")
    if mask.shape != tokens.shape:
        raise Wrong("the mask that it hands over has the wrong shape, so it is refused for that",
                    expected=f"shape {tokens.shape}", given=f"shape {mask.shape}")
    if mask.any():
        raise Wrong("the mask that it hands over selects something; wanted all False", given=mask)
    if mask.dtype != bool:
        raise Wrong("the mask that it hands over is not Boolean, so it may be refused for that", given=str(mask.dtype))
    for corrupt, want, because in (
            (refuses, True, "a function that raises ValueError refuses; wanted True"),
            (careless, False, "a function that returns tokens accepts; wanted False")):
        verdict = call(function, corrupt, tokens)
        if not isinstance(verdict, (bool, np.bool_)):
            raise Wrong("the verdict is not True or False", given=brief(verdict))
        if verdict != want:
            raise Wrong(because, shown=f"corrupt_tokens = {corrupt.__name__}", expected=str(want), given=str(verdict))
    error, verdict = raises(function, broken, tokens)
    if verdict:
        raise Wrong("it takes any exception for a refusal: a KeyError from a typo is none. Catch ValueError only",
                    shown="a function that raises KeyError", expected="False, or the KeyError", given="True")
    return "It tells a refusal from a corruption function that accepts, and from a typo."


@exercise("4.3", "Derive the gradient", "1.6 The loss, and its gradient with numbers")
def gradient(function):
    rng = np.random.default_rng(FRESH + 3)

    def trials():
        small = np.log(np.array([[[0.5, 0.5], [0.25, 0.75]], [[0.75, 0.25], [0.5, 0.5]]], np.float32))
        for logits, targets, selected in (
                (small, np.array([[0, 1], [0, 1]]), np.array([[True, True], [True, False]])),
                (rng.normal(size=(2, 5, 4)).astype(np.float32), rng.integers(0, 4, (2, 5)), np.arange(5) < [[1], [4]])):
            got = call(function, logits, targets, selected)
            z, onehot, m = logits.astype(np.float64), np.eye(logits.shape[-1])[targets], selected[..., None]
            p, other, count = _softmax(z), _softmax(z, -2), selected.sum()
            inside, nll = (p - onehot) * m, _nll(z, targets)
            stretched = selected if selected.shape == z.shape[1:] else np.nan    # upon [seq, vocab], if it fits
            yield got, inside / count, [
                ("it is not divided by the number of selected positions", inside),
                ("it is divided by the batch size; wanted the number of selected positions", inside / len(logits)),
                ("it is divided by the number of all positions; wanted the selected ones", inside / selected.size),
                ("it is divided row by row; wanted one count for the whole batch",
                 inside / np.maximum(selected.sum(-1), 1)[:, None, None]),
                ("it is divided by the size of the vocabulary too; wanted the number of selected positions alone",
                 inside / count / z.shape[-1]),
                ("unselected positions are not zero: multiply by the mask", (p - onehot) / count),
                ("it is neither masked nor divided", p - onehot),
                ("it is the mean over all positions: the mask is missing twice", (p - onehot) / selected.size),
                ("the mask is turned around: the selected positions are those with a gradient",
                 (p - onehot) * ~m / (~m).sum()),
                ("the mask lies on the axes [seq, vocab]: it needs a last axis of its own, for the vocabulary",
                 (p - onehot) * stretched / count),
                ("the sign is turned around: wanted probability minus one-hot", -inside / count),
                ("the one-hot of the targets is missing", p * m / count),
                ("the target's ID is subtracted; wanted its one-hot", (p - targets[..., None]) * m / count),
                ("only the target's own element is there; every other class has its probability as gradient",
                 inside * onehot / count),
                ("the one-hot is subtracted from the logits; wanted from the probabilities", (z - onehot) * m / count),
                ("the one-hot is subtracted from log probabilities; wanted from the probabilities",
                 (np.log(p) - onehot) * m / count),
                ("the softmax runs over positions; wanted over the vocabulary, the last axis",
                 (other - onehot) * m / count),
                ("these are the selected positions alone; wanted the shape of the logits, zeros included",
                 (inside / count)[selected]),
                ("it is the loss itself; wanted its gradient, an element for each logit", nll[selected].mean()),
            ], (logits, targets, selected.astype(int))
    judge(trials(), kind="float", what="the gradient")
    return "Every element agrees on two batches, zeros included."


# B: sums and counts

@exercise("4.4", "Add up unequal microbatches", "1.7 Add first, divide last",
          "3.10 Microbatches: sums and counts against a mean of means")
def accumulate(function):
    rng = np.random.default_rng(FRESH + 4)

    def trials():
        for picked in ((1, 3), (1, 7, 2, 6), (2, 0, 5)):
            pieces = [(2 * rng.normal(size=(9, 5)).astype(np.float32), rng.integers(0, 5, 9), np.arange(9) < n)
                      for n in picked]
            got = call(function, pieces)
            nll = [_nll(logits, targets) for logits, targets, _ in pieces]
            totals = [n[selected].sum() for n, (_, _, selected) in zip(nll, pieces, strict=True)]
            means = [t / c for t, c in zip(totals, picked, strict=True) if c]
            full = (*picked, 0).index(0)            # how many pieces come before an empty one
            want = sum(totals) / sum(picked)
            yield got, want, [
                ("it averages the means of the pieces: small pieces weigh too much", np.mean(means)),
                ("it averages the means and counts an empty piece as a loss of zero", sum(means) / len(pieces)),
                ("an empty piece is counted as one token; it adds (0, 0)",
                 sum(totals) / np.maximum(picked, 1).sum()),
                ("it stops at an empty piece; others follow", sum(totals[:full]) / sum(picked[:full])),
                ("it is the sum over all pieces, never divided", sum(totals)),
                ("it adds the means of the pieces", sum(means)),
                ("it divides by the number of pieces; wanted the number of selected tokens", sum(totals) / len(pieces)),
                ("it divides by all positions; wanted the selected ones", sum(totals) / (9 * len(pieces))),
                ("it averages over all positions, selected or not", np.mean(nll)),
                ("it adds the nats of all positions; wanted the selected ones", np.sum(nll) / sum(picked)),
                ("it is the loss of the last piece only", means[-1]),
                ("it is the loss of the first piece only: is the `return` inside the loop?", means[0]),
                ("it is the pair (sum, count); wanted one number, their quotient", [sum(totals), sum(picked)]),
                ("it is the perplexity, exp of the loss; wanted the loss in nats", np.exp(want)),
            ], f"selected counts {list(picked)}, sums of nats {[round(float(t), 4) for t in totals]}"
    judge(trials(), kind="float", what="the loss")
    return "Pieces of 1, 7, 2, 6 and even 0 selected tokens give the loss of the whole."


@exercise("4.5", "Perplexity of a corpus", "1.10 Perplexity, and what may be compared")
def corpus_perplexity(function):
    rng = np.random.default_rng(FRESH + 5)
    small = [(np.full((1, 3), np.log(4)), np.array([[True, True, True]])),
             (np.array([[np.log(16), 0.0, 0.0]]), np.array([[True, False, False]]))]
    fresh = [(rng.uniform(0.1, 4, (rows, 6)), np.arange(6) < rng.integers(1, 6, (rows, 1))) for rows in (1, 4, 2)]
    nothing = (np.ones((1, 2)), np.zeros((1, 2), bool))
    certain = [(np.zeros((1, 2)), np.ones((1, 2), bool))]

    def trials():
        for batches in (small, fresh, [*fresh, nothing], certain):
            if batches[-1] is nothing and isinstance(raises(function, batches)[0], ValueError):
                raise Wrong("a batch in which nothing counts is no error while others have tokens: it adds (0, 0)",
                            shown="four batches, the last with a count of 0", expected="a perplexity",
                            given="ValueError")
            got = call(function, batches)
            totals, counts = np.array([n[s].sum() for n, s in batches]), np.array([s.sum() for _, s in batches])
            means = totals[counts > 0] / counts[counts > 0]
            everything = np.concatenate([n.ravel() for n, _ in batches])
            mean, tokens = totals.sum() / counts.sum(), np.concatenate([n[s] for n, s in batches])
            yield got, np.exp(mean), [
                ("it averages the perplexities of the batches", np.exp(means).mean()),
                ("it averages the perplexities of the batches, weighted by tokens; average the nats instead",
                 np.exp(means) @ counts[counts > 0] / counts.sum()),
                ("it averages the perplexities of the tokens; average their nats, then one exponential",
                 np.exp(tokens).mean()),
                ("it averages the mean losses of the batches: a small batch weighs too much", np.exp(means.mean())),
                ("positions that do not count (padding) are counted", np.exp(everything.mean())),
                ("it divides by all positions; wanted those that count", np.exp(totals.sum() / everything.size)),
                ("the nats of padding are added; wanted those that count", np.exp(everything.sum() / counts.sum())),
                ("it divides by the number of batches; wanted the tokens that count",
                 np.exp(totals.sum() / len(batches))),
                ("it is the perplexity of the last batch only", np.exp(means[-1])),
                ("it is the perplexity of the first batch only: is the `return` inside the loop?", np.exp(means[0])),
                ("it is the mean loss; the exponential is missing", mean),
                ("it takes 2 to the power of nats; nats go with e", 2**mean),
                ("the sign is wrong: perplexity is at least 1", np.exp(-mean)),
                ("it multiplies the perplexities of the batches", np.exp(means).prod()),
                ("it is the exponential of the sum, never divided", np.exp(totals.sum()))], (
                f"counts {counts.tolist()}, sums of nats {totals.round(4).tolist()}, {everything.size} positions")
    judge(trials(), kind="float", what="the perplexity")
    _must_refuse(function, [nothing], because="when nothing counts there is no perplexity; wanted a ValueError",
                 shown="one batch, no token counts")
    return "Batches of different size and padding are handled, and nothing to count is refused."


@exercise("4.6", "Project selected positions only", "1.4 Shapes, and two softmaxes",
          "1.6 The loss, and its gradient with numbers")
def selected_projection(function):
    rng = np.random.default_rng(FRESH + 6)
    small = (np.array([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [2.0, 0.5]]], np.float32),
             np.array([[1.0, -1.0, 0.5], [0.0, 1.0, 2.0]], np.float32),
             np.array([[0, 2], [1, 2]]), np.array([[False, True], [True, True]]))
    fresh = (rng.normal(size=(3, 5, 4)).astype(np.float32), rng.normal(size=(4, 6)).astype(np.float32),
             rng.integers(0, 6, (3, 5)), rng.random((3, 5)) < 0.4)
    asked = [(inputs, call(function, *inputs)) for inputs in (small, fresh)]
    for _, got in asked:
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong("wanted the pair (logits, loss)", given=type(got).__name__)

    def logits():
        for (context, head, _, selected), got in asked:
            full = context.astype(np.float64) @ head
            yield got[0], full[selected], [
                ("the head is applied at every position; wanted the selected ones alone, [count, vocab]", full),
                ("the head is applied at every position; wanted the rows of the selected ones alone",
                 full.reshape(-1, full.shape[-1])),
                ("unselected logits are set to zero, which still computes all of them", full * selected[..., None]),
                ("the head is applied at the unselected positions", full[~selected]),
                ("positions come column by column; wanted row by row, as `[selected]` gives them",
                 full.swapaxes(0, 1)[selected.T]),
                ("these are probabilities; wanted the logits", _softmax(full[selected])),
                ("these are log probabilities; wanted the logits", np.log(_softmax(full[selected]))),
                ("the pair is turned around; wanted (logits, loss)", np.nan if np.shape(got[0]) else got[0]),
                ("it is the context at the selected positions; the head is missing", context[selected])], (
                selected.astype(int))

    def losses():
        for (context, head, targets, selected), got in asked:
            full, count = context.astype(np.float64) @ head, selected.sum()
            nll, few, row = _nll(full, targets), full[selected], np.nonzero(selected)[0]
            want = nll[selected].mean()
            yield got[1], want, [
                ("it is the sum; wanted the mean over selected positions", nll[selected].sum()),
                ("it divides by all positions; wanted the selected ones", nll[selected].sum() / selected.size),
                ("it is the mean over all positions, selected or not", nll.mean()),
                ("it is the mean of the rows' means; wanted the mean over all selected positions",
                 np.mean([nll[selected][row == r].mean() for r in set(row)])),
                ("logits and targets are out of step: select the targets with the same mask",
                 _nll(few, targets.ravel()[:count]).mean()),
                ("every row is scored with the targets of all rows; wanted each with its own",
                 -np.log(_softmax(few))[:, targets[selected]].mean()),
                ("the softmax runs over the selected positions; wanted over the vocabulary, the last axis",
                 _nll(few, targets[selected], -2).mean()),
                ("it is the perplexity, exp of the loss; wanted the loss in nats", np.exp(want)),
                ("the sign is wrong: the loss is minus the log probability", -want)], (targets, selected.astype(int))

    def gradients(which):
        for (context, head, targets, selected), got in zip(asked, slopes, strict=True):
            onehot = np.eye(head.shape[1])[targets]
            slope = (_softmax(context.astype(np.float64) @ head) - onehot) * selected[..., None] / selected.sum()
            want = (slope @ head.T, np.einsum("bsw,bsv->wv", context, slope))[which]
            yield got[which], want, [
                ("the gradient does not arrive: something on the way to the loss is detached", 0 * want)], (
                selected.astype(int))
    judge(logits(), kind="float", what="the logits")
    judge(losses(), kind="float", what="the loss")
    asked = [inputs for inputs, _ in asked]
    slopes = [_gradients(function, *inputs) for inputs in asked]
    judge(gradients(0), what="the gradient of the loss for `context`", tolerance=1e-4)
    judge(gradients(1), what="the gradient of the loss for `head`", tolerance=1e-4)
    context, head, targets, selected = small        # a product with NaN shows in the gradient, even thrown away
    if not np.isfinite(_gradients(function, np.where(selected[..., None], context, np.nan), *small[1:])[1]).all():
        raise Wrong("the head is applied at every position and the rest thrown away; select before the product",
                    shown=selected.astype(int), expected=f"{selected.sum()} rows times the head",
                    given=f"{selected.size} rows times the head")
    return "Same loss, same gradients, and the head works at selected positions alone."


# C: causal beside masked

@exercise("4.7", "Next-token targets and the causal mask", "1.8 Causal beside masked")
def causal(next_token, causal_mask):
    rng = np.random.default_rng(FRESH + 7)
    asked = [(tokens, call(next_token, tokens)) for tokens in (np.array([5, 6, 7]), rng.integers(0, 90, (3, 6)))]
    for _, got in asked:
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong("wanted the pair (inputs, targets)", given=type(got).__name__)

    def inputs():
        for tokens, got in asked:
            yield got[0], tokens[..., :-1], [
                ("inputs and targets are exchanged: this predicts the past", tokens[..., 1:]),
                ("the last input has no next token; leave it out", tokens),
                ("it leaves out two; each input has the very next token as target", tokens[..., :-2]),
                ("it shifts along the batch; wanted along the sequence", tokens[:-1])], tokens

    def targets():
        for tokens, got in asked:
            yield got[1], tokens[..., 1:], [
                ("the targets are the inputs themselves: each token predicts itself", tokens[..., :-1]),
                ("the shift wraps around: the first token is no target of the last", np.roll(tokens, -1, axis=-1)),
                ("the targets are not shifted", tokens),
                ("it is the last token only; every input has a target", tokens[..., -1]),
                ("it shifts along the batch; wanted along the sequence", tokens[1:])], tokens

    def masks():
        for length in (3, 1, 6):
            want = np.tril(np.ones((length, length), bool))
            yield call(causal_mask, length), want, [
                ("the triangle is turned around: it looks at the future and not at the past", want.T),
                ("the diagonal is missing: a position may read itself, its target is the next one", np.tril(want, -1)),
                ("it is True where looking is forbidden; wanted True where it is allowed", ~want),
                ("it allows one position too many: that one is the answer", np.tril(np.ones_like(want), 1)),
                ("each position sees itself alone; it may look at all earlier ones too", np.eye(length)),
                ("everything may look everywhere: that is the masked model", np.ones_like(want))], f"length {length}"
    judge(inputs(), kind="int", what="`inputs`")
    judge(targets(), kind="int", what="`targets`")
    judge(masks(), kind="bool", what="the causal mask")
    return "Two predictions for three tokens, and nobody looks ahead."


# D: BERT's corruption, exactly

def _masking_cases(draws):
    golden = json.loads((PROJECT / "data" / "golden_masking.json").read_text(encoding="utf-8"))["cases"]
    cases = [(np.array(c["tokens"], np.int32), c["vocab_size"], c["mask_token_id"], c["seed"], c["mask_prob"])
             for c in golden]
    rng = np.random.default_rng(FRESH + 8)
    for shape, mask_id, prob in (((2, 12), 0, None), ((8, 32), 12, 0.3)):       # shapes that JAX has compiled for
        seed = int(rng.integers(2**31))
        if prob is None:                            # exactly a draw: "strictly below" shows nowhere else
            prob = float(np.sort(draws(shape, 30, seed)[0], axis=None)[15])
        tokens = rng.integers(0, 30, shape).astype(np.int32)
        tokens[::2] = draws(shape, 30, seed)[2][::2]    # replacements that hit the token itself
        cases.append((tokens, 30, mask_id, seed, prob))
    return sorted(cases, key=lambda case: (case[1] == 1, case[0].size))     # a vocabulary of one shows least


def _policy(tokens, mask_id, prob, select, corrupt, replacement, edges=(0.8, 0.9)):
    selected, (mask_below, random_below) = select < np.float32(prob), np.float32(edges)
    changed = np.where(corrupt < mask_below, mask_id, np.where(corrupt < random_below, replacement, tokens))
    return np.stack([np.where(selected, changed, tokens), selected], -1).astype(np.float32)


def _masking(function, stream):
    """The two exercises differ in their draws only. A slip is the same policy on other draws, or another policy."""
    draws, kept_as, slips_of_draws = ((_jax_draws, jax.Array, _jax_slips) if stream == "jax" else
                                      (_torch_draws, torch.Tensor, _torch_slips))
    if names_in(code_of(function)) >= {"mlm", "apply_bert_masking"}:
        raise Wrong("it calls the helper; write it from the rules, without `mlm.apply_bert_masking`")

    def trials():
        for tokens, vocab_size, mask_id, seed, prob in _masking_cases(draws):
            with global_seeds(1) as used:
                got = call(function, tokens, vocab_size, mask_id, seed, prob, framework=stream)
                if used():
                    raise Wrong("it seeds or draws from a global generator, which others share; wanted a local one "
                                "with this seed", shown=f"seed {seed}")
            if not isinstance(got, kept_as):
                raise Wrong("wanted one " + ("JAX array" if stream == "jax" else "PyTorch tensor"),
                            given=type(got).__name__)
            drawn, case = draws(tokens.shape, vocab_size, seed), (tokens, mask_id, prob)
            slips = functools.partial(_masking_slips, draws, slips_of_draws, drawn, case, vocab_size, seed)
            yield got, _policy(*case, *drawn), slips, (
                f"tokens {brief(tokens)}, vocab_size {vocab_size}, mask_token_id {mask_id}, seed {seed}, "
                f"mask_prob {prob:g}")
    judge(trials(), kind="float32", what="the result", tolerance=0)
    return "Eight cases agree to the last entry: six golden ones and two drawn for this check."


def _masking_slips(draws, slips_of_draws, drawn, case, vocab_size, seed):
    (tokens, mask_id, prob), (select, corrupt, replacement) = case, drawn
    out = functools.partial(_policy, *case)
    want = out(*drawn)
    selected, read = want[..., 1], want[..., 0]

    def marked(indicator):
        return np.stack([read, indicator], -1).astype(np.float32)

    def as_if(mask, random, kept):                      # other branches in place of the three
        return out(select, np.where(corrupt < 0.8, mask, np.where(corrupt < 0.9, random, kept)), replacement)

    def replaced(low, high):                            # replacements from another range
        return out(select, corrupt, draws(tokens.shape, max(high, low + 1), seed, low=low)[2])
    mask, random, kept = 0.0, 0.85, 0.95
    return [
        ("the indicator says whether the token changed; a selected token that is kept still counts",
         marked(read != tokens)),
        ("the indicator says whether the mask ID is read; random and kept tokens are selected too",
         marked(read == mask_id)),
        ("nothing is marked as selected", marked(0 * tokens)),
        ("everything is marked as selected: the indicator is no attention mask", marked(0 * tokens + 1)),
        ("the indicator marks the positions that are not selected", marked(1 - selected)),
        ("the channels are exchanged: first the corrupted ID, then the indicator", want[..., ::-1]),
        ("the channels come first; wanted them as the last axis", np.moveaxis(want, -1, 0)),
        ("the indicator is missing; wanted two channels, [batch, seq, 2]", read),
        ("the tokens are still clean: the corruption was not put in", np.stack([tokens, selected], -1)),
        ("every selected token becomes the mask ID; the corruption draw is not used", as_if(mask, mask, mask)),
        ("random and kept are exchanged: random lies from 0.8 to 0.9, kept from 0.9", as_if(mask, kept, random)),
        ("nothing becomes random: that is from 0.8 to 0.9. (0.1 is its width, no border)", as_if(mask, kept, kept)),
        ("nothing is kept: from 0.9 on a selected token stays as it is", as_if(mask, random, random)),
        ("the random branch takes the draws below 0.8 too, which hide", as_if(random, random, kept)),
        ("the mask ID and the kept token are exchanged: below 0.8 hides", as_if(kept, random, mask)),
        ("the corruption borders are scaled by mask_prob; they do not depend on it",
         out(*drawn, edges=(0.8 * prob, 0.9 * prob))),
        ("one draw decides selection and branch; each has its own",
         out(select, select, replacement, edges=(0.8 * prob, 0.9 * prob))),
        ("it selects where the draw is above mask_prob; wanted strictly below",
         out(np.where(select < np.float32(prob), 2, -1), corrupt, replacement)),
        ("a draw equal to mask_prob selects; wanted strictly below",
         out(np.where(select == np.float32(prob), -1, select), corrupt, replacement)),
        ("the seed is not used: is 0 typed in?", out(*draws(tokens.shape, vocab_size, 0))),
        ("mask_prob is not used: 0.15 is only its default", _policy(tokens, mask_id, 0.15, *drawn)),
        ("the ID 0 is never selected; here every position is eligible",
         out(np.where(tokens == 0, 2, select), corrupt, replacement)),
        ("unselected tokens are corrupted too: ask the selection first",
         np.stack([_policy(tokens, mask_id, 1, *drawn)[..., 0], selected], -1)),
        ("unselected tokens are corrupted too: ask the selection in each branch",
         np.stack([np.where(corrupt < 0.8, mask_id, read), selected], -1)),
        ("the last ID is never drawn; the upper border of the draw is vocab_size itself", replaced(0, vocab_size - 1)),
        ("the ID 0 is never drawn; replacements come from 0 on", replaced(1, vocab_size)),
        ("a replacement that hits the mask ID is changed; wanted as drawn",
         out(select, corrupt, np.where(replacement == mask_id, (replacement + 1) % vocab_size, replacement))),
        ("a replacement that hits the token itself is changed; wanted as drawn",
         out(select, corrupt, np.where(replacement == tokens, (replacement + 1) % vocab_size, replacement))),
        ("draws are made for the selected positions alone; wanted full arrays: each number has its place",
         _only_selected(draws, select, case, vocab_size, seed)),
        ("the selection and the corruption draw are exchanged", out(corrupt, select, replacement)),
        *((because, out(*others)) for because, others in slips_of_draws(tokens.shape, vocab_size, seed)),
    ]


_REPEATED = "two draws repeat each other: the generator is seeded again between them, or a key is used twice"


def _jax_slips(*settings):
    return [(_REPEATED, _jax_draws(*settings, keys=keys)) for keys in ((1, 1, 1), (1, 1, 3), (1, 2, 1), (1, 2, 2))] + [
        ("one key draws everything, so the draws repeat each other", _jax_draws(*settings, keys="one")),
        ("the keys are off by one: of the four parts the first stays unused", _jax_draws(*settings, keys=(0, 1, 2))),
        ("the keys of corruption and replacement are exchanged", _jax_draws(*settings, keys=(1, 3, 2))),
        ("the key is split in two, again and again; wanted in four, once", _jax_draws(*settings, keys="chain"))]


def _torch_slips(*settings):
    return [(_REPEATED, _torch_draws(*settings, again=again)) for again in ((1, 1), (1, 0), (0, 1))] + [
        ("the replacements are drawn before the corruption; the order is select, corrupt, replacement",
         _torch_draws(*settings, swapped=True)),
        ("the draws are float64; wanted float32", _torch_draws(*settings, dtype=torch.float64))]


@exercise("4.8", "BERT's corruption in JAX", "2.9 Mask like BERT")
def masking_jax(function):
    return _masking(function, "jax")


@exercise("4.9", "BERT's corruption in PyTorch", "2.9 Mask like BERT")
def masking_torch(function):
    return _masking(function, "torch")


# E: what a corpus needs

@exercise("4.10", "Never select special tokens or padding", "1.3 Four things that people mix up")
def eligible_selection(function):
    rng = np.random.default_rng(FRESH + 10)
    ragged = np.where(np.arange(14) < rng.integers(4, 14, (6, 1)), rng.integers(1, 60, (6, 14)), 0)
    cases = {
        "small": (np.array([[0.0, 0.1875, 0.25, 0.875, 0.0625]], np.float32), np.array([[1, 7, 8, 9, 0]]),
                  (0, 1), 0.25),
        "equal": (np.array([[0.5, 0.25, 0.125], [0.5, 0.75, 0.25]], np.float32), np.array([[5, 6, 2], [2, 7, 8]]),
                  (2, 6), 0.5),
        "fresh": (rng.random((6, 14)).astype(np.float32), ragged, (0, 1, 2, 23), 0.3),
        "chance selects nothing here, which is no error: the batch holds ordinary tokens":
            (np.array([[0.9, 0.8]], np.float32), np.array([[5, 6]]), (0, 1), 0.5),
        "one row has no ordinary token, which is no error: the batch holds others":
            (np.array([[0.1, 0.2], [0.3, 0.75]], np.float32), np.array([[0, 1], [7, 8]]), (0, 1), 0.5)}

    def trials():
        for because, (draws, tokens, special, prob) in cases.items():
            if "no error" in because and isinstance(raises(function, draws, tokens, special, prob)[0], ValueError):
                raise Wrong(because, shown=f"tokens {brief(tokens)}, special {special}", expected="a selection",
                            given="ValueError")
            got = call(function, draws, tokens, special, prob)
            ordinary, p = ~np.isin(tokens, special), np.float32(prob)
            below = draws < p
            want, ranks = ordinary & below, np.argsort(np.argsort(np.where(ordinary, draws, 2), axis=-1), axis=-1)
            yield got, want, [
                ("special tokens and padding are selected", below),
                ("only the first of the special IDs is left out", below & (tokens != special[0])),
                ("only ID 0 is left out; the special IDs are a list", below & (tokens != 0)),
                ("it takes the special IDs for the lowest ones; they may stand anywhere",
                 below & (tokens > max(special))),
                ("it selects special tokens only; wanted all others", ~ordinary & below),
                ("ordinary *or* below mask_prob selects; wanted both", ordinary | below),
                ("a draw equal to mask_prob selects here; wanted strictly below", ordinary & (draws <= p)),
                ("it selects where the draw is above mask_prob", ordinary & ~below),
                ("it selects where the draw is above mask_prob", ordinary & (draws > p)),
                ("every ordinary token is selected; compare the draws with mask_prob", ordinary),
                ("mask_prob is not used: is 0.15 typed in?", ordinary & (draws < np.float32(0.15))),
                ("mask_prob is scaled up to make up for special tokens; each draw is compared with mask_prob itself",
                 ordinary & (draws < p / ordinary.mean())),
                ("one token is forced in a row that would have none; an empty row is allowed",
                 want | (ordinary & (ranks == 0) & ~want.any(-1, keepdims=True))),
                ("it selects a fixed quota of each row; every draw decides for itself",
                 ordinary & (ranks < np.maximum(1, np.round(prob * ordinary.sum(-1, keepdims=True))))),
                ("these are the selected tokens; wanted True or False for each position", tokens[want]),
                ("these are the places of the selected tokens; wanted True or False for each position",
                 np.argwhere(want)),
            ], f"draws {brief(draws)}, tokens {brief(tokens)}, special {special}, mask_prob {prob:g}"
    judge(trials(), kind="bool", what="the selection")
    _must_refuse(function, np.array([[0.01, 0.02]], np.float32), np.array([[0, 1]]), (0, 1), 0.5,
                 because="nothing is eligible here, so no draw could ever select anything; wanted a ValueError",
                 shown="tokens [[0, 1]], both special")
    return "Special tokens and padding are never selected, chance decides the rest, nothing eligible is refused."


@exercise("4.11", "Replace by ordinary tokens only", "2.9 Mask like BERT", "1.3 Four things that people mix up")
def ordinary_replacements(function):
    rng = np.random.default_rng(FRESH + 11)

    def moved(ids, vocab_size, special, step):          # each special ID to the next ordinary one in a direction
        def ordinary(i):
            while i in special:
                i = (i + step) % vocab_size
            return i
        return np.vectorize(ordinary)(ids)

    def trials():
        for draws, vocab_size, special in (
                (np.array([[0.0, 0.1875, 0.4375, 0.625, 0.96875]], np.float32), 6, (0, 3)),     # ordinary: 1, 2, 4, 5
                (rng.random((40, 50)).astype(np.float32), 37, (1, 5, 36)),
                (np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], np.float32), 1000, (999, 0))):
            got = call(function, draws, vocab_size, special)
            ordinary, d = np.array([i for i in range(vocab_size) if i not in special]), draws.astype(np.float64)

            def cut(ids, d=d):
                return ids[(d * len(ids)).astype(int)]
            n, anything, low = len(ordinary), cut(np.arange(vocab_size)), max(special) + 1
            double = "; that one gets a double share"
            yield got, cut(ordinary), [
                ("special IDs are drawn", anything),
                ("these are places in the list of ordinary IDs; wanted the IDs that stand there", cut(np.arange(n))),
                ("only the first of the special IDs is left out", cut(np.delete(np.arange(vocab_size), special[0]))),
                ("it takes the special IDs for the lowest ones; they may stand anywhere",
                 cut(np.arange(n)) + len(special)),
                ("only IDs above the last special one are drawn; ordinary ones may lie between",
                 cut(np.arange(low, max(vocab_size, low + 1)))),
                ("the ID 0 is left out though it is not special here", cut(ordinary[ordinary != 0])),
                ("vocab_size itself is drawn; IDs end one below", cut(np.append(ordinary, vocab_size))),
                ("a special ID is moved to the next ordinary one" + double, moved(anything, vocab_size, special, 1)),
                ("a special ID is moved to the next one, which gets a double share and may be special too",
                 anything + np.isin(anything, special)),
                ("a special ID is moved to the ordinary one before" + double, moved(anything, vocab_size, special, -1)),
                ("the remainder is taken, so the first ordinary IDs get a double share", ordinary[anything % n]),
                ("what lies beyond the list is moved to its last ID, which gets more than its share",
                 ordinary[np.minimum(anything, n - 1)]),
                ("the last ordinary ID is (almost) never drawn: multiply by their number, not by one less",
                 ordinary[(d * (n - 1)).astype(int)]),
                ("it rounds to the nearest, so the ends get half a share; cut down instead",
                 ordinary[np.round(d * (n - 1)).astype(int)]),
                ("it rounds to the nearest, so the ends get another share; cut down instead",
                 ordinary[np.minimum(np.round(d * n), n - 1).astype(int)]),
                ("it rounds up; cut down instead", ordinary[np.ceil(d * n).astype(int) - 1]),
                ("special IDs are thrown away, so draws are missing; every draw gives one ID",
                 anything[~np.isin(anything, special)]),
                ("it is one row of IDs; wanted the shape of the draws", cut(ordinary).ravel()),
                ("the ordinary IDs are in falling order; wanted increasing", cut(ordinary[::-1])),
            ], f"draws {brief(draws)}, {vocab_size} IDs, special {special}"
    judge(trials(), kind="int", what="the replacements")
    return "Only ordinary IDs, every one of them, in equal parts."


@exercise("4.12", "A mask schedule", "3.9 A key for each epoch, example and draw")
def mask_schedule(function):
    length, prob = 64, 0.4

    def mask(seed, epoch, example, prob=prob, moment=0):
        with global_seeds(moment) as used:
            got = array(call(function, seed, epoch, example, length, prob), "the mask")
            return got, used()

    here = "seed 7, epoch 0, example 0"
    (first, used), (again, _), (later, used_too) = (mask(7, 0, 0, moment=moment) for moment in (0, 0, 1))
    if first.shape != (length,):
        raise Wrong("wanted one entry for each position", shown=here, expected=f"shape ({length},)",
                    given=f"shape {first.shape}")
    if first.dtype != bool:
        raise Wrong("the dtype of the mask is not right", shown=here, expected="bool", given=str(first.dtype))
    if not np.array_equal(first, again):
        raise Wrong("called twice with the same arguments it gives two masks: it depends on earlier calls", shown=here)
    if not np.array_equal(first, later):
        raise Wrong("it depends on a global generator: with another global seed it gives another mask", shown=here)
    if used or used_too:        # one of the two, if it seeds as we did
        raise Wrong("it seeds or draws from a global generator, which others share; wanted a local one", shown=here)
    none, every = (mask(7, 0, 0, prob=p)[0] for p in (0.0, 1.0))
    for because, wrong in (
            ("mask_prob changes nothing: is a number typed in?", np.array_equal(none, every)),
            ("it selects where the draw is above mask_prob; wanted below", none.all()),
            ("mask_prob 0 must select nothing, and force nothing: draws lie in [0, 1), compare with <", none.any()),
            ("mask_prob 1 must select everything: draws lie in [0, 1), compare with <", not every.all())):
        if wrong:
            raise Wrong(because, shown=here, expected="0 of 64 for mask_prob 0, 64 of 64 for mask_prob 1",
                        given=f"{none.sum()} and {every.sum()}")
    grid = {k: mask(*k)[0] for k in itertools.product((7, 8), range(5), range(5))}
    for place, what, because in ((1, "epoch", "frozen for ever"), (2, "example", "the same for every example"),
                                 (0, "seed", "the same for every seed")):
        def without(k, place=place):
            return (*k[:place], (7, 0, 0)[place], *k[place + 1:])
        if all(np.array_equal(m, grid[without(k)]) for k, m in grid.items()):
            raise Wrong(f"the {what} changes nothing: the mask is {because}",
                        shown=f"(seed, epoch, example) = (8, 1, 2) and {without((8, 1, 2))}")
    many = np.stack(list(grid.values()))                # 3,200 draws: standard deviation of the share 0.009
    if (many == many[:, :1]).all():
        raise Wrong("one draw decides for all positions; wanted a draw for each", shown=here, given=first.astype(int))
    far = [(7, 1, 12), (7, 11, 2), *((7, 0, 10**k) for k in range(1, 7))]       # digits run together, steps of 10**k
    for (a, one), (b, other) in itertools.combinations({**grid, **{k: mask(*k)[0] for k in far}}.items(), 2):
        if np.array_equal(one, other):
            raise Wrong("two (seed, epoch, example) share one mask: added, multiplied or exchanged, they collide",
                        shown=f"{a} and {b}")
    if np.ptp(many.sum(-1)) == 0:
        raise Wrong("every mask selects exactly the same number, a quota; wanted independent draws",
                    given=f"{int(many[0].sum())} of {length}, each time")
    if abs(many.mean() - prob) > 0.045:
        raise Wrong("the share of selected positions is not mask_prob",
                    shown=f"mask_prob {prob}, {many.size} positions", expected=f"about {prob}",
                    given=f"{many.mean():.3f}")
    if abs(many.mean(0) - prob).max() > 0.32:           # 50 draws for each position: standard deviation 0.07
        raise Wrong("some position is selected nearly always or nearly never", given=many.mean(0))
    return "Fifty-eight masks differ, each repeats whatever was drawn before, and the share is right."


# F: broken on purpose

@exercise("4.13", "Broken on purpose", "3.7 A leak, built on purpose", "5.15 Diagnose")
def diagnosis(answers):
    if not isinstance(answers, dict):
        raise Wrong("wanted a dict, {letter: (fault, audit)}", given=type(answers).__name__)
    right = 0
    for letter, setup in broken.SETUPS.items():
        said = answers.get(letter)
        if not attempted(said):
            continue
        if not isinstance(said, (tuple, list)) or len(said) != 2:
            raise Wrong(f"{letter}: wanted a pair, (fault, audit) or ('healthy', None)", given=str(said)[:60])
        fault, audit = said
        if fault not in broken.FAULTS:
            raise Wrong(f"{letter}: the fault is named by one of {', '.join(broken.FAULTS)}", given=str(fault)[:60])
        if fault == "healthy":
            if broken.fault_of(letter) != "healthy":
                raise Wrong(f"{letter} is not healthy: one of the audits fires on it. Run all of them")
        else:
            # By name: when grading, this module is another copy than the learner's.
            audit = next((a for a in broken.AUDITS if a.__name__ == getattr(audit, "__name__", None)), audit)
            if audit not in broken.AUDITS:
                raise Wrong(f"{letter}: the second entry is the audit that shows it, such as broken.audit_leak",
                            given=brief(audit))
            shows, fires = broken.AUDITS[audit]
            value = audit(setup)
            if not fires(value):
                raise Wrong(f"{letter}: {name(audit)} does not fire here, so it is no evidence", given=brief(value))
            if fault not in shows:
                raise Wrong(f"{letter}: {name(audit)} fires, but not for that fault. What does it change, "
                            "and what does it look at?", given=f"{fault}, {brief(value)}")
            if fault != broken.fault_of(letter):
                raise Wrong(f"{letter}: {name(audit)} fires, but its number tells of another fault",
                            given=brief(value))
        right += 1
    if right < len(broken.SETUPS):
        raise Wrong(f"only {right} of {len(broken.SETUPS)} set-ups are diagnosed; those are right")
    return "All nine diagnoses hold, each by an audit that fires on that set-up alone."


# References, in NumPy

def _softmax(z, axis=-1):
    p = np.exp(z - z.max(axis, keepdims=True))
    return p / p.sum(axis, keepdims=True)


def _nll(logits, targets, axis=-1):
    return -np.take_along_axis(np.log(_softmax(np.asarray(logits, np.float64), axis)), targets[..., None], -1)[..., 0]


def _encode(params, read):
    h = params["embedding"].astype(np.float64)[read]
    scores = h @ h.swapaxes(-1, -2) / np.sqrt(h.shape[-1])
    return _softmax(scores) @ h @ params["head"]


@functools.cache
def _jax_draws(shape, vocab_size, seed, keys=(1, 2, 3), low=0):
    """The exercise's draws, or those of a mistake: other keys, other replacements."""
    with jax.threefry_partitionable(True), jax.enable_x64(False):
        key, chain = jax.random.key(seed, impl="threefry2x32"), []
        for _ in range(3 if keys == "chain" else 0):
            key, one = jax.random.split(key)
            chain.append(one)
        k1, k2, k3 = chain or ([key] * 3 if keys == "one" else jax.random.split(key, 4)[np.array(keys)])
        size = math.prod(shape)         # JAX counts along the flat array: one length to compile, cut for each shape
        flat = (max(size, 256),)
        return tuple(np.asarray(draw)[:size].reshape(shape) for draw in (
            jax.random.uniform(k1, flat, dtype=jnp.float32), jax.random.uniform(k2, flat, dtype=jnp.float32),
            jax.random.randint(k3, flat, low, vocab_size, dtype=jnp.int32)))


@functools.cache
def _torch_draws(shape, vocab_size, seed, again=(0, 0), swapped=False, dtype=torch.float32, low=0):
    """The exercise's draws, or those of a mistake: seeded again, in another order, other replacements."""
    generator = torch.Generator(device="cpu")

    def draw(kind, fresh):
        if fresh:
            generator.manual_seed(seed)
        return (torch.rand(shape, generator=generator, dtype=dtype, device="cpu") if kind == "rand" else
                torch.randint(low, vocab_size, shape, generator=generator, device="cpu")).numpy()
    select = draw("rand", True)
    if swapped:
        replacement = draw("randint", False)
        return select, draw("rand", False), replacement
    return select, draw("rand", again[0]), draw("randint", again[1])


def _only_selected(draws, select, case, vocab_size, seed):
    """What comes out if branch and replacement are drawn for the selected positions alone."""
    tokens, mask_id, prob = case
    chosen = select < np.float32(prob)
    n = int(chosen.sum())
    if draws is _torch_draws:
        generator = torch.Generator(device="cpu").manual_seed(seed)
        torch.rand(tokens.shape, generator=generator, dtype=torch.float32)
        corrupt = torch.rand(n, generator=generator, dtype=torch.float32).numpy()
        replacement = torch.randint(0, vocab_size, (n,), generator=generator).numpy()
    else:                                               # JAX's shorter draws begin like the full ones
        corrupt, replacement = (draw.ravel()[:n] for draw in draws(tokens.shape, vocab_size, seed)[1:])
    corrupted = tokens.copy()
    corrupted[chosen] = _policy(tokens[chosen], mask_id, 1, 0 * corrupt, corrupt, replacement)[..., 0]
    return np.stack([corrupted, chosen], -1).astype(np.float32)


def _gradients(function, context, head, targets, selected):
    """Gradients of the learner's loss, by the framework that their function works in."""
    for framework in frameworks(function):
        try:
            if framework == "jax":
                loss = lambda c, h: function(c, h, jnp.array(targets), jnp.array(selected))[1]      # noqa: E731
                return tuple(map(array, jax.grad(loss, argnums=(0, 1))(jnp.array(context), jnp.array(head))))
            c, h = (torch.tensor(a, requires_grad=True) for a in (context, head))
            function(c, h, torch.tensor(targets), torch.tensor(selected))[1].backward()
            return tuple(array(torch.zeros_like(a) if a.grad is None else a.grad) for a in (c, h))
        except Exception:       # the other framework may do; if neither does, the loss cannot be differentiated
            continue
    raise Wrong("the loss cannot be differentiated: compute it from `context` and `head` with jnp or torch, not NumPy")


def _must_refuse(function, *inputs, because, shown):
    error, got = raises(function, *inputs)
    if not isinstance(error, ValueError):
        raise Wrong(because, shown=shown, expected="ValueError", given=type(error).__name__ if error else brief(got))
