"""The checks of notebook 04, one for each exercise: `from lesson import checks`.

Each looks at type, shape, dtype and then values, on the smallest case first and then on
freshly drawn ones, and knows the misconceptions that it can name. References are NumPy
in float64, or the exercise's own draw lines.
"""
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import torch

from . import broken
from .checking import Wrong, array, brief, call, exercise, frameworks, global_seeds, judge, name, raises
from .figures import PROJECT

FRESH = 20261130                # seed of the freshly drawn cases, so that answers cannot be typed in


# A: the objective

@exercise("4.1", "Hide the first position", "1.2 The path forks, 3.3 The moved mask")
def first_position(function):
    rng = np.random.default_rng(FRESH)
    small = {"embedding": np.array([[0.0, 1.0], [1.0, 0.5], [-0.5, 0.25]], np.float32),
             "head": np.array([[2.0, -1.0], [-1.0, 1.5]], np.float32)}
    fresh = {"embedding": rng.normal(size=(6, 4)).astype(np.float32),
             "head": rng.normal(size=(4, 5)).astype(np.float32)}

    def trials():
        for params, tokens in ((small, np.array([[0, 1, 1], [1, 1, 0]], np.int32)),
                               (fresh, rng.integers(0, 5, (3, 7)).astype(np.int32)),
                               (fresh, rng.integers(0, 5, (2, 4)).astype(np.int32))):
            mask_id, column = len(params["embedding"]) - 1, np.arange(tokens.shape[1])
            got = call(function, params, tokens, mask_id)
            first, second, last = column == 0, column == 1, column == column[-1]
            every = first | True

            def loss(hidden, scored, params=params, tokens=tokens, mask_id=mask_id):
                return _nll(_encode(params, np.where(hidden, mask_id, tokens)), tokens)[:, scored].mean()
            want = loss(first, first)
            yield got, want, [
                ("it hides and scores the second position, as notebook 2 did; wanted the first", loss(second, second)),
                ("it hides and scores the last position; the first is column 0", loss(last, last)),
                ("it hides the first position but scores the second: one mask, two uses", loss(first, second)),
                ("it scores the first position but hides the second: the encoder reads the answer",
                 loss(second, first)),
                ("it hides the first position but averages over all positions; only selected ones are scored",
                 loss(first, every)),
                ("the encoder reads the clean tokens, so it sees the answer", loss(~every, first)),
                ("it hides every position, so no evidence is left", loss(every, first)),
                ("it hides and scores every position; wanted the first only", loss(every, every)),
                ("it is the sum over the rows; wanted the mean", want * len(tokens)),
                ("it is the perplexity, exp of the loss; wanted the loss in nats", np.exp(want)),
                ("the sign is wrong: the loss is minus the log probability", -want)], (tokens, f"mask_id {mask_id}")
    judge(trials(), kind="float")
    return "Three models agree, two of them drawn for this check. On the fixture any single position gives this loss."


@exercise("4.2", "Refuse a missing learning signal", "1.5 A baseline that needs no model, 2.1 Define the corruption")
def empty_mask(function):
    tokens = np.array([[0, 0, 0], [1, 1, 1]], np.int32)
    handed = []

    def refuses(tokens, selected, mask_id):
        handed.append(selected)
        if not array(selected, "the mask").any():
            raise ValueError("nothing is selected")
        return tokens

    def careless(tokens, selected, mask_id):
        return tokens

    def particular(tokens, selected, mask_id):          # looks at dtype and shape, and forgets emptiness
        mask = array(selected, "the mask")
        if mask.dtype != bool or mask.shape != (2, 3):
            raise ValueError("wanted a bool mask of the shape of the tokens")
        return tokens

    def broken(tokens, selected, mask_id):              # fails for another reason
        raise KeyError("a typo, not a refusal")

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
            (careless, False, "a function that returns tokens accepts; wanted False"),
            (particular, False, "this one checks dtype and shape but accepts an empty mask; wanted False")):
        verdict = call(function, corrupt, tokens)
        if not isinstance(verdict, (bool, np.bool_)):
            raise Wrong("the verdict is not True or False", given=brief(verdict))
        if verdict != want:
            raise Wrong(because, shown=f"corrupt_tokens = {corrupt.__name__}", expected=str(want), given=str(verdict))
    error, verdict = raises(function, broken, tokens)
    if error is None and verdict:
        raise Wrong("it takes any exception for a refusal: a KeyError from a typo is none. Catch ValueError only",
                    shown="a function that raises KeyError", expected="False, or the KeyError", given="True")
    return "It tells four corruption functions apart, and a typo from a refusal."


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
            p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
            other = np.exp(z) / np.exp(z).sum(-2, keepdims=True)
            count, inside = selected.sum(), (p - onehot) * m
            yield got, inside / count, [
                ("it is not divided by the number of selected positions", inside),
                ("it is divided by the batch size; wanted the number of selected positions", inside / len(logits)),
                ("it is divided by the number of all positions; wanted the selected ones", inside / selected.size),
                ("it is divided row by row; wanted one count for the whole batch",
                 inside / np.maximum(selected.sum(-1), 1)[:, None, None]),
                ("unselected positions are not zero: multiply by the mask", (p - onehot) / count),
                ("it is neither masked nor divided", p - onehot),
                ("it is the mean over all positions: the mask is missing twice", (p - onehot) / selected.size),
                ("the sign is turned around: wanted probability minus one-hot", -inside / count),
                ("the one-hot of the targets is missing", p * m / count),
                ("the one-hot is subtracted from the logits; wanted from the probabilities", (z - onehot) * m / count),
                ("the softmax runs over positions; wanted over the vocabulary, the last axis",
                 (other - onehot) * m / count)], (logits, targets, selected.astype(int))
    judge(trials(), kind="float", what="the gradient")
    return "Every element agrees on two batches, zeros included."


# B: sums and counts

@exercise("4.4", "Add up unequal microbatches", "1.7 Add first, divide last, 3.10 Microbatches")
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
            yield got, sum(totals) / sum(picked), [
                ("it averages the means of the pieces: small pieces weigh too much", np.mean(means)),
                ("it averages the means and counts an empty piece as a loss of zero", sum(means) / len(pieces)),
                ("it is the sum over all pieces, never divided", sum(totals)),
                ("it adds the means of the pieces", sum(means)),
                ("it divides by the number of pieces; wanted the number of selected tokens", sum(totals) / len(pieces)),
                ("it divides by all positions; wanted the selected ones", sum(totals) / (9 * len(pieces))),
                ("it averages over all positions, selected or not", np.concatenate(nll).mean()),
                ("it is the loss of the last piece only", totals[-1] / picked[-1]),
                ("it is the loss of the first piece only: is the `return` inside the loop?", totals[0] / picked[0]),
            ], f"selected counts {list(picked)}, sums of nats {[round(float(t), 4) for t in totals]}"
    judge(trials(), kind="float", what="the loss")
    return "Pieces of 1, 7, 2, 6 and even 0 selected tokens give the loss of the whole."


@exercise("4.5", "Perplexity of a corpus", "1.10 Perplexity, and what may be compared")
def corpus_perplexity(function):
    rng = np.random.default_rng(FRESH + 5)
    small = [(np.full((1, 3), np.log(4)), np.array([[True, True, True]])),
             (np.array([[np.log(16), 0.0, 0.0]]), np.array([[True, False, False]]))]
    fresh = [(rng.uniform(0.1, 4, (rows, 6)), np.arange(6) < rng.integers(1, 6, (rows, 1))) for rows in (1, 4, 2)]

    def trials():
        for batches in (small, fresh, [*fresh, (rng.uniform(1, 2, (2, 3)), np.zeros((2, 3), bool))]):
            got = call(function, batches)
            totals, counts = np.array([n[s].sum() for n, s in batches]), np.array([s.sum() for _, s in batches])
            means = totals[counts > 0] / counts[counts > 0]
            everything = np.concatenate([n.ravel() for n, _ in batches])
            mean = totals.sum() / counts.sum()
            yield got, np.exp(mean), [
                ("it averages the perplexities of the batches", np.exp(means).mean()),
                ("it averages the mean losses of the batches: a small batch weighs too much", np.exp(means.mean())),
                ("positions that do not count (padding) are counted", np.exp(everything.mean())),
                ("it divides by all positions; wanted those that count", np.exp(totals.sum() / everything.size)),
                ("it is the mean loss; the exponential is missing", mean),
                ("it takes 2 to the power of nats; nats go with e", 2**mean),
                ("the sign is wrong: perplexity is at least 1", np.exp(-mean)),
                ("it multiplies the perplexities of the batches", np.exp(means).prod()),
                ("it is the exponential of the sum, never divided", np.exp(totals.sum()))], (
                f"counts {counts.tolist()}, sums of nats {totals.round(4).tolist()}, {everything.size} positions")
    judge(trials(), kind="float", what="the perplexity")
    error, got = raises(function, [(np.ones((1, 2)), np.zeros((1, 2), bool))])
    if not isinstance(error, ValueError):
        raise Wrong("when nothing counts there is no perplexity; wanted a ValueError",
                    shown="one batch, no token counts",
                    expected="ValueError", given=type(error).__name__ if error else brief(array(got)))
    return "Batches of different size and padding are handled, and nothing to count is refused."


@exercise("4.6", "Project selected positions only", "1.4 Shapes, and two softmaxes, 1.6 The loss, and its gradient")
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
                ("unselected logits are set to zero, which still computes all of them", full * selected[..., None]),
                ("the head is applied at the unselected positions", full[~selected]),
                ("positions come column by column; wanted row by row, as `[selected]` gives them",
                 full.swapaxes(0, 1)[selected.T]),
                ("these are probabilities; wanted the logits", _softmax(full[selected])),
                ("it is the context at the selected positions; the head is missing", context[selected])], (
                selected.astype(int))

    def losses():
        for (context, head, targets, selected), got in asked:
            full, count = context.astype(np.float64) @ head, selected.sum()
            nll = _nll(full, targets)
            yield got[1], nll[selected].mean(), [
                ("it is the sum; wanted the mean over selected positions", nll[selected].sum()),
                ("it divides by all positions; wanted the selected ones", nll[selected].sum() / selected.size),
                ("it is the mean over all positions, selected or not", nll.mean()),
                ("logits and targets are out of step: select the targets with the same mask",
                 _nll(full[selected], targets.ravel()[:count]).mean()),
                ("the sign is wrong: the loss is minus the log probability", -nll[selected].mean())], (
                targets, selected.astype(int))

    def gradients(which):
        for (context, head, targets, selected), _ in asked:
            onehot = np.eye(head.shape[1])[targets]
            slope = (_softmax(context.astype(np.float64) @ head) - onehot) * selected[..., None] / selected.sum()
            want = (slope @ head.T, np.einsum("bsw,bsv->wv", context, slope))[which]
            yield _gradients(function, context, head, targets, selected)[which], want, [], selected.astype(int)
    judge(logits(), kind="float", what="the logits")
    judge(losses(), kind="float", what="the loss")
    judge(gradients(0), what="the gradient of the loss for `context`", tolerance=1e-4)
    judge(gradients(1), what="the gradient of the loss for `head`", tolerance=1e-4)
    return "Same loss, same gradients, and the head works at selected positions alone."


# C: causal beside masked

@exercise("4.7", "Next-token targets and the causal mask", "1.8 Causal beside masked")
def causal(next_token, causal_mask):
    rng = np.random.default_rng(FRESH + 7)
    asked = [(tokens, call(next_token, tokens)) for tokens in (np.array([[5, 6, 7]]), rng.integers(0, 90, (3, 6)))]
    for _, got in asked:
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong("wanted the pair (inputs, targets)", given=type(got).__name__)

    def inputs():
        for tokens, got in asked:
            yield got[0], tokens[:, :-1], [
                ("inputs and targets are exchanged: this predicts the past", tokens[:, 1:]),
                ("the last input has no next token; leave it out", tokens),
                ("it shifts along the batch; wanted along the sequence", tokens[:-1])], tokens

    def targets():
        for tokens, got in asked:
            yield got[1], tokens[:, 1:], [
                ("the targets are the inputs themselves: each token predicts itself", tokens[:, :-1]),
                ("the shift wraps around: the first token is no target of the last", np.roll(tokens, -1, axis=1)),
                ("the targets are not shifted", tokens),
                ("it shifts along the batch; wanted along the sequence", tokens[1:])], tokens

    def masks():
        for length in (3, 1, 6):
            want = np.tril(np.ones((length, length), bool))
            yield call(causal_mask, length), want, [
                ("the triangle is turned around: it looks at the future and not at the past", want.T),
                ("the diagonal is missing: a position may read itself, its target is the next one", np.tril(want, -1)),
                ("it is True where looking is forbidden; wanted True where it is allowed", ~want),
                ("it allows one position too many: that one is the answer", np.tril(np.ones_like(want), 1)),
                ("everything may look everywhere: that is the masked model", np.ones_like(want))], f"length {length}"
    judge(inputs(), kind="int", what="`inputs`")
    judge(targets(), kind="int", what="`targets`")
    judge(masks(), kind="bool", what="the causal mask")
    return "Two predictions for three tokens, and nobody looks ahead."


# D: BERT's corruption, exactly

def _masking_cases():
    golden = json.loads((PROJECT / "data" / "golden_masking.json").read_text(encoding="utf-8"))["cases"]
    settings = [(np.array(c["tokens"], np.int32), c["vocab_size"], c["mask_token_id"], c["seed"], c["mask_prob"])
                for c in golden]
    rng = np.random.default_rng(FRESH + 8)
    fresh = [(rng.integers(0, 30, shape).astype(np.int32), 30, mask_id, int(rng.integers(2**31)), prob)
             for shape, mask_id, prob in (((2, 4), 29, 0.6), ((2, 9), 0, 0.9), ((6, 40), 12, 0.3))]
    return sorted(settings + fresh, key=lambda case: case[0].size)


def _masking(function, stream):
    """The two exercises differ in their draws only. A slip is the same policy on other draws, or another policy."""
    draws, kept_as = (_jax_draws, jax.Array) if stream == "jax" else (_torch_draws, torch.Tensor)

    def trials():
        for tokens, vocab_size, mask_id, seed, prob in _masking_cases():
            with global_seeds(1):
                got = call(function, tokens, vocab_size, mask_id, seed, prob, framework=stream)
            if not isinstance(got, kept_as):
                raise Wrong("wanted " + ("a JAX array" if stream == "jax" else "a PyTorch tensor"),
                            given=type(got).__name__)

            def out(select, corrupt, replacement, prob=prob, edges=(0.8, 0.9), tokens=tokens, mask_id=mask_id):
                selected, (mask_below, random_below) = select < np.float32(prob), np.float32(edges)
                changed = np.where(corrupt < mask_below, mask_id, np.where(corrupt < random_below, replacement, tokens))
                return np.stack([np.where(selected, changed, tokens), selected], -1).astype(np.float32)

            def marked(indicator, want):
                return np.stack([want[..., 0], indicator], -1).astype(np.float32)
            select, corrupt, replacement = draws(tokens.shape, vocab_size, seed)
            want, again = out(select, corrupt, replacement), draws(tokens.shape, vocab_size, seed, again=True)
            always = out(select, corrupt, replacement, prob=1)
            yield got, want, [
                ("the indicator says whether the token changed; a selected token that is kept still counts",
                 marked(want[..., 0] != tokens, want)),
                ("the indicator says whether the mask ID is read; random and kept tokens are selected too",
                 marked(want[..., 0] == mask_id, want)),
                ("nothing is marked as selected", marked(0 * tokens, want)),
                ("the indicator marks the positions that are not selected", marked(1 - want[..., 1], want)),
                ("the channels are exchanged: first the corrupted ID, then the indicator", want[..., ::-1]),
                ("the selection and the corruption draw are exchanged", out(corrupt, select, replacement)),
                ("the generator is seeded again between the draws (or one key is used twice), so they repeat",
                 out(select, *again[1:])),
                ("every selected token becomes the mask ID; the corruption draw is not used",
                 out(select, 0 * corrupt, replacement)),
                ("random and kept are exchanged: random lies from 0.8 to 0.9, kept from 0.9",
                 out(select, np.where(corrupt < 0.8, 0, np.where(corrupt < 0.9, 0.95, 0.85)), replacement)),
                ("a border is 0.1: the draw is compared with 0.8 and then with 0.9, the sum",
                 out(select, corrupt, replacement, edges=(0.8, 0.1))),
                ("the corruption borders are scaled by mask_prob; they do not depend on it",
                 out(select, corrupt, replacement, edges=(0.8 * prob, 0.9 * prob))),
                ("half of the rest is random: then random lies from 0.8 to 0.9 of the same draw, not from 0.5",
                 out(select, np.where(corrupt < 0.8, 0, np.where(corrupt < 0.5, 0.85, 0.95)), replacement)),
                ("it selects where the draw is above mask_prob; wanted strictly below",
                 out(np.where(select < np.float32(prob), 2, -1), corrupt, replacement)),
                ("unselected tokens are corrupted too: ask the selection first", marked(want[..., 1], always)),
                ("draws are made for the selected positions alone; wanted full arrays: each number has its place",
                 _only_selected(draws, tokens, vocab_size, mask_id, seed, prob)),
                *_draw_slips(out, draws, tokens.shape, vocab_size, seed),
            ], (f"tokens {brief(tokens)}, vocab_size {vocab_size}, mask_token_id {mask_id}, seed {seed}, "
                f"mask_prob {prob:g}")
    judge(trials(), kind="float32", what="the result", tolerance=0)
    return "Nine cases agree to the last entry: six golden ones and three drawn for this check."


def _draw_slips(out, draws, *settings):
    if draws is _jax_draws:
        return [("the keys are off by one: the first of the four parts stays unused", out(*draws(*settings, first=0))),
                ("the key is split in three; wanted four, the first unused", out(*draws(*settings, parts=3))),
                ("one key draws everything, so the draws repeat each other", out(*draws(*settings, same=True)))]
    return [("the replacements are drawn before the corruption; the order is select, corrupt, replacement",
             out(*draws(*settings, swapped=True))),
            ("draws come from the global generator; wanted a local one with this seed", out(*draws(*settings[:2], 1))),
            ("the draws are float64; wanted float32", out(*draws(*settings, dtype=torch.float64)))]


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
    small = (np.array([[0.0, 0.125, 0.25, 0.875, 0.0625]], np.float32), np.array([[1, 7, 8, 9, 0]]), (0, 1), 0.25)
    edge = (np.full((2, 3), 0.5, np.float32), np.array([[5, 6, 2], [2, 7, 8]]), (2,), 0.5)
    ragged = np.where(np.arange(14) < rng.integers(4, 14, (6, 1)), rng.integers(1, 60, (6, 14)), 0)

    def trials():
        fresh = (rng.random((6, 14)).astype(np.float32), ragged, (0, 1, 2, 3), 0.15)
        for draws, tokens, special, prob in (small, edge, fresh):
            got = call(function, draws, tokens, special, prob)
            ordinary, below = ~np.isin(tokens, special), draws < np.float32(prob)
            want, ranks = ordinary & below, np.argsort(np.argsort(np.where(ordinary, draws, 2), axis=-1), axis=-1)
            yield got, want, [
                ("special tokens and padding are selected", below),
                ("only the first of the special IDs is left out", below & (tokens != special[0])),
                ("the first of the special IDs is selected", below & ~np.isin(tokens, special[1:])),
                ("it selects special tokens only; wanted all others", ~ordinary & below),
                ("a draw equal to mask_prob selects here; wanted strictly below",
                 ordinary & (draws <= np.float32(prob))),
                ("it selects where the draw is above mask_prob", ordinary & ~below),
                ("every ordinary token is selected; compare the draws with mask_prob", ordinary),
                ("one token is forced in a row that would have none; an empty row is allowed",
                 want | (ordinary & (ranks == 0) & ~want.any(-1, keepdims=True))),
                ("it selects a fixed quota of each row; every draw decides for itself",
                 ordinary & (ranks < np.maximum(1, np.round(prob * ordinary.sum(-1, keepdims=True))))),
            ], f"draws {brief(draws)}, tokens {brief(tokens)}, special {special}, mask_prob {prob:g}"
        yield (call(function, np.array([[0.9, 0.8]], np.float32), np.array([[5, 6]]), (0, 1), 0.5), [[False, False]],
               [("", [[False, False]])] * 9, "draws [[0.9, 0.8]], tokens [[5, 6]], special (0, 1), mask_prob 0.5")
    judge(trials(), kind="bool", what="the selection")
    error, got = raises(function, np.array([[0.01, 0.02]], np.float32), np.array([[0, 1]]), (0, 1), 0.5)
    if not isinstance(error, ValueError):
        raise Wrong("nothing is eligible here, so no draw could ever select anything; wanted a ValueError",
                    shown="tokens [[0, 1]], both special", expected="ValueError",
                    given=type(error).__name__ if error else brief(array(got)))
    return "Special tokens and padding are never selected, chance decides the rest, nothing eligible is refused."


@exercise("4.11", "Replace by ordinary tokens only", "2.9 Mask like BERT, 1.3 Four things that people mix up")
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
                (np.array([[0.0, 0.25, 0.625, 0.96875]], np.float32), 6, (0, 3)),       # ordinary: 1, 2, 4, 5
                (rng.random((40, 50)).astype(np.float32), 37, (0, 1, 5, 36)),
                (np.array([[0.0, np.nextafter(np.float32(1), np.float32(0))]], np.float32), 1000, (999, 0))):
            got = call(function, draws, vocab_size, special)
            ordinary = np.array([i for i in range(vocab_size) if i not in special])
            n, d = len(ordinary), draws.astype(np.float64)
            place, anything = np.minimum((d * n).astype(int), n - 1), (d * vocab_size).astype(int)
            yield got, ordinary[place], [
                ("special IDs are drawn", anything),
                ("special IDs are drawn: it draws from 0 on, as many as there are ordinary IDs", place),
                ("a special ID is moved to the next ordinary one, which that one pays with a double share",
                 moved(anything, vocab_size, special, 1)),
                ("a special ID is moved to the ordinary one before, which gets a double share",
                 moved(anything, vocab_size, special, -1)),
                ("the last ordinary ID is (almost) never drawn: multiply by their number, not by one less",
                 ordinary[(d * (n - 1)).astype(int)]),
                ("it rounds to the nearest, so the ends get half a share; cut down instead",
                 ordinary[np.round(d * (n - 1)).astype(int)]),
                ("the ordinary IDs are in falling order; wanted increasing", ordinary[::-1][place]),
            ], f"draws {brief(draws)}, {vocab_size} IDs, special {special}"
    judge(trials(), kind="int", what="the replacements")
    return "Only ordinary IDs, every one of them, in equal parts."


@exercise("4.12", "A mask schedule", "3.9 A key for each epoch, example and draw")
def mask_schedule(function):
    length, prob = 64, 0.4

    def mask(seed, epoch, example, prob=prob, moment=0):
        with global_seeds(moment):
            return array(call(function, seed, epoch, example, length, prob), "the mask")
    first = mask(7, 0, 0)
    if first.shape != (length,):
        raise Wrong("wanted one entry for each position", expected=f"shape ({length},)", given=f"shape {first.shape}")
    if first.dtype != bool:
        raise Wrong(f"the mask has dtype {first.dtype}; wanted bool")
    here = "seed 7, epoch 0, example 0"
    if not np.array_equal(first, mask(7, 0, 0)):
        raise Wrong("called twice with the same arguments it gives two masks: it depends on earlier calls", shown=here)
    if not np.array_equal(first, mask(7, 0, 0, moment=1)):
        raise Wrong("it depends on a global generator: with another global seed it gives another mask", shown=here)
    for p, want in ((0.0, False), (1.0, True)):
        if (mask(7, 0, 0, prob=p) != want).any():
            what = "everything" if want else "nothing"
            raise Wrong(f"mask_prob {p:g} must select {what}: draws lie in [0, 1), compare with <",
                        given=mask(7, 0, 0, prob=p).astype(int))
    grid = {k: mask(*k) for k in itertools.product((7, 8), range(5), range(5))}
    for place, what, because in ((1, "epoch", "frozen for ever"), (2, "example", "the same for every example"),
                                 (0, "seed", "the same for every seed")):
        def without(k, place=place):
            return (*k[:place], (7, 0, 0)[place], *k[place + 1:])
        if all(np.array_equal(m, grid[without(k)]) for k, m in grid.items()):
            raise Wrong(f"the {what} changes nothing: the mask is {because}",
                        shown=f"(seed, epoch, example) = (8, 1, 2) and {without((8, 1, 2))}")
    for (a, one), (b, other) in itertools.combinations(grid.items(), 2):
        if np.array_equal(one, other):
            raise Wrong("two (seed, epoch, example) share one mask: added, multiplied or exchanged, they collide",
                        shown=f"{a} and {b}")
    many = np.stack(list(grid.values()))                # 3,200 draws: standard deviation of the share 0.009
    if abs(many.mean() - prob) > 0.045:
        turned = abs(many.mean() - (1 - prob)) < 0.045
        raise Wrong("the share is that of being left alone: select where the draw is below mask_prob" if turned
                    else "the share of selected positions is not mask_prob",
                    shown=f"mask_prob {prob}, {many.size} positions",
                    expected=f"about {prob}", given=f"{many.mean():.3f}")
    if np.ptp(many.sum(-1)) == 0:
        raise Wrong("every mask selects exactly the same number, a quota; wanted independent draws",
                    given=f"{int(many[0].sum())} of {length}, each time")
    if abs(many.mean(0) - prob).max() > 0.32:           # 50 draws for each position: standard deviation 0.07
        raise Wrong("some position is selected nearly always or nearly never", given=many.mean(0))
    return "Fifty masks differ, each repeats whatever was drawn before, and the share is right."


# F: broken on purpose

@exercise("4.13", "Broken on purpose", "3.7 A leak, built on purpose, 5.12 Diagnose")
def diagnosis(answers):
    right = 0
    for letter, setup in broken.SETUPS.items():
        said = answers.get(letter)
        if said in (None, ..., ""):
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

def _nll(logits, targets):
    z = np.asarray(logits, np.float64)
    shifted = z - z.max(-1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(logp, targets[..., None], -1)[..., 0]


def _softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def _encode(params, read):
    h = params["embedding"].astype(np.float64)[read]
    scores = h @ h.swapaxes(-1, -2) / np.sqrt(h.shape[-1])
    return _softmax(scores) @ h @ params["head"]


def _jax_draws(shape, vocab_size, seed, parts=4, first=1, same=False, again=False):
    """The exercise's draws, or those of a mistake: other keys, one key for all, the first key again."""
    with jax.threefry_partitionable(True), jax.enable_x64(False):
        key = jax.random.key(seed, impl="threefry2x32")
        keys = [key] * 3 if same else list(jax.random.split(key, parts))[first if parts == 4 else 0:][:3]
        k1, k2, k3 = keys[:1] * 3 if again else keys
        return (np.asarray(jax.random.uniform(k1, shape, dtype=jnp.float32)),
                np.asarray(jax.random.uniform(k2, shape, dtype=jnp.float32)),
                np.asarray(jax.random.randint(k3, shape, 0, vocab_size, dtype=jnp.int32)))


def _torch_draws(shape, vocab_size, seed, again=False, swapped=False, dtype=torch.float32):
    """The exercise's draws, or those of a mistake: seeded again, in another order, in another dtype."""
    generator = torch.Generator(device="cpu")

    def draw(kind, fresh):
        if fresh:
            generator.manual_seed(seed)
        return (torch.rand(shape, generator=generator, dtype=dtype, device="cpu") if kind == "rand" else
                torch.randint(0, vocab_size, shape, generator=generator, device="cpu")).numpy()
    select = draw("rand", True)
    if swapped:
        replacement = draw("randint", False)
        return select, draw("rand", False), replacement
    return select, draw("rand", again), draw("randint", again)


def _only_selected(draws, tokens, vocab_size, mask_id, seed, prob):
    """What comes out if branch and replacement are drawn for the selected positions alone."""
    select = draws(tokens.shape, vocab_size, seed)[0]
    chosen = select < np.float32(prob)
    n = int(chosen.sum())
    if draws is _torch_draws:
        generator = torch.Generator(device="cpu").manual_seed(seed)
        torch.rand(tokens.shape, generator=generator, dtype=torch.float32)
        corrupt = torch.rand(n, generator=generator, dtype=torch.float32).numpy()
        replacement = torch.randint(0, vocab_size, (n,), generator=generator).numpy()
    else:
        _, corrupt, replacement = draws((n,), vocab_size, seed) if n else (None, np.zeros(0), np.zeros(0, int))
    corrupted = tokens.copy()
    corrupted[chosen] = np.where(corrupt < 0.8, mask_id, np.where(corrupt < 0.9, replacement, tokens[chosen]))
    return np.stack([corrupted, chosen], -1).astype(np.float32)


def _gradients(function, context, head, targets, selected):
    """Gradients of the learner's loss, by the framework that their function works in."""
    for framework in frameworks(function):
        try:
            if framework == "jax":
                loss = lambda c, h: function(c, h, jnp.array(targets), jnp.array(selected))[1]      # noqa: E731
                return jax.grad(loss, argnums=(0, 1))(jnp.array(context), jnp.array(head))
            c, h = (torch.tensor(a, requires_grad=True) for a in (context, head))
            function(c, h, torch.tensor(targets), torch.tensor(selected))[1].backward()
            return c.grad, h.grad
        except Exception:       # the other framework may do; if neither does, the loss cannot be differentiated
            continue
    raise Wrong("the loss cannot be differentiated: compute it from `context` and `head` with jnp or torch, not NumPy")

