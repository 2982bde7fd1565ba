"""The checks answer back: each plausible wrong answer gets the words meant for it, each right one is accepted."""
import ast
import functools
import json
import linecache
import random
import re
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import mlm
from lesson import broken, checking, checks, progress, questions

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
CELLS = {path.stem: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


def but(template, *changes):
    """A template with one line written otherwise: `but(T, "old", "new", ...)`."""
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert template.count(old) == 1, f"{old!r} stands {template.count(old)} times in the template"
        template = template.replace(old, new)
    return template


# Right answers, written otherwise than the notebook's solutions; most wrong ones are one of them but for a slip.

FIRST = """def f(params, targets, mask_id):
    hidden = torch.zeros(targets.shape, dtype=torch.bool)
    hidden[:, 0] = True
    scored = hidden
    read = torch.where(hidden, mask_id, targets)
    logits = mlm.mlm_logits(params, read)
    return mlm.masked_ce(logits, targets, scored)"""

REFUSES = """def f(corrupt_tokens, tokens):
    selected = jnp.zeros_like(tokens, dtype=bool)
    try:
        corrupt_tokens(tokens, selected, 3)
    except ValueError:
        return True
    return False"""

GRADIENT = """def f(logits, targets, selected):
    p = torch.softmax(logits, dim=-1)
    onehot = torch.nn.functional.one_hot(targets, logits.shape[-1])
    return (p - onehot) * selected[..., None] / selected.sum()"""

PIECES = """def f(pieces):
    total = count = 0
    for logits, targets, selected in pieces:
        t = torch.nn.functional.cross_entropy(logits[selected], targets[selected], reduction="sum")
        n = int(selected.sum())
        total, count = total + t, count + n
    return total / count"""

PERPLEXITY = """def f(batches):
    batches = [(np.asarray(nll), np.asarray(scored)) for nll, scored in batches]
    total = sum(float(nll[scored].sum()) for nll, scored in batches)
    count = sum(int(scored.sum()) for nll, scored in batches)
    if count == 0:
        raise ValueError("nothing counts")
    return np.exp(total / count)"""

PROJECTION = """def f(context, head, targets, selected):
    logits, labels = context[selected] @ head, targets[selected]
    logp = torch.log_softmax(logits, dim=-1)
    loss = -logp[torch.arange(len(labels)), labels].mean()
    return logits, loss"""

CAUSAL = """def inputs_targets(tokens):
    inputs, targets = tokens[..., :-1], tokens[..., 1:]
    return inputs, targets


def triangle(length):
    return torch.ones(length, length).tril().bool()


f = inputs_targets, triangle"""

JAX = """def f(tokens, vocab_size, mask_token_id, seed, mask_prob=0.15):
    keys = jax.random.split(jax.random.PRNGKey(seed), 4)
    _, k1, k2, k3 = keys
    select, corrupt = np.asarray(jax.random.uniform(k1, tokens.shape)), np.asarray(jax.random.uniform(k2, tokens.shape))
    new = np.asarray(jax.random.randint(k3, tokens.shape, 0, vocab_size))
    old = np.asarray(tokens)
    selected = select < np.float32(mask_prob)
    read = np.where(corrupt < 0.8, mask_token_id, np.where(corrupt < 0.9, new, old))
    read = np.where(selected, read, old)
    return jnp.asarray(np.stack([read, selected], axis=-1), jnp.float32)"""

TORCH = """def f(tokens, vocab_size, mask_token_id, seed, mask_prob=0.15):
    g = torch.Generator(device="cpu").manual_seed(seed)
    select = torch.rand(tokens.shape, generator=g)
    corrupt = torch.rand(tokens.shape, generator=g)
    new = torch.randint(0, vocab_size, tokens.shape, generator=g)
    selected = select < mask_prob
    read = tokens.clone()
    read[selected & (corrupt < 0.8)] = mask_token_id
    swap = selected & (corrupt >= 0.8) & (corrupt < 0.9)
    read[swap] = new[swap]
    return torch.stack([read, selected], dim=-1).float()"""

ELIGIBLE = """def f(draws, tokens, special_ids, mask_prob):
    draws, tokens = np.asarray(draws), np.asarray(tokens)
    ordinary = ~np.isin(tokens, special_ids)
    if not ordinary.any():
        raise ValueError("no ordinary token")
    selected = ordinary & (draws < np.float32(mask_prob))
    return selected"""

ORDINARY = """def f(draws, vocab_size, special_ids):
    draws = np.asarray(draws)
    ids = np.setdiff1d(np.arange(vocab_size), special_ids)
    n = len(ids)
    place = (draws * n).astype(int)
    return ids[np.minimum(place, n - 1)]"""

SCHEDULE = """def f(seed, epoch, example, length, mask_prob):
    rng = np.random.default_rng([seed, epoch, example])
    return rng.random(length) < mask_prob"""


# One entry for each answer: exercise, a piece of the words meant for it ("right" if it is), source of `f`.

ANSWERS = [
    ("4.1", "right", FIRST),
    ("4.1", "right", """def f(params, targets, mask_id):
    E, H, t = (np.asarray(x) for x in (params["embedding"], params["head"], targets))
    h = E[np.where(np.arange(t.shape[1]) == 0, mask_id, t)]
    s = np.exp(h @ h.swapaxes(1, 2) / np.sqrt(h.shape[-1]))
    z = (s / s.sum(-1, keepdims=True) @ h @ H)[:, 0]
    return float(np.mean(np.log(np.exp(z).sum(-1)) - z[np.arange(len(t)), t[:, 0]]))"""),
    ("4.1", "hides and scores the second position", but(FIRST, "[:, 0] = True", "[:, 1] = True")),
    ("4.1", "hides and scores the last position", but(FIRST, "[:, 0] = True", "[:, -1] = True")),
    ("4.1", "hides and scores the first row", but(FIRST, "[:, 0] = True", "[0] = True")),
    ("4.1", "first position of one row only", but(FIRST, "[:, 0] = True", "[0, 0] = True")),
    ("4.1", "hides the first position but scores the second", but(FIRST, "= hidden\n", "= hidden.roll(1, 1)\n")),
    ("4.1", "scores the first position but hides the second", but(FIRST, "where(hidden", "where(hidden.roll(1, 1)")),
    ("4.1", "averages over all positions", but(FIRST, "scored = hidden", "scored = hidden | True")),
    ("4.1", "reads the clean tokens", but(FIRST, "logits(params, read)", "logits(params, targets)")),
    ("4.1", "hides every position, so no", but(FIRST, "where(hidden,", "where(hidden | True,")),
    ("4.1", "hides and scores every position", but(FIRST, "[:, 0] = True", "[:] = True")),
    ("4.1", "softmax runs over positions", but(FIRST, "mlm.masked_ce(logits, targets, scored)",
        "-torch.log_softmax(logits, 1)[torch.arange(len(targets)), 0, targets[:, 0]].mean()")),
    ("4.1", "the sum over the rows", but(FIRST, "masked_ce(logits, targets, scored)",
        "masked_nll(logits, targets, scored)[0]")),
    ("4.1", "divides by all positions", but(FIRST, "masked_ce(logits, targets, scored)",
        "masked_nll(logits, targets, scored)[0] / targets.numel()")),
    ("4.1", "the pair (sum, count)", but(FIRST, "masked_ce", "masked_nll")),
    ("4.1", "in bits", but(FIRST, "targets, scored)", "targets, scored) / np.log(2)")),
    ("4.1", "it is the perplexity", but(FIRST, "return mlm.", "return torch.exp(mlm.", "scored)", "scored))")),
    ("4.1", "the sign is wrong", but(FIRST, "return ", "return -")),
    ("4.1", "wanted one number for the answer", but(FIRST, "mlm.masked_ce(logits, targets, scored)", "logits")),
    ("4.1", "`f` raised ValueError: corrupted[0, 0] is 3; wanted an ID in [0, 3)",
        but(FIRST, "hidden, mask_id,", "hidden, 3,")),
    ("4.1", "`f` raised ValueError: targets[0, 0] is 2 and selected", but(FIRST, "logits, targets", "logits, read")),
    ("4.1", "changes its input", but(FIRST, "    read = torch.where(hidden, mask_id, targets)",
        "    before, read = targets.clone(), targets; read[hidden] = mask_id", "logits, targets", "logits, before")),
    ("4.1", "returns None; is a `return` missing?", but(FIRST, "return ", "loss = ")),
    ("4.1", "does it use its arguments?", "lambda params, targets, mask_id: 0.0123"),
    ("4.1", "does it use its arguments?", but(FIRST, "    hidden = ", """
    targets, _, _ = mlm.fixture_batch("torch")
    params, mask_id = mlm.initial_params("torch"), 3
    hidden = """)),
    ("4.1", "the values of the answer are not right", but(FIRST, "return ", "return 1 - ")),

    ("4.2", "right", REFUSES),
    ("4.2", "right", """def f(corrupt_tokens, tokens):
    try:
        corrupt_tokens(tokens, torch.zeros(tokens.shape, dtype=torch.bool), 3)
        return False
    except Exception as error:
        return isinstance(error, ValueError)"""),
    ("4.2", "right", """def f(corrupt_tokens, tokens):
    refused = pytest.raises(ValueError)
    try:
        with refused:
            corrupt_tokens(tokens, np.zeros(tokens.shape, bool), mask_id=3)
    except pytest.fail.Exception:
        return False
    return np.bool_(True)"""),
    ("4.2", "it never calls the corruption function", "lambda corrupt_tokens, tokens: True"),
    ("4.2", "it never calls the corruption function", "lambda corrupt_tokens, tokens: False"),
    ("4.2", "it never calls the corruption function", but(REFUSES, "        corrupt", "        mlm.corrupt")),
    ("4.2", "it never calls the corruption function", but(REFUSES, "    try:",
        "    if not selected.any(): return True\n    try:")),
    ("4.2", "has the wrong shape", but(REFUSES, "jnp.zeros_like(tokens, dtype=bool)", "False")),
    ("4.2", "has the wrong shape", but(REFUSES, "jnp.zeros_like(tokens, dtype=bool)", "np.zeros(len(tokens), bool)")),
    ("4.2", "selects something; wanted all False", but(REFUSES, "zeros", "ones")),
    ("4.2", "selects something; wanted all False", but(REFUSES, "tokens, selected, 3", "selected, tokens, 3")),
    ("4.2", "is not Boolean", but(REFUSES, ", dtype=bool", "")),
    ("4.2", "wanted numbers for the mask", but(REFUSES, "jnp.zeros_like(tokens, dtype=bool)", "None")),
    ("4.2", "a function that raises ValueError refuses", but(REFUSES, "True", "no", "False", "True", "no", "False")),
    ("4.2", "a function that returns tokens accepts", but(REFUSES, "False", "True")),
    ("4.2", "a function that returns tokens accepts", but(REFUSES, "selected, 3)",
        "selected, 3)\n        raise ValueError('accepted')")),
    ("4.2", "the ValueError of the refusal goes through", but(REFUSES, "except ValueError", "except TypeError")),
    ("4.2", "the ValueError of the refusal goes through",
        "lambda corrupt_tokens, tokens: corrupt_tokens(tokens, np.zeros(tokens.shape, bool), 3)"),
    ("4.2", "the verdict is not True or False", but(REFUSES, "ValueError:", "ValueError as error:",
        "True", "str(error)")),
    ("4.2", "the verdict is not True or False", but(REFUSES, "True", "1", "False", "0")),
    ("4.2", "returns None; is a `return` missing?", but(REFUSES, "    return False", "")),
    ("4.2", "takes any exception for a refusal", but(REFUSES, "except ValueError", "except")),
    ("4.2", "takes any exception for a refusal", but(REFUSES, "except ValueError", "except Exception")),
    ("4.2", "`f` raised TypeError", but(REFUSES, "selected, 3", "selected")),

    ("4.3", "right", GRADIENT),
    ("4.3", "right", """def f(logits, targets, selected):
    z, g = np.asarray(logits), np.zeros(logits.shape, np.float32)
    for at in np.argwhere(np.asarray(selected)):
        e = np.exp(z[tuple(at)] - z[tuple(at)].max())
        g[tuple(at)] = e / e.sum()
        g[(*at, int(targets[tuple(at)]))] -= 1
    return g / np.count_nonzero(selected)"""),
    ("4.3", "right", "lambda z, targets, selected: jnp.einsum('...v,...->...v', jnp.exp(jax.nn.log_softmax(z))"
        " - (targets[..., None] == jnp.arange(z.shape[-1])), selected / selected.sum())"),
    ("4.3", "not divided by the number of selected", but(GRADIENT, " / selected.sum()", "")),
    ("4.3", "divided by the batch size", but(GRADIENT, "selected.sum()", "len(logits)")),
    ("4.3", "divided by the number of all positions", but(GRADIENT, "selected.sum()", "selected.numel()")),
    ("4.3", "divided row by row", but(GRADIENT, "selected.sum()", "selected.sum(-1)[:, None, None]")),
    ("4.3", "divided by the size of the vocabulary too",
        but(GRADIENT, "selected.sum()", "selected.sum() / p.shape[-1]")),
    ("4.3", "unselected positions are not zero", but(GRADIENT, " * selected[..., None]", "")),
    ("4.3", "neither masked nor divided", but(GRADIENT, " * selected[..., None] / selected.sum()", "")),
    ("4.3", "the mask is missing twice",
        but(GRADIENT, " * selected[..., None] / selected.sum()", " / targets.numel()")),
    ("4.3", "the mask is turned around", but(GRADIENT, "    p =", "    selected = ~selected\n    p =")),
    ("4.3", "needs a last axis of its own", but(GRADIENT, "selected[..., None]", "selected")),
    ("4.3", "the sign is turned around", but(GRADIENT, "p - onehot", "onehot - p")),
    ("4.3", "the one-hot of the targets is missing", but(GRADIENT, "(p - onehot)", "p")),
    ("4.3", "the target's ID is subtracted", but(GRADIENT, "(p - onehot)", "(p - targets[..., None])")),
    ("4.3", "only the target's own element", but(GRADIENT, "(p - onehot)", "(p - 1) * onehot")),
    ("4.3", "subtracted from the logits", but(GRADIENT, "(p - onehot)", "(logits - onehot)")),
    ("4.3", "subtracted from log probabilities", but(GRADIENT, "torch.softmax", "torch.log_softmax")),
    ("4.3", "the softmax runs over positions", but(GRADIENT, "dim=-1", "dim=1")),
    ("4.3", "the selected positions alone", but(GRADIENT, "(p - onehot) * selected[..., None]",
        "(p - onehot)[selected]")),
    ("4.3", "the loss itself", but(GRADIENT, "(p - onehot) * selected[..., None] / selected.sum()",
        "mlm.masked_ce(logits, targets, selected)")),
    ("4.3", "not divided by the number of selected",
        "lambda logits, targets, selected: torch.autograd.grad(mlm.masked_nll(z := logits.clone().requires_grad_(), "
        "targets, selected)[0], z)[0]"),
    ("4.3", "the dtype of the gradient is not right", but(GRADIENT, "selected.sum()", "selected.sum()).int()",
        "return ", "return (")),
    ("4.3", "the values of the gradient are not right", but(GRADIENT, "(p - onehot)", "(p - onehot / 2)")),
    ("4.3", "the shape of the gradient is not right", but(GRADIENT, "selected.sum()", "selected.sum())[0]",
        "return ", "return (")),

    ("4.4", "right", PIECES),
    ("4.4", "right", "lambda pieces: mlm.masked_ce(*(jnp.concatenate(column) for column in zip(*pieces)))"),
    ("4.4", "right", """def f(pieces):
    counts = [int(selected.sum()) for _, _, selected in pieces]
    return sum(n / sum(counts) * float(mlm.masked_ce(*piece)) for piece, n in zip(pieces, counts) if n)"""),
    ("4.4", "averages the means of the pieces: small",
        "lambda pieces: sum(mlm.masked_ce(*p) for p in pieces) / len(pieces)"),
    ("4.4", "averages the means of the pieces: small",
        "lambda pieces: np.mean([float(mlm.masked_ce(*p)) for p in pieces if p[2].any()])"),
    ("4.4", "averages the means of the pieces: small", but(PIECES, "t, count + n", "t / n, count + 1")),
    ("4.4", "counts an empty piece as a loss of zero", but(PIECES, "t, count + n", "t / max(n, 1), count + 1")),
    ("4.4", "an empty piece is counted as one token", but(PIECES, "count + n", "count + max(n, 1)")),
    ("4.4", "stops at an empty piece", but(PIECES, "        total,", "        if n == 0: break\n        total,")),
    ("4.4", "the sum over all pieces, never divided", but(PIECES, "total / count", "total")),
    ("4.4", "it adds the means of the pieces",
        but(PIECES, "total / count", "total", "t, count", "t / max(n, 1), count")),
    ("4.4", "divides by the number of pieces", but(PIECES, "total / count", "total / len(pieces)")),
    ("4.4", "divides by all positions", but(PIECES, "int(selected.sum())", "len(selected)")),
    ("4.4", "averages over all positions",
        but(PIECES, "in pieces:\n", "in pieces:\n        selected = selected | True\n")),
    ("4.4", "adds the nats of all positions", but(PIECES, "logits[selected], targets[selected]", "logits, targets")),
    ("4.4", "the values of the loss are not right", but(PIECES, "in pieces:", "in pieces[:3]:")),
    ("4.4", "the loss of the last piece only", but(PIECES, "total + t, count + n", "t, n")),
    ("4.4", "the loss of the first piece only", but(PIECES, "    return", "        return")),
    ("4.4", "the pair (sum, count)", but(PIECES, "total / count", "total, count")),
    ("4.4", "it is the perplexity", but(PIECES, "total / count", "torch.exp(total / count)")),
    ("4.4", "wanted one number for the loss", but(PIECES, "total / count", "[total / count]")),
    ("4.4", "the loss is not finite", but(PIECES, "total / count", "total / count / 0")),
    ("4.4", "`f` raised ValueError: selected is empty", """def f(pieces):
    means = [(mlm.masked_ce(*piece), int(piece[2].sum())) for piece in pieces]
    return sum(mean * n for mean, n in means) / sum(n for _, n in means)"""),

    ("4.5", "right", PERPLEXITY),
    ("4.5", "right", """def f(batches):
    total = sum(torch.where(scored, nll, 0.0).sum() for nll, scored in batches)
    count = sum(scored.sum() for _, scored in batches)
    if not count:
        raise ValueError
    return torch.exp(total / count)"""),
    ("4.5", "right", """def f(batches):
    tokens = [float(x) for nll, scored in batches for x in np.asarray(nll)[scored]]
    return mlm.perplexity(sum(tokens), len(tokens))"""),
    ("4.5", "averages the perplexities of the batches", but(PERPLEXITY, "np.exp(total / count)",
        "np.mean([np.exp(nll[scored].mean()) for nll, scored in batches if scored.any()])")),
    ("4.5", "averages the perplexities of the batches, weighted", but(PERPLEXITY, "np.exp(total / count)",
        "sum(np.exp(nll[scored].mean()) * scored.sum() for nll, scored in batches if scored.any()) / count")),
    ("4.5", "averages the perplexities of the tokens", but(PERPLEXITY, "np.exp(total / count)",
        "np.mean(np.concatenate([np.exp(nll[scored]) for nll, scored in batches]))")),
    ("4.5", "averages the mean losses of the batches", but(PERPLEXITY, "np.exp(total / count)",
        "np.exp(np.mean([nll[scored].mean() for nll, scored in batches if scored.any()]))")),
    ("4.5", "positions that do not count (padding) are counted", but(PERPLEXITY, "nll[scored].sum()", "nll.sum()",
        "int(scored.sum())", "scored.size")),
    ("4.5", "it divides by all positions", but(PERPLEXITY, "int(scored.sum())", "scored.size")),
    ("4.5", "the nats of padding are added", but(PERPLEXITY, "nll[scored].sum()", "nll.sum()")),
    ("4.5", "divides by the number of batches", but(PERPLEXITY, "total / count", "total / len(batches)")),
    ("4.5", "the perplexity of the last batch only", but(PERPLEXITY, "np.exp(total / count)",
        "np.exp([nll[scored].mean() for nll, scored in batches if scored.any()][-1])")),
    ("4.5", "the perplexity of the first batch only", but(PERPLEXITY, "np.exp(total / count)",
        "np.exp(batches[0][0][batches[0][1]].mean())")),
    ("4.5", "the exponential is missing", but(PERPLEXITY, "np.exp(total / count)", "total / count")),
    ("4.5", "takes 2 to the power of nats", but(PERPLEXITY, "np.exp(total / count)", "2 ** (total / count)")),
    ("4.5", "perplexity is at least 1", but(PERPLEXITY, "np.exp(total", "np.exp(-total")),
    ("4.5", "multiplies the perplexities of the batches", but(PERPLEXITY, "np.exp(total / count)",
        "np.prod([np.exp(nll[scored].mean()) for nll, scored in batches if scored.any()])")),
    ("4.5", "the exponential of the sum, never divided", but(PERPLEXITY, "total / count", "total")),
    ("4.5", "a batch in which nothing counts is no error", but(PERPLEXITY, "if count == 0",
        "if not all(scored.any() for _, scored in batches)")),
    ("4.5", "when nothing counts there is no perplexity", but(PERPLEXITY, "count == 0", "False")),
    ("4.5", "when nothing counts there is no perplexity", but(PERPLEXITY, "raise ValueError", "raise RuntimeError")),
    ("4.5", "when nothing counts there is no perplexity", but(PERPLEXITY, "raise ValueError", "return float")
        .replace('"nothing counts"', '"inf"')),
    ("4.5", "when nothing counts there is no perplexity", but(PERPLEXITY, "count == 0", "False",
        "total / count", "total / (count + 1e-8)")),
    ("4.5", "`f` raised ValueError: nothing counts", but(PERPLEXITY, "count == 0", "total == 0")),
    ("4.5", "the values of the perplexity are not right", but(PERPLEXITY, "total / count", "total / (count + 1)")),
    ("4.5", "wanted one number for the perplexity",
        but(PERPLEXITY, "np.exp(total / count)", "[np.exp(total / count)]")),

    ("4.6", "right", PROJECTION),
    ("4.6", "right", """def f(context, head, targets, selected):
    rows, columns = np.nonzero(np.asarray(selected))
    logits, labels = context[rows, columns] @ head, targets[rows, columns]
    return [logits, -(jax.nn.one_hot(labels, head.shape[1]) * jax.nn.log_softmax(logits)).sum() / len(rows)]"""),
    ("4.6", "right", """def f(context, head, targets, selected):
    keep = selected.reshape(-1)
    logits = context.reshape(-1, context.shape[-1])[keep].matmul(head)
    return logits, torch.nn.functional.cross_entropy(logits, targets.flatten()[keep])"""),
    ("4.6", "at every position; wanted the selected ones alone", but(PROJECTION, "return logits",
        "return context @ head")),
    ("4.6", "at every position; wanted the rows of the selected", but(PROJECTION, "return logits",
        "return (context @ head).flatten(0, 1)")),
    ("4.6", "unselected logits are set to zero", but(PROJECTION, "return logits",
        "return context * selected[..., None] @ head")),
    ("4.6", "at every position and the rest thrown away", but(PROJECTION, "context[selected] @ head",
        "(context @ head)[selected]")),
    ("4.6", "at every position and the rest thrown away",
        but(PROJECTION, "logits, loss", "logits, mlm.masked_ce(context @ head, targets, selected)")),
    ("4.6", "at the unselected positions", but(PROJECTION, "    logits,", "    selected = ~selected\n    logits,")),
    ("4.6", "column by column", but(PROJECTION, "    logits,",
        "    context, targets, selected = context.transpose(0, 1), targets.T, selected.T\n    logits,")),
    ("4.6", "these are probabilities", but(PROJECTION, "return logits", "return logits.softmax(-1)")),
    ("4.6", "these are log probabilities", but(PROJECTION, "return logits", "return logp")),
    ("4.6", "the head is missing", but(PROJECTION, "return logits", "return context[selected]")),
    ("4.6", "the pair is turned around", but(PROJECTION, "logits, loss", "loss, logits")),
    ("4.6", "wanted the pair (logits, loss)", but(PROJECTION, "logits, loss", "loss")),
    ("4.6", "wanted the pair (logits, loss)", but(PROJECTION, "logits, loss", "logits, labels, loss")),
    ("4.6", "it is the sum", but(PROJECTION, ".mean()", ".sum()")),
    ("4.6", "divides by all positions", but(PROJECTION, ".mean()", ".sum() / selected.numel()")),
    ("4.6", "the mean over all positions", but(PROJECTION, "logits, loss",
        "logits, mlm.masked_ce(context @ head, targets, selected | True)")),
    ("4.6", "the mean of the rows' means", but(PROJECTION, "logits, loss",
        "logits, sum(mlm.masked_ce(context[i] @ head, targets[i], selected[i]) for i in (0, 1, 2)[:len(context)])"
        " / len(context)")),
    ("4.6", "logits and targets are out of step", but(PROJECTION, "targets[selected]",
        "targets.flatten()[:selected.sum()]")),
    ("4.6", "the targets of all rows", but(PROJECTION, "torch.arange(len(labels)), labels", ":, labels")),
    ("4.6", "softmax runs over the selected positions", but(PROJECTION, "dim=-1", "dim=0")),
    ("4.6", "it is the perplexity", but(PROJECTION, "logits, loss", "logits, loss.exp()")),
    ("4.6", "the sign is wrong", but(PROJECTION, "= -logp", "= logp")),
    ("4.6", "something on the way to the loss is detached", but(PROJECTION, "context[", "context.detach()[")),
    ("4.6", "something on the way to the loss is detached", but(PROJECTION, "@ head", "@ head.detach()")),
    ("4.6", "something on the way to the loss is detached", but(PROJECTION, "logits, loss",
        "logits, loss.detach() + 0 * context.sum() + 0 * head.sum()")),
    ("4.6", "the loss cannot be differentiated", but(PROJECTION, "logits, loss", "logits, loss.item()")),
    ("4.6", "the loss cannot be differentiated", """def f(context, head, targets, selected):
    logits = np.asarray(context)[selected] @ np.asarray(head)
    return logits, float(mlm.masked_ce(logits, targets[selected], selected[selected]))"""),
    ("4.6", "the values of the gradient of the loss for `head`", but(PROJECTION, "logits, loss",
        "logits, loss + head.mean() - head.mean().detach()")),
    ("4.6", "wanted the pair (logits, loss)", but(PROJECTION, "logits, loss", "torch.stack([loss, loss])")),
    ("4.6", "the shape of the logits is not right", but(PROJECTION, "context[selected] @ head, targets[selected]",
        "context[:2][selected[:2]] @ head, targets[:2][selected[:2]]")),
    ("4.6", "the shape of the logits is not right", but(PROJECTION, "return logits", "return logits[None]")),

    ("4.7", "right", CAUSAL),
    ("4.7", "right", but(CAUSAL, "tokens[..., :-1], tokens[..., 1:]",
        "jnp.delete(tokens, -1, axis=-1), jnp.delete(tokens, 0, axis=-1)",
        "torch.ones(length, length).tril().bool()", "jnp.arange(length)[:, None] >= jnp.arange(length)")),
    ("4.7", "right", but(CAUSAL, "return inputs, targets", "return [np.asarray(inputs).tolist(), np.asarray(targets)]",
        "torch.ones(length, length).tril().bool()", "[[k <= q for k in range(length)] for q in range(length)]")),
    ("4.7", "inputs and targets are exchanged", but(CAUSAL, "return inputs, targets", "return targets, inputs")),
    ("4.7", "the last input has no next token", but(CAUSAL, "return inputs, targets", "return tokens, targets")),
    ("4.7", "the last input has no next token", but(CAUSAL, "return inputs, targets",
        "return tokens, np.append(targets, -100)")),
    ("4.7", "it leaves out two", but(CAUSAL, "[..., :-1], tokens[..., 1:]", "[..., :-2], tokens[..., 2:]")),
    ("4.7", "shifts along the batch", but(CAUSAL, "[..., :-1], tokens[..., 1:]", "[:-1], tokens[1:]")),
    ("4.7", "shifts along the batch", but(CAUSAL, "tokens[..., 1:]", "tokens[1:]")),
    ("4.7", "the targets are the inputs themselves", but(CAUSAL, "return inputs, targets", "return inputs, inputs")),
    ("4.7", "the shift wraps around", but(CAUSAL, "tokens[..., 1:]", "np.roll(np.asarray(tokens), -1, axis=-1)")),
    ("4.7", "the targets are not shifted", but(CAUSAL, "tokens[..., 1:]", "tokens")),
    ("4.7", "it is the last token only", but(CAUSAL, "tokens[..., 1:]", "tokens[..., -1]")),
    ("4.7", "Too many indices", but(CAUSAL, "[..., :-1], tokens[..., 1:]", "[:, :-1], tokens[:, 1:]")),
    ("4.7", "wanted the pair (inputs, targets)", but(CAUSAL, "return inputs, targets", "return targets")),
    ("4.7", "wanted the pair (inputs, targets)", but(CAUSAL, "return inputs, targets", "return tokens, inputs, 0")),
    ("4.7", "wanted the pair (inputs, targets)",
        but(CAUSAL, "inputs, targets\n\n", "torch.stack([inputs, targets])\n\n")),
    ("4.7", "the shape of the causal mask is not right", but(CAUSAL, "bool()", "bool().squeeze()")),
    ("4.7", "the shape of the causal mask is not right", but(CAUSAL, "ones(length, length).tril()",
        "ones(4, 4).tril()[:length, :length]")),
    ("4.7", "the shape of `targets` is not right", but(CAUSAL, "tokens[..., 1:]", "tokens[..., 2:]")),
    ("4.7", "the dtype of `inputs` is not right", but(CAUSAL, "return inputs,", "return inputs * 1.0,")),
    ("4.7", "the dtype of `targets` is not right", but(CAUSAL, "return inputs, targets", "return inputs, targets > 0")),
    ("4.7", "the values of `inputs` are not right", but(CAUSAL, "return inputs,", "return inputs * 2,")),
    ("4.7", "the triangle is turned around", but(CAUSAL, "tril()", "triu()")),
    ("4.7", "the diagonal is missing", but(CAUSAL, "tril()", "tril(-1)")),
    ("4.7", "True where looking is forbidden", but(CAUSAL, "tril()", "triu(1)")),
    ("4.7", "it allows one position too many", but(CAUSAL, "tril()", "tril(1)")),
    ("4.7", "each position sees itself alone", but(CAUSAL, "tril()", "tril().triu()")),
    ("4.7", "that is the masked model", but(CAUSAL, "tril()", "clone()")),
    ("4.7", "the dtype of the causal mask is not right", but(CAUSAL, ".bool()", "")),
    ("4.7", "the dtype of the causal mask is not right", but(CAUSAL, "ones(length, length).tril().bool()",
        "full((length, length), -torch.inf).triu(1)")),
    ("4.7", "does it use its arguments?", but(CAUSAL, "ones(length, length)", "ones(3, 3)")),
    ("4.7", "the shape of the causal mask is not right",
        but(CAUSAL, "ones(length, length)", "ones(length - 1, length)")),
    ("4.7", "`triangle` is not attempted yet", but(CAUSAL, "return torch.ones(length, length).tril().bool()", "...")),
    ("4.7", "`inputs_targets` is not attempted yet", but(CAUSAL,
        "inputs, targets = tokens[..., :-1], tokens[..., 1:]\n    return inputs, targets", "pass")),

    ("4.8", "right", JAX),
    ("4.8", "right", """def f(tokens, vocab_size, mask_token_id, seed, mask_prob=0.15):
    _, *keys = jax.random.split(jax.random.key(seed), 4)
    select, branch = (jax.random.uniform(key, tokens.shape).tolist() for key in keys[:2])
    other, out = jax.random.randint(keys[2], tokens.shape, 0, vocab_size).tolist(), []
    for n, row in enumerate(tokens.tolist()):
        for t, old in enumerate(row):
            hit, b = select[n][t] < mask_prob, branch[n][t]
            new = mask_token_id if b < 0.8 else other[n][t] if b < 0.9 else old
            out.append((new if hit else old, hit))
    return jnp.array(out, jnp.float32).reshape(*tokens.shape, 2)"""),
    ("4.8", "without `mlm.apply_bert_masking`", "lambda *a: mlm.apply_bert_masking(*a)"),
    ("4.8", "whether the token changed", but(JAX, "[read, selected]", "[read, read != old]")),
    ("4.8", "whether the mask ID is read", but(JAX, "[read, selected]", "[read, read == mask_token_id]")),
    ("4.8", "nothing is marked as selected", but(JAX, "[read, selected]", "[read, 0 * read]")),
    ("4.8", "no attention mask", but(JAX, "[read, selected]", "[read, np.ones_like(read)]")),
    ("4.8", "marks the positions that are not selected", but(JAX, "[read, selected]", "[read, ~selected]")),
    ("4.8", "the channels are exchanged", but(JAX, "[read, selected]", "[selected, read]")),
    ("4.8", "the channels come first", but(JAX, "axis=-1", "axis=0")),
    ("4.8", "the indicator is missing", but(JAX, "np.stack([read, selected], axis=-1)", "read")),
    ("4.8", "the tokens are still clean", but(JAX, "[read, selected]", "[old, selected]")),
    ("4.8", "every selected token becomes the mask ID", but(JAX, "< 0.8", "< 1")),
    ("4.8", "random and kept are exchanged", but(JAX, "new, old))", "old, new))")),
    ("4.8", "nothing becomes random", but(JAX, "< 0.9", "< 0.1")),
    ("4.8", "nothing is kept", but(JAX, "np.where(corrupt < 0.9, new, old)", "new")),
    ("4.8", "the random branch takes the draws below 0.8 too", but(JAX, "< 0.8", "< 0")),
    ("4.8", "the mask ID and the kept token are exchanged", but(JAX, "0.8, mask_token_id,", "0.8, old,",
        "new, old))", "new, mask_token_id))")),
    ("4.8", "the corruption borders are scaled", but(JAX, "< 0.8", "< 0.8 * mask_prob", "< 0.9", "< 0.9 * mask_prob")),
    ("4.8", "one draw decides selection and branch", but(JAX, "corrupt < 0.8", "select < np.float32(0.8 * mask_prob)",
        "corrupt < 0.9", "select < np.float32(0.9 * mask_prob)")),
    ("4.8", "selects where the draw is above", but(JAX, "select < np", "select > np")),
    ("4.8", "a draw equal to mask_prob selects", but(JAX, "select < np", "select <= np")),
    ("4.8", "the seed is not used", but(JAX, "PRNGKey(seed)", "PRNGKey(0)")),
    ("4.8", "mask_prob is not used", but(JAX, "np.float32(mask_prob)", "0.15")),
    ("4.8", "the ID 0 is never selected", but(JAX, "np.float32(mask_prob)", "np.where(old, mask_prob, 0)")),
    ("4.8", "unselected tokens are corrupted too: ask the selection first",
        but(JAX, "    read = np.where(selected, read, old)\n", "")),
    ("4.8", "ask the selection in each branch", but(JAX, "read = np.where(selected, read, old)",
        "read = np.where(selected | (corrupt < 0.8), read, old)")),
    ("4.8", "the last ID is never drawn", but(JAX, "vocab_size))", "vocab_size - 1))")),
    ("4.8", "the ID 0 is never drawn", but(JAX, "shape, 0, vocab", "shape, 1, vocab")),
    ("4.8", "a replacement that hits the mask ID", but(JAX, "    old =",
        "    new = np.where(new == mask_token_id, (new + 1) % vocab_size, new)\n    old =")),
    ("4.8", "a replacement that hits the token itself", but(JAX, "    selected =",
        "    new = np.where(new == old, (new + 1) % vocab_size, new)\n    selected =")),
    ("4.8", "draws are made for the selected positions alone", but(JAX, "    read = np.where(selected, read, old)", """
    n, spread = selected.sum(), lambda draw: np.place(full := draw.copy(), selected, draw.ravel()[:n]) or full
    corrupt, new = spread(corrupt), spread(new)         # JAX's shorter draws begin like the longer ones
    read = np.where(corrupt < 0.8, mask_token_id, np.where(corrupt < 0.9, new, old))
    read = np.where(selected, read, old)""")),
    ("4.8", "the selection and the corruption draw are exchanged", but(JAX, "_, k1, k2, k3", "_, k2, k1, k3")),
    ("4.8", "two draws repeat each other", but(JAX, "_, k1, k2, k3 = keys", "_, k1, _, _ = keys; k2 = k3 = k1")),
    ("4.8", "two draws repeat each other", but(JAX, "uniform(k2", "uniform(k1")),
    ("4.8", "two draws repeat each other", but(JAX, "randint(k3", "randint(k1")),
    ("4.8", "two draws repeat each other", but(JAX, "randint(k3", "randint(k2")),
    ("4.8", "one key draws everything", but(JAX, "_, k1, k2, k3 = keys", "k1 = k2 = k3 = jax.random.PRNGKey(seed)")),
    ("4.8", "the keys are off by one", but(JAX, "_, k1, k2, k3", "k1, k2, k3, _")),
    ("4.8", "the keys are off by one", but(JAX, "_, k1, k2, k3", "k1, k2, k3", "(seed), 4", "(seed), 3")),
    ("4.8", "the keys of corruption and replacement", but(JAX, "_, k1, k2, k3", "_, k1, k3, k2")),
    ("4.8", "split in two, again and again", but(JAX, "    _, k1, k2, k3 = keys", """
    key, k1 = jax.random.split(jax.random.PRNGKey(seed))
    key, k2 = jax.random.split(key)
    key, k3 = jax.random.split(key)""")),
    ("4.8", "seeds or draws from a global generator", but(JAX, "select < np.", "np.random.rand(*old.shape) < np.")),
    ("4.8", "the dtype of the result is not right", but(JAX, ", jnp.float32)", ", jnp.int32)")),
    ("4.8", "wanted one JAX array", but(JAX, "jnp.asarray(np.stack([read, selected], axis=-1), jnp.float32)",
        "read, selected")),
    ("4.8", "wanted one JAX array", but(JAX, "jnp.asarray", "np.asarray")),
    ("4.8", "the values of the result are not right", but(JAX, "0.8, mask_token_id", "0.8, 10")),

    ("4.9", "right", TORCH),
    ("4.9", "right", """def f(tokens, vocab_size, mask_token_id, seed, mask_prob=0.15):
    draws = torch.Generator()
    draws.manual_seed(seed)
    N, T = tokens.shape
    select, branch = [[[float(x) for x in row] for row in torch.rand(N, T, generator=draws)] for _ in "12"]
    other = torch.randint(vocab_size, (N, T), generator=draws)
    out = torch.zeros(N, T, 2)
    for n in range(N):
        for t in range(T):
            hit, b = select[n][t] < mask_prob, branch[n][t]
            out[n, t, 0] = mask_token_id if hit and b < 0.8 else other[n, t] if hit and b < 0.9 else tokens[n, t]
            out[n, t, 1] = hit
    return out"""),
    ("4.9", "without `mlm.apply_bert_masking`", "lambda *a: mlm.apply_bert_masking(*a)"),
    ("4.9", "two draws repeat each other", but(TORCH, "    corrupt", "    g.manual_seed(seed)\n    corrupt",
        "    new", "    g.manual_seed(seed)\n    new")),
    ("4.9", "two draws repeat each other", but(TORCH, "    corrupt", "    g.manual_seed(seed)\n    corrupt")),
    ("4.9", "two draws repeat each other", but(TORCH, "    new", "    g.manual_seed(seed)\n    new")),
    ("4.9", "seeds or draws from a global generator", but(TORCH, 'torch.Generator(device="cpu").manual_seed(seed)',
        "torch.manual_seed(seed)")),
    ("4.9", "seeds or draws from a global generator", but(TORCH, "tokens.shape, generator=g)\n    sel",
        "tokens.shape)\n    sel")),
    ("4.9", "drawn before the corruption", but(TORCH, "    corrupt = torch.rand(tokens.shape, generator=g)\n", "",
        "    selected =", "    corrupt = torch.rand(tokens.shape, generator=g)\n    selected =")),
    ("4.9", "the draws are float64", TORCH.replace("generator=g)\n    c", "generator=g, dtype=torch.float64)\n    c")
        .replace("generator=g)\n    n", "generator=g, dtype=torch.float64)\n    n")),
    ("4.9", "draws are made for the selected positions alone", but(TORCH, "    selected = select < mask_prob\n", "",
        "    corrupt = torch.rand(tokens.shape", """
    selected = select < mask_prob
    corrupt = torch.ones(tokens.shape)
    corrupt[selected] = torch.rand(int(selected.sum())""", "    new = torch.randint(0, vocab_size, tokens.shape",
        "    new = tokens.clone()\n    new[selected] = torch.randint(0, vocab_size, (int(selected.sum()),)")),
    ("4.9", "whether the token changed", but(TORCH, "[read, selected]", "[read, read != tokens]")),
    ("4.9", "whether the mask ID is read", but(TORCH, "[read, selected]", "[read, read == mask_token_id]")),
    ("4.9", "random and kept are exchanged", but(TORCH, "(corrupt >= 0.8) & (corrupt < 0.9)", "(corrupt >= 0.9)")),
    ("4.9", "the random branch takes the draws below 0.8 too", but(TORCH, "(corrupt >= 0.8) & ", "")),
    ("4.9", "nothing is kept", but(TORCH, " & (corrupt < 0.9)", "")),
    ("4.9", "nothing becomes random", but(TORCH, "    read[swap] = new[swap]\n", "")),
    ("4.9", "ask the selection in each branch", but(TORCH, "selected & (corrupt < 0.8)", "corrupt < 0.8")),
    ("4.9", "mask_prob is not used", but(TORCH, "select < mask_prob", "select < 0.15")),
    ("4.9", "a draw equal to mask_prob selects", but(TORCH, "select < mask_prob", "select <= mask_prob")),
    ("4.9", "the last ID is never drawn", but(TORCH, "vocab_size, tokens", "max(vocab_size - 1, 1), tokens")),
    ("4.9", "the last ID is never drawn", but(TORCH, "vocab_size, tokens", "vocab_size - 1, tokens")),
    ("4.9", "the channels are exchanged", but(TORCH, "[read, selected]", "[selected, read]")),
    ("4.9", "the channels come first", but(TORCH, "dim=-1", "dim=0")),
    ("4.9", "the dtype of the result is not right", but(TORCH, ".float()", "")),
    ("4.9", "wanted one PyTorch tensor", but(TORCH, ".float()", ".float().numpy()")),
    ("4.9", "changes its input", but(TORCH, "tokens.clone()", "tokens")),
    ("4.9", "the values of the result are not right", but(TORCH, "    corrupt = torch.rand(tokens.shape, generator=g)",
        "    corrupt = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed + 1))")),
    ("4.9", "the values of the result are not right", """def f(tokens, vocab_size, mask_token_id, seed, mask_prob=0.15):
    g = torch.Generator().manual_seed(seed)
    selected = torch.bernoulli(torch.full(tokens.shape, mask_prob), generator=g).bool()
    hide = torch.bernoulli(torch.full(tokens.shape, 0.8), generator=g).bool() & selected
    swap = torch.bernoulli(torch.full(tokens.shape, 0.5), generator=g).bool() & selected & ~hide
    read = torch.where(hide, mask_token_id, tokens)
    read[swap] = torch.randint(vocab_size, tokens.shape, generator=g)[swap]
    return torch.stack([read, selected], dim=-1).float()"""),

    ("4.10", "right", ELIGIBLE),
    ("4.10", "right", """def f(draws, tokens, special_ids, mask_prob):
    ordinary = ~torch.isin(tokens, torch.tensor(special_ids))
    if ordinary.sum() == 0:
        raise ValueError("nothing eligible")
    return ordinary.logical_and(draws < mask_prob)"""),
    ("4.10", "right", """def f(draws, tokens, special_ids, mask_prob):
    special = [[int(t) in special_ids for t in row] for row in tokens]
    if all(map(all, special)):
        raise ValueError("only special tokens")
    return [[bool(d < mask_prob) and not s for d, s in zip(*rows)] for rows in zip(draws, special)]"""),
    ("4.10", "special tokens and padding are selected", but(ELIGIBLE, "selected = ordinary & ", "selected = ")),
    ("4.10", "only the first of the special IDs", but(ELIGIBLE, "~np.isin(tokens, special_ids)",
        "tokens != special_ids[0]")),
    ("4.10", "only ID 0 is left out", but(ELIGIBLE, "~np.isin(tokens, special_ids)", "tokens != 0")),
    ("4.10", "the special IDs for the lowest ones", but(ELIGIBLE, "~np.isin(tokens, special_ids)",
        "tokens > max(special_ids)")),
    ("4.10", "it selects special tokens only", but(ELIGIBLE, "selected = ordinary", "selected = ~ordinary")),
    ("4.10", "ordinary *or* below", but(ELIGIBLE, "ordinary & ", "ordinary | ")),
    ("4.10", "a draw equal to mask_prob selects", but(ELIGIBLE, "draws < ", "draws <= ")),
    ("4.10", "selects where the draw is above", but(ELIGIBLE, "draws < ", "draws >= ")),
    ("4.10", "selects where the draw is above", but(ELIGIBLE, "draws < ", "draws > ")),
    ("4.10", "every ordinary token is selected", but(ELIGIBLE, " & (draws < np.float32(mask_prob))", "")),
    ("4.10", "is 0.15 typed in?", but(ELIGIBLE, "float32(mask_prob)", "float32(0.15)")),
    ("4.10", "mask_prob is scaled up", but(ELIGIBLE, "float32(mask_prob)", "float32(mask_prob) / ordinary.mean()")),
    ("4.10", "one token is forced in a row", but(ELIGIBLE, "    return", """
    for row, ok, d in zip(selected, ordinary, draws):
        if not row.any() and ok.any():
            row[np.argmin(np.where(ok, d, 2))] = True
    return""")),
    ("4.10", "a fixed quota of each row", but(ELIGIBLE, "    return", """
    selected[:] = False
    for row, ok, d in zip(selected, ordinary, draws):
        row[np.argsort(np.where(ok, d, 2))[:max(1, round(mask_prob * ok.sum()))]] = True
    selected &= ordinary
    return""")),
    ("4.10", "these are the selected tokens", but(ELIGIBLE, "return selected", "return tokens[selected]")),
    ("4.10", "these are the places", but(ELIGIBLE, "return selected", "return np.argwhere(selected)")),
    ("4.10", "chance selects nothing here", but(ELIGIBLE, "    return selected",
        "    if not selected.any(): raise ValueError\n    return selected")),
    ("4.10", "one row has no ordinary token", but(ELIGIBLE, "ordinary.any()", "ordinary.any(-1).all()")),
    ("4.10", "nothing is eligible here", but(ELIGIBLE, "not ordinary.any()", "False")),
    ("4.10", "nothing is eligible here", but(ELIGIBLE, "raise ValueError", "raise AssertionError")),
    ("4.10", "nothing is eligible here", but(ELIGIBLE, 'raise ValueError("no ordinary token")', "return None")),
    ("4.10", "the dtype of the selection is not right",
        but(ELIGIBLE, "return selected", "return selected.astype(int)")),
    ("4.10", "truth value of an array", but(ELIGIBLE, "not ordinary.any()", "tokens in special_ids")),
    ("4.10", "the values of the selection are not right", but(ELIGIBLE, "(draws <",
        "(np.random.default_rng(0).random(draws.shape) <")),

    ("4.11", "right", ORDINARY),
    ("4.11", "right", """def f(draws, vocab_size, special_ids):
    ids = torch.tensor([i for i in range(vocab_size) if i not in special_ids])
    return ids[(draws * len(ids)).long().clamp(max=len(ids) - 1)]"""),
    ("4.11", "right", """def f(draws, vocab_size, special_ids):
    ids = np.array(sorted(set(range(vocab_size)) - set(special_ids)))
    return jnp.array(ids)[np.searchsorted(np.arange(1, len(ids)) / len(ids), draws, side="right")]"""),
    ("4.11", "special IDs are drawn", but(ORDINARY, "np.setdiff1d(np.arange(vocab_size), special_ids)",
        "np.arange(vocab_size)")),
    ("4.11", "these are places in the list", but(ORDINARY, "ids[np.minimum(place, n - 1)]", "place")),
    ("4.11", "only the first of the special IDs", but(ORDINARY, "special_ids)\n", "special_ids[0])\n")),
    ("4.11", "the special IDs for the lowest ones", but(ORDINARY, "ids[np.minimum(place, n - 1)]",
        "place + len(special_ids)")),
    ("4.11", "only IDs above the last special one", but(ORDINARY, "np.setdiff1d(np.arange(vocab_size), special_ids)",
        "np.arange(max(special_ids) + 1, vocab_size)", "np.minimum(place, n - 1)", "place % n")
        .replace("n = len(ids)", "ids = ids if len(ids) else np.array([vocab_size]); n = len(ids)")),
    ("4.11", "the ID 0 is left out", but(ORDINARY, "np.arange(vocab_size)", "np.arange(1, vocab_size)")),
    ("4.11", "vocab_size itself is drawn", but(ORDINARY, "np.arange(vocab_size)", "np.arange(vocab_size + 1)")),
    ("4.11", "moved to the next ordinary one", but(ORDINARY, "    return ids[np.minimum(place, n - 1)]", """
    place = (draws * vocab_size).astype(int)
    while np.isin(place, special_ids).any():
        place = np.where(np.isin(place, special_ids), (place + 1) % vocab_size, place)
    return place""")),
    ("4.11", "moved to the ordinary one before", but(ORDINARY, "    return ids[np.minimum(place, n - 1)]", """
    place = (draws * vocab_size).astype(int)
    while np.isin(place, special_ids).any():
        place = np.where(np.isin(place, special_ids), (place - 1) % vocab_size, place)
    return place""")),
    ("4.11", "may be special too", but(ORDINARY, "    return ids[np.minimum(place, n - 1)]", """
    place = (draws * vocab_size).astype(int)
    return np.where(np.isin(place, special_ids), place + 1, place)""")),
    ("4.11", "the remainder is taken", but(ORDINARY, "draws * n", "draws * vocab_size",
        "np.minimum(place, n - 1)", "place % n")),
    ("4.11", "moved to its last ID", but(ORDINARY, "draws * n", "draws * vocab_size")),
    ("4.11", "the last ordinary ID is (almost) never drawn", but(ORDINARY, "draws * n", "draws * (n - 1)")),
    ("4.11", "the ends get half a share", but(ORDINARY, "(draws * n)", "np.round(draws * (n - 1))")),
    ("4.11", "the ends get another share", but(ORDINARY, "(draws * n)", "np.round(draws * n)")),
    ("4.11", "it rounds up", but(ORDINARY, "(draws * n).astype(int)", "np.ceil(draws * n).astype(int) - 1")),
    ("4.11", "special IDs are thrown away", but(ORDINARY, "    return ids[np.minimum(place, n - 1)]", """
    place = (draws * vocab_size).astype(int)
    return place[~np.isin(place, special_ids)]""")),
    ("4.11", "it is one row of IDs", but(ORDINARY, "np.asarray(draws)", "np.ravel(draws)")),
    ("4.11", "in falling order", but(ORDINARY, "special_ids)\n", "special_ids)[::-1]\n")),
    ("4.11", "the dtype of the replacements is not right", but(ORDINARY, "n - 1)]", "n - 1)] * 1.0")),
    ("4.11", "the values of the replacements are not right", but(ORDINARY, "ids[np.minimum(place, n - 1)]",
        "np.random.default_rng(0).choice(ids, draws.shape)")),
    ("4.11", "`f` raised TypeError", but(ORDINARY, "ids[np.minimum(place, n - 1)]",
        "np.array([[ids[int(d * n)] for d in row] for row in draws])")),
    ("4.11", "`f` raised TypeError",
        but(ORDINARY, "ids[np.minimum(place, n - 1)]", "[ids[int(d * n)] for d in draws]")),

    ("4.12", "right", SCHEDULE),
    ("4.12", "right", """def f(seed, epoch, example, length, mask_prob):
    own = random.Random(f"{seed} {epoch} {example}")
    return [own.random() < mask_prob for _ in range(length)]"""),
    ("4.12", "right", """def f(seed, epoch, example, length, mask_prob):
    low, high = np.random.SeedSequence([seed, epoch, example]).generate_state(2)
    return torch.rand(length, generator=torch.Generator().manual_seed((int(high) << 31) + int(low))) < mask_prob"""),
    ("4.12", "right", """def f(seed, epoch, example, length, mask_prob):
    with torch.random.fork_rng():
        torch.manual_seed(10**12 * seed + 10**8 * epoch + example)
        return torch.rand(length) < mask_prob"""),
    ("4.12", "wanted one entry for each position", but(SCHEDULE, "random(length)", "random((1, length))")),
    ("4.12", "wanted one entry for each position", but(SCHEDULE, "rng.random(length) < mask_prob",
        "np.flatnonzero(rng.random(length) < mask_prob)")),
    ("4.12", "the dtype of the mask is not right", but(SCHEDULE, " < mask_prob", "")),
    ("4.12", "the dtype of the mask is not right", but(SCHEDULE, "rng.random(length) < mask_prob",
        "1 * (rng.random(length) < mask_prob)")),
    ("4.12", "called twice with the same arguments", but(SCHEDULE, "[seed, epoch, example]", "")),
    ("4.12", "called twice with the same arguments", "stream = np.random.default_rng(7)\n"
        + but(SCHEDULE, "np.random.default_rng([seed, epoch, example])", "stream")),
    ("4.12", "it depends on a global generator", but(SCHEDULE, "rng.random(length)", "np.random.rand(length)")),
    ("4.12", "it depends on a global generator", but(SCHEDULE, "rng.random(length)", "torch.rand(length)")),
    ("4.12", "it depends on a global generator", but(SCHEDULE, "rng.random(length)",
        "np.array([random.random() for _ in range(length)])")),
    ("4.12", "seeds or draws from a global generator", but(SCHEDULE, "rng.random(length)", "np.random.rand(length)",
        "rng = np.random.default_rng(", "np.random.seed(")),
    ("4.12", "seeds or draws from a global generator", but(SCHEDULE, "rng.random(length)", "torch.rand(length)",
        "rng = np.random.default_rng([seed, epoch, example])",
        "torch.manual_seed(10**9 * seed + 99 * epoch + example)")),
    ("4.12", "seeds or draws from a global generator", but(SCHEDULE,
        "rng = np.random.default_rng([seed, epoch, example])", "random.seed(f'{seed} {epoch} {example}')",
        "rng.random(length)", "np.array([random.random() for _ in range(length)])")),
    ("4.12", "is a number typed in?", but(SCHEDULE, "< mask_prob", "< 0.15")),
    ("4.12", "selects where the draw is above", but(SCHEDULE, "< mask_prob", "> mask_prob")),
    ("4.12", "mask_prob 0 must select nothing", but(SCHEDULE, "< mask_prob", "< max(mask_prob, 0.1)")),
    ("4.12", "mask_prob 0 must select nothing", but(SCHEDULE, "rng.random(length) <",
        "rng.random(length) * (np.arange(length) > 0) <=")),
    ("4.12", "mask_prob 1 must select everything", but(SCHEDULE, "< mask_prob", "< min(mask_prob, 0.5)")),
    ("4.12", "the epoch changes nothing", but(SCHEDULE, "[seed, epoch, example]", "[seed, example]")),
    ("4.12", "the example changes nothing", but(SCHEDULE, "[seed, epoch, example]", "[seed, epoch]")),
    ("4.12", "the seed changes nothing", but(SCHEDULE, "[seed, epoch, example]", "[epoch, example]")),
    ("4.12", "one draw decides for all positions",
        but(SCHEDULE, "rng.random(length)", "np.full(length, rng.random())")),
    ("4.12", "they collide", but(SCHEDULE, "[seed, epoch, example]", "seed + epoch + example")),
    ("4.12", "they collide", but(SCHEDULE, "[seed, epoch, example]", "seed * (epoch + 1) * (example + 1)")),
    ("4.12", "they collide", but(SCHEDULE, "[seed, epoch, example]", "sorted([seed, epoch, example])")),
    ("4.12", "they collide", but(SCHEDULE, "[seed, epoch, example]", "10**9 * seed + 1000 * epoch + example")),
    ("4.12", "they collide", but(SCHEDULE, "[seed, epoch, example]", "int(f'{seed}{epoch}{example}')")),
    ("4.12", "they collide", "lambda seed, epoch, example, length, p: jax.random.bernoulli("
        "jax.random.fold_in(jax.random.key(seed), epoch * example), p, (length,))"),
    ("4.12", "exactly the same number, a quota", but(SCHEDULE, "rng.random(length) < mask_prob",
        "np.isin(np.arange(length), rng.permutation(length)[:round(mask_prob * length)])")),
    ("4.12", "the share of selected positions is not mask_prob", but(SCHEDULE, "< mask_prob", "< mask_prob**2")),
    ("4.12", "nearly always or nearly never", but(SCHEDULE, "rng.random(length)",
        "rng.random(length) * (np.arange(length) > 0)")),
]


def namespace(source):
    """What a cell with this source defines, with its lines kept for tracebacks as a notebook does."""
    file = f"<answer {random.getrandbits(64):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    names = {"jax": jax, "jnp": jnp, "np": np, "torch": torch, "mlm": mlm, "random": random, "pytest": pytest,
             "broken": broken, "checks": checks, "functools": functools, "sys": sys}
    try:
        names["f"] = eval(compile(source, file, "eval"), names)
    except SyntaxError:
        exec(compile(source, file, "exec"), names)
    return names


def outcome(number, *answers):
    answers = answers[0] if isinstance(answers[0], tuple) else answers
    return checking.EXERCISES[number].outcome(*answers)


def cells(notebook, tag):
    return ["".join(cell["source"]) for cell in CELLS[notebook]
            if cell["cell_type"] == "code" and tag in cell["metadata"].get("tags", [])]


@functools.cache
def solutions():
    """`{exercise: functions}`, from the notebook's own solution cells; the diagnosis is in no cell."""
    found = {}
    for source in cells("04_exercise", "solution"):
        number = re.match(r"# Solution (\d\.\d+)", source)
        defined = [node for node in ast.parse(source).body if getattr(node, "name", "").startswith("solution_")]
        if number and defined:
            names = namespace("\n\n".join(ast.unparse(node) for node in defined))
            found[number[1]] = tuple(names[node.name] for node in defined)
    return {**found, "4.13": (diagnosis(),)}


def diagnosis(**other):
    """The right one, or with some entries otherwise."""
    audit_of = {fault: audit for audit, (shows, _) in broken.AUDITS.items() for fault in shows}
    faults = {letter: broken.fault_of(letter) for letter in broken.SETUPS}
    return {letter: (fault, audit_of.get(fault)) for letter, fault in faults.items()} | other


def name_of(answer):
    number, words, _ = answer
    return f"{number} {words}"


# --- answers ---------------------------------------------------------------------------------------------------

SOLVED = {line.strip() for source in cells("04_exercise", "solution") for line in source.splitlines()
          if len(line.strip()) > 12 and not line.startswith("#")}


@pytest.mark.filterwarnings("ignore")       # a wrong answer may well divide by zero
@pytest.mark.parametrize("answer", ANSWERS, ids=name_of)
def test_each_answer_gets_the_words_meant_for_it(answer):
    number, meant, source = answer
    state, words = outcome(number, namespace(source)["f"])
    if meant == "right":
        assert (state, words[-1:]) == ("right", "."), words
        return
    assert state == "wrong" and meant in words.split("read again")[0], words
    first, example = words.split("\n", 1)
    assert re.match(r"[a-z`]", first) and not first.endswith("."), "it follows on 'wrong because'"
    assert not [line for line in SOLVED if line in words and line not in source], "a line of the solution is given away"
    own = ("raised", "changes its input", "is a `return` missing", "not attempted", "never calls", "the helper",
           "wanted the pair", "wanted one", "the mask that it hands", "the verdict", "called twice", "depends on",
           "global generator", "differentiated", "wanted numbers", "share one mask", "a quota", "changes nothing",
           "decides for all", "nearly always")
    if not any(piece in first for piece in own):        # the others are shown where one can see it
        assert all(re.search(rf"^ *{part}: \S", example, re.M) for part in ("input", "expected", "given")), words


@pytest.mark.parametrize("number", checking.EXERCISES)
def test_the_notebooks_own_solution_is_right(number):
    state, words = outcome(number, solutions()[number])
    assert state == "right" and words.endswith("."), words


@pytest.mark.parametrize("number", checking.EXERCISES)
def test_no_exercise_lacks_answers_in_the_table(number):
    table = ANSWERS if number != "4.13" else [("4.13", meant, entry) for entry, meant in DIAGNOSES]
    meant = [words for where, words, _ in table if where == number]
    assert len({words for words in meant if words != "right"}) >= 6
    assert meant.count("right") >= (2 if number != "4.13" else 1)


SMALLEST = {"4.1": "[[0, 1, 1], [1, 1, 0]], mask_id 2", "4.3": "[[[-0.6931, -0.6931], [-1.3863, -0.2877]], ",
            "4.4": "selected counts [1, 3], ", "4.5": "counts [3, 1], ", "4.6": "[[0, 1], [1, 1]]", "4.7": "length 3",
            "4.8": "tokens [[0, 5, 4, 3, 2], ", "4.10": "draws [[0. , 0.1875, ", "4.11": "draws [[0. , 0.1875, "}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", SMALLEST)
def test_the_smallest_example_is_shown(number):
    answers = (outcome(number, namespace(source)["f"])[1] for where, _, source in ANSWERS if where == number)
    assert any(f"input: {SMALLEST[number]}" in words for words in answers)


@pytest.mark.parametrize("instead, given", [("raise KeyError", "KeyError"), ("return np.ones(2)", r"\[1., 1.\]")])
def test_what_came_instead_of_a_refusal_is_shown(instead, given):
    for number, source, refusal in (("4.5", PERPLEXITY, 'raise ValueError("nothing counts")'),
                                    ("4.10", ELIGIBLE, 'raise ValueError("no ordinary token")')):
        words = outcome(number, namespace(but(source, refusal, instead))["f"])[1]
        assert re.search(f"expected: ValueError\n     given: {given}\n", words)


@pytest.mark.parametrize("number", checking.EXERCISES)
def test_a_check_takes_less_than_a_second(number):
    seconds = []
    for _ in range(3):                                  # the answers above made the first call
        start = time.perf_counter()
        outcome(number, solutions()[number])
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1


# --- the notebook ----------------------------------------------------------------------------------------------

def test_scaffolds_as_they_stand_are_not_attempted(capsys):
    scaffolds, calls = cells("04_exercise", "scaffold"), cells("04_exercise", "check")
    assert len(scaffolds) == len(calls) == len(checking.EXERCISES) == 13
    for scaffold, call, (number, check) in zip(scaffolds, calls, checking.EXERCISES.items(), strict=True):
        exec(call, namespace(scaffold))
        assert capsys.readouterr().out == f"{number} {check.title}: not attempted\n"
    assert not (progress.output_folder() / progress.FILE).exists()


def test_sections_to_read_again_exist():
    headings = set(re.findall(r"^#+ (\d\.\d+ .+)$", "\n".join(
        "".join(cell["source"]) for nb in CELLS.values() for cell in nb if cell["cell_type"] == "markdown"), re.M))
    for number, check in checking.EXERCISES.items():
        assert check.read and set(check.read) <= headings, number
        assert f"{number} " in " ".join(heading for heading in headings if heading.startswith(number + " "))


def test_what_is_printed(capsys):
    checks.first_position(namespace(FIRST)["f"])
    checks.first_position(namespace(but(FIRST, "return ", "return -"))["f"])
    right, wrong = capsys.readouterr().out.split("\n", 1)
    assert right.startswith("4.1 Hide the first position: right. Two models agree")
    assert wrong.splitlines() == [
        "4.1 Hide the first position: wrong because the sign is wrong: the loss is minus the log probability",
        "     input: [[0, 1, 1], [1, 1, 0]], mask_id 2", "  expected: 0.46", "     given: -0.46",
        "read again: 1.2 The path forks · 3.3 The moved mask, and an honest look at it"]


# --- hostile and clumsy answers --------------------------------------------------------------------------------

WAYS_TO_FAIL = [
    ("raise KeyError('gone')", "`f` raised KeyError: 'gone'\n   at line 2: raise KeyError('gone')\n     input: "),
    ("return 1 / 0", "`f` raised ZeroDivisionError: division by zero\n   at line 2: return 1 / 0\n"),
    ("sys.exit(3)", "`f` raised SystemExit: 3\n   at line 2: sys.exit(3)\n"),
    ("return f(*a)", "`f` raised RecursionError: maximum recursion depth exceeded"),
    ("g = lambda: [][0]\n    return g()", "`f` raised IndexError: list index out of range\n   at line 2: g = lambda"),
    ("return None", "not attempted"),
    ("print(end='')", "`f` returns None; is a `return` missing?"),
    ("return", "not attempted"),
    ("return 'a string'", "wanted an array or a number for the answer; this is of type str\n"),
    ("return b'bytes'", "of type bytes"),
    ("return {'loss': 1.0}", "of type dict"),
    ("return {1.0}", "of type set"),
    ("return f", "of type function"),
    ("return lambda: 1.0", "of type function"),
    ("return (x for x in [1.0])", "wanted numbers for the answer; this holds object"),
    ("yield 1.0", "wanted numbers for the answer; this holds object"),
    ("return [1.0, None]", "wanted numbers for the answer; this holds object"),
    ("return 1j", "wanted numbers for the answer; this holds complex128"),
    ("return [[1.0], [1.0, 2.0]]", "the answer cannot be read as an array"),
    ("return [1.0]", "wanted one number for the answer\n"),
    ("return torch.ones(1)", "wanted one number for the answer\n"),
    ("return np.zeros((1, 1))", "wanted one number for the answer\n"),
    ("return 1", "the dtype of the answer is not right\n"),
    ("return True", "the dtype of the answer is not right\n"),
    ("return np.broadcast_to(0.0, (10**6, 10**6))", "is (1000000, 1000000), far more than was asked for"),
    ("return torch.zeros(1).expand(10**7)", "is (10000000,), far more than was asked for"),
    ("return float('nan')", "the answer is not finite"),
    ("return np.float16(1)", "does it use its arguments?"),
    ("return jnp.bfloat16(1)", "does it use its arguments?"),
    ("return torch.tensor(1, dtype=torch.bfloat16)", "the answer cannot be read as an array"),
    ("return type('', (), {'__array__': lambda self, *a, **k: 1 / 0})()", "the answer cannot be read as an array"),
    ("return type('', (), {'__array__': lambda self, *a, **k: sys.exit()})()", "cannot be read: SystemExit"),
    ("return type('', (), {'shape': 3})()", "this answer cannot be read: TypeError"),
    ("class Odd(Exception):\n        __str__ = None\n    raise Odd", "this answer cannot be read: TypeError"),
]


@pytest.mark.parametrize("body, meant", WAYS_TO_FAIL)
def test_a_clumsy_answer_is_told_in_words(body, meant, capsys):
    checks.first_position(namespace(f"def f(*a):\n    {body}")["f"])
    out, err = capsys.readouterr()
    assert out.startswith("4.1 Hide the first position: ") and meant in out
    assert "Traceback" not in out and not err


SIGNATURES = ["lambda: 1.0", "lambda params: 1.0", "lambda params, targets, mask_id, more: 1.0", "print", "7", "'text'",
              "[1, 2]", "{1: 2}", "object()", "type('Cls', (), {})", "np.ones(3)", "len", "{'A': np.ones(3)}",
              "type('', (), {'__getattr__': lambda self, name: 1 / 0})()"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SIGNATURES)
def test_what_is_no_such_function_is_wrong_in_words(source, capsys):
    answer = namespace(source)["f"]
    for number, check in checking.EXERCISES.items():
        for answers in [(answer,), (answer, answer), (solutions()[number][0], answer)]:
            check(*answers)
            out, err = capsys.readouterr()
            assert f"{number} {check.title}: wrong because " in out and "Traceback" not in out + err


SAME = [
    "f", "lambda *a: f(*a)", "functools.partial(f)", "functools.wraps(f)(lambda *a: f(*a))",
    "type('Answer', (), {'__call__': lambda self, *a: f(*a)})()", "staticmethod(f)"]


@pytest.mark.parametrize("number", [number for number in checking.EXERCISES if number not in ("4.13", "4.7")])
@pytest.mark.parametrize("wrapping", SAME)
def test_any_callable_will_do(number, wrapping):
    right = next(source for where, meant, source in ANSWERS if (where, meant) == (number, "right"))
    state, words = outcome(number, eval(wrapping, namespace(right)))
    assert state == "right", words


def test_a_jitted_answer_will_do():
    f = namespace("lambda z, targets, selected: (jax.nn.softmax(z) - jax.nn.one_hot(targets, z.shape[-1]))"
                  " * selected[..., None] / selected.sum()")["f"]
    assert outcome("4.3", jax.jit(f))[0] == "right"
    assert outcome("4.3", jax.jit(lambda logits, targets, selected: f(logits, targets, selected) * 2))[0] == "wrong"
    told = outcome("4.3", jax.jit(namespace("def f(logits, targets, selected):\n    return logits[selected]")["f"]))[1]
    assert "NonConcreteBooleanIndexError" in told and "at line 2: return logits[selected]" in told


@pytest.mark.parametrize("scaffold", [
    "def f(*a): ...", "def f(*a):\n    '''What it does.'''", "def f(*a):\n    pass", "lambda *a: ...", "...", "None",
    "''", "jax.jit(lambda a: ...)", "functools.partial(lambda a: None, 1)",
    "type('', (), {'__call__': lambda self, *a: ...})()", "{'A': ..., 'B': None, 'C': ''}", "{}"])
def test_what_is_still_empty_is_not_attempted(scaffold, capsys):
    for number, check in checking.EXERCISES.items():
        check(*[namespace(scaffold)["f"]] * len(solutions()[number]))
        assert capsys.readouterr().out == f"{number} {check.title}: not attempted\n"


def test_half_an_attempt_is_one():
    assert outcome("4.7", (namespace(CAUSAL)["f"][0], namespace("lambda n: ...")["f"]))[0] == "wrong"
    assert checks.causal.outcome(namespace(CAUSAL)["f"][0]) == (
        "wrong", "this answer cannot be read: TypeError\nread again: 1.8 Causal beside masked")


MUTATING = {
    "4.1": ("torch.Tensor.fill_(targets, 0)", "0"), "4.3": ("torch.Tensor.zero_(logits)", "0"),
    "4.4": ("pieces.pop()", "len(pieces)"), "4.5": ("batches[0][0].fill_(1)", "0"),
    "4.6": ("torch.Tensor.zero_(head)", "0"), "4.9": ("tokens.zero_()", "0"), "4.10": ("draws.fill_(0)", "0"),
    "4.11": ("torch.Tensor.fill_(draws, 0)", "0")}


@pytest.mark.parametrize("number", MUTATING)
def test_a_changed_input_is_told(number):
    source = next(source for where, meant, source in ANSWERS if (where, meant) == (number, "right"))
    arguments = re.search(r"def f\((.*)\)", source)[1].replace("=0.15", "")
    for how, state in zip(MUTATING[number], ("wrong", "right"), strict=True):
        names = namespace(source)
        names["g"] = names["f"]
        exec(f"def f({arguments}):\n    out = g({arguments})\n    torch.add\n    {how}\n    return out", names)
        assert outcome(number, names["f"])[0] == state
    names = namespace(f"def f({arguments}):\n    torch\n    {MUTATING[number][0]}\n    return 1.0")
    assert "`f` changes its input, which others still need; work on a copy" in outcome(number, names["f"])[1]


def test_a_numpy_answer_may_work_in_place_on_a_copy():
    f = namespace("""def f(batches):
    total = count = 0
    for nll, scored in batches:
        nll = nll.copy()
        nll[~scored] = 0
        total, count = total + nll.sum(), count + scored.sum()
    return mlm.perplexity(total, count)""")["f"]
    assert outcome("4.5", f)[0] == "right"


def test_views_of_the_input_may_be_returned():
    assert outcome("4.7", namespace(CAUSAL)["f"])[0] == "right"                     # slices of a tensor
    kept = []
    assert outcome("4.7", (lambda tokens: (kept.append(tokens), tokens[..., :-1], tokens[..., 1:])[1:],
                           namespace(CAUSAL)["f"][1]))[0] == "right"
    assert not np.shares_memory(kept[0], kept[1])                                   # each call has arrays of its own


SPOILERS = ["random.seed(0)", "np.random.seed(0)", "torch.manual_seed(0)", "np.random.rand()", "torch.rand(1)",
            "random.random()", "random.seed(1)"]


@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize("number", ["4.1", "4.11", "4.12"])
def test_the_learners_global_generators_stay_as_they_were(number, spoiler):
    source = next(source for where, meant, source in ANSWERS if (where, meant) == (number, "right"))
    names = namespace(source.replace("def f", "def g"))
    exec(f"def f(*a):\n    {spoiler}\n    return g(*a)", names)

    def state():
        return str((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))     # noqa: NPY002
    before = state()
    got, words = outcome(number, names["f"])
    assert state() == before
    assert got == ("wrong" if number == "4.12" else "right") and ("global generator" in words) == (got == "wrong")


def test_a_global_seed_of_the_learner_cannot_make_draws_repeat():
    with checking.global_seeds(3) as used:
        assert not used()
        random.random()
        assert used()
    with checking.global_seeds(3) as used:
        np.random.rand()                                                            # noqa: NPY002
        assert used()
    with checking.global_seeds(3) as used:
        torch.rand(1)
        assert used()


def test_both_frameworks_are_asked_and_the_first_error_is_told():
    f = namespace("def f(params, targets, mask_id):\n    return targets.no_such_thing()")["f"]
    assert "'ArrayImpl' object has no attribute 'no_such_thing'" in outcome("4.1", f)[1].replace("jaxlib._jax.", "")
    f = namespace("def f(params, targets, mask_id):\n    torch.add\n    return targets.no_such_thing()")["f"]
    assert "'Tensor' object has no attribute 'no_such_thing'" in outcome("4.1", f)[1]
    f = namespace("def f(params, targets, mask_id):\n    jnp.add, torch.add\n    return targets.no_such_thing()")["f"]
    assert "'Tensor'" not in outcome("4.1", f)[1]


def test_integers_reach_pytorch_as_it_would_make_them():
    tokens, draws = checking.convert((np.arange(3, dtype=np.int32), [np.ones(2, np.float32)]), "torch")
    assert tokens.dtype == torch.int64 and draws[0].dtype == torch.float32
    assert checking.convert({"a": np.arange(3, dtype=np.int32)}, "jax")["a"].dtype == jnp.int32
    assert isinstance(checking.convert(np.arange(3), "numpy"), np.ndarray)


# --- how an answer is judged -----------------------------------------------------------------------------------

def words_of(*trials, **settings):
    with pytest.raises(checking.Wrong) as told:
        checking.judge(iter(trials), **settings)
    return told.value.words("there")


def test_type_comes_before_shape_before_dtype_before_values():
    checking.judge(iter([(1.0, 1.0, [], "one"), ([1, 2], [1.0, 2.0], [], "two")]))
    assert "cannot be read as an array" in words_of(([[1.0], [1, 2]], [1.0], [], ""))
    assert "the shape of it is not right\n     input: a\n  expected: shape (1,)\n     given: shape (1, 1)" in words_of(
        ([[True]], [1.0], [], "a"), kind="float", what="it")
    assert "the dtype of it is not right\n     input: a\n  expected: float\n     given: bool" in words_of(
        ([True], [2.0], [], "a"), kind="float", what="it")
    assert "the values of it are not right\n     input: a\n  expected: [2.]\n     given: [1.]" in words_of(
        ([1.0], [2.0], [], "a"), kind="float", what="it")


@pytest.mark.parametrize("kind, good, bad", [
    ("float", (np.float32(1), 1.0, jnp.bfloat16(1), torch.ones(())), (1, True)), ("int", (1, np.uint8(1)), (1.0, True)),
    ("float32", (np.float32(1), torch.ones(())), (1.0, np.float16(1))), ("bool", (True, jnp.array(True)), (1, 1.0))])
def test_kinds_of_dtype(kind, good, bad):
    for value in good:
        checking.judge([(value, 1, [], "")], kind=kind)
    for value in bad:
        assert f"expected: {kind}" in words_of((value, 1, [], ""), kind=kind)


def test_a_slip_that_explains_the_most_trials_is_named():
    slips = [("half", 2.0), ("most", 2.0)], [("half", 3.0), ("most", 5.0)], [("half", 9.0), ("most", 6.0)]
    assert "most" in words_of(*[(got, 1.0, s, "") for got, s in zip((2.0, 5.0, 6.0), slips, strict=True)])
    assert "half" in words_of(*[(got, 1.0, s, "") for got, s in zip((2.0, 3.0, 7.0), slips, strict=True)])
    assert "not right" in words_of(*[(got, 1.0, s, "") for got, s in zip((2.0, 7.0, 7.5), slips, strict=True)])
    assert "half" in words_of(*[(got, 1.0, lambda s=s: s, "") for got, s in zip((2.0, 3.0), slips, strict=False)])
    assert "not right" in words_of((8.0, 1.0, [("right there", 7.0)], ""), (7.0, 1.0, [("right there", 7.0)], ""))
    assert "same for every" in words_of((8.0, 1.0, [], ""), (8.0, 2.0, [], ""))
    assert "same for every" not in words_of((8.0, 1.0, [], ""))
    assert "not finite" in words_of((np.inf, 1.0, [], ""))


def test_a_smaller_trial_tells_more_than_an_exception_in_a_later_one():
    def trials(got):
        yield got, 1.0, [], ""
        raise checking.Wrong("later")
    with pytest.raises(checking.Wrong, match="not right"):
        checking.judge(trials(2.0))
    with pytest.raises(checking.Wrong, match="later"):
        checking.judge(trials(1.0))


def test_of_a_large_answer_the_first_wrong_place_is_shown():
    want = np.zeros((3, 20, 2))
    got = want.copy()
    got[1, 7, 1] = 4
    assert "expected: [0., 0.] at [1, 7]\n     given: [0., 4.] at [1, 7]" in words_of((got, want, [], ""))
    want, got = want.reshape(3, 40), got.reshape(3, 40)
    assert "expected: 0. at [1, 15]\n     given: 4. at [1, 15]" in words_of((got, want, [], ""))


def test_nan_where_nan_is_wanted_and_small_differences():
    checking.judge([([np.nan, 1.0], [np.nan, 1.000001], [], "")])
    assert "not right" in words_of(([1.0], [1.001], [], ""))
    assert "not right" in words_of((1.000001, 1.0, [], ""), tolerance=0)


def test_values_are_short():
    assert checking.brief(np.arange(100)).count(",") < 10 and "\n" not in checking.brief(np.ones((20, 20)))
    assert checking.brief({"a": jnp.ones(2)}) == "{a: [1., 1.]}"
    assert checking.brief((len, np.ones(1), {"b": 1})) == "`len`, [1.], {b: 1}"
    assert checking.brief([1, 2]) == "[1, 2]" and checking.brief("as it is") == "as it is"
    assert len(checking.brief(list(range(1000)))) <= 60 and checking.brief(torch.tensor(0.5)) == "0.5"


# --- the faulty set-ups ----------------------------------------------------------------------------------------

@functools.cache
def fired(letter):
    return [audit.__name__ for audit, (_, fires) in broken.AUDITS.items() if fires(audit(broken.SETUPS[letter]))]


EACH_FAULT = {"healthy": [], "leak": ["audit_leak"], "means": ["audit_cut"], "changed": ["audit_shares"],
              "reseeded": ["audit_shares"], "axis": ["audit_first_loss"], "causal": ["audit_future"],
              "frozen": ["audit_epochs"], "special": ["audit_special"]}


@pytest.mark.parametrize("letter", broken.SETUPS)
def test_each_set_up_is_caught_by_its_own_audit_alone(letter):
    assert fired(letter) == EACH_FAULT[broken.fault_of(letter)]
    assert np.isfinite([broken.SETUPS[letter].loss(broken.PARAMS, epoch, pieces)
                        for epoch in (0, 1) for pieces in (1, 4)]).all()


def test_each_fault_has_one_set_up_in_no_telling_order():
    order = [broken.fault_of(letter) for letter in broken.SETUPS]
    assert sorted(order) == sorted(broken.FAULTS) == sorted(EACH_FAULT) and order != list(broken.FAULTS)
    assert {fault for shows, _ in broken.AUDITS.values() for fault in shows} == set(broken.FAULTS) - {"healthy"}


def test_the_two_faults_without_kept_tokens_differ_in_their_shares():
    share = {broken.fault_of(letter): broken.audit_shares(setup) for letter, setup in broken.SETUPS.items()}
    assert share["reseeded"]["mask"] == 1 and 0.85 < share["changed"]["mask"] < 0.95
    for fault, shares in share.items():
        assert shares["mask"] + shares["random"] + shares["kept"] == pytest.approx(1), fault


LETTER = {broken.fault_of(letter): letter for letter in broken.SETUPS}
DIAGNOSES = [                       # (entries that differ, words meant for them)
    ({}, "right"),
    ({"leak": ["leak", broken.audit_leak], "healthy": ("healthy", broken.audit_cut)}, "right"),
    ({"leak": ("healthy", None)}, "is not healthy: one of the audits fires on it"),
    ({"healthy": ("leak", broken.audit_leak)}, "`audit_leak` does not fire here, so it is no evidence"),
    ({"leak": ("causal", broken.audit_future)}, "`audit_future` does not fire here"),
    ({"leak": ("causal", broken.audit_leak)}, "`audit_leak` fires, but not for that fault"),
    ({"leak": ("leak", broken.audit_cut)}, "`audit_cut` does not fire here"),
    ({"changed": ("reseeded", broken.audit_shares)}, "`audit_shares` fires, but its number tells of another fault"),
    ({"reseeded": ("changed", broken.audit_shares)}, "`audit_shares` fires, but its number tells of another fault"),
    ({"leak": ..., "means": None}, "only 7 of 9 set-ups are diagnosed; those are right"),
    ({"axis": ""}, "only 8 of 9 set-ups are diagnosed"),
    ({"leak": "leak"}, "wanted a pair, (fault, audit) or ('healthy', None)"),
    ({"leak": ("leak",)}, "wanted a pair"),
    ({"leak": ("leak", broken.audit_leak, 1)}, "wanted a pair"),
    ({"leak": ("leek", broken.audit_leak)}, "the fault is named by one of healthy, leak, means"),
    ({"leak": (broken.audit_leak, "leak")}, "the fault is named by one of"),
    ({"leak": ("leak", "audit_leak")}, "the second entry is the audit that shows it"),
    ({"leak": ("leak", 1.5)}, "the second entry is the audit that shows it"),
    ({"leak": ("leak", None)}, "the second entry is the audit that shows it"),
    ({"leak": (["leak"], broken.audit_leak)}, "this answer cannot be read: TypeError"),
    ({"leak": np.ones(3)}, "wanted a pair"),
]


@pytest.mark.parametrize("entries, meant", DIAGNOSES)
def test_each_diagnosis_gets_the_words_meant_for_it(entries, meant):
    state, words = checks.diagnosis.outcome(diagnosis(**{LETTER[fault]: said for fault, said in entries.items()}))
    assert (state == "right") == (meant == "right") and (state == "right" or meant in words), words
    if len(entries) == 1 and "set-ups" not in meant and "cannot" not in meant:
        assert words.startswith(LETTER[next(iter(entries))])


def test_a_diagnosis_is_a_dict_with_letters():
    assert "wanted a dict" in checks.diagnosis.outcome(list(diagnosis().items()))[1]
    assert "only 0 of 9" in checks.diagnosis.outcome({"a": ("leak", broken.audit_leak)})[1]
    assert "only 1 of 9" in checks.diagnosis.outcome({"A": diagnosis()["A"]})[1]


# --- questions -------------------------------------------------------------------------------------------------

ENTRIES = {number: questions.unseal(text) for number, text in questions.load().items()}


@pytest.mark.parametrize("number", ENTRIES)
def test_each_question_has_one_right_letter_and_a_reason_for_each(number):
    entry = ENTRIES[number]
    assert list(entry) == list("abcdef"[:len(entry)]) and len(entry) >= 3
    assert [right for right, _ in entry.values()].count(True) == 1
    reasons = [why for _, why in entry.values()]
    assert len(set(reasons)) == len(reasons) and all(len(why) > 20 for why in reasons)


def test_letters_in_the_notebooks_are_those_in_the_file():
    asked = {}
    for name, nb in CELLS.items():
        text = "\n\n".join("".join(cell["source"]) for cell in nb if cell["cell_type"] == "markdown")
        for number, choices in re.findall(r"^\*\*(Q\d\.\d)\*\* (.+?)(?=\n\n|\Z)", text, re.M | re.S):
            assert number[1] == name[1]
            asked[number] = re.findall(r"(?:^|· )([a-z])\) ", choices, re.M)
        code = "\n".join("".join(cell["source"]) for cell in nb if cell["cell_type"] == "code")
        assert re.findall(r'questions\.answer\("(Q\d\.\d)", ""\)', code) == [n for n in asked if n[1] == name[1]]
    assert asked == {number: list(entry) for number, entry in ENTRIES.items()}
    assert all(sum(number[1] == first for number in asked) >= 5 for first in "123")


def test_keys_stand_nowhere_in_readable_form():
    files = [questions.FILE, *NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("lesson/*.py")]
    text = {path: path.read_text(encoding="utf-8") for path in files}
    for entry in ENTRIES.values():
        for _, why in entry.values():
            assert not [path for path, words in text.items() if why in words or why[:40] in words]
    right = {number: next(letter for letter, (is_right, _) in entry.items() if is_right)
             for number, entry in ENTRIES.items()}
    for path, words in text.items():
        told = re.findall(r"(Q\d\.\d)[\"']?[\s:,=)]+[\"']?([a-f])[\"')\s,;]", words)
        assert not [pair for pair in told if right.get(pair[0]) == pair[1]], path
    assert len(set(right.values())) > 2                             # no letter is a good guess


def test_what_an_answer_says(capsys):
    for number, entry in ENTRIES.items():
        for letter, (right, why) in entry.items():
            questions.answer(number, f" {letter.upper()} ")
            assert capsys.readouterr().out == f"{number} {'right' if right else 'wrong'}. {why}\n"
    for letter in ("", " ", None, ...):
        questions.answer("Q1.1", letter)
        assert capsys.readouterr().out == "Q1.1 not attempted\n"
    for letter in ("z", "ab", 1, "a)", ["a"]):
        questions.answer("Q1.1", letter)
        assert re.fullmatch(r"Q1.1 not attempted\. .* is none of a, b, c, d\n", capsys.readouterr().out)
    questions.answer("Q9.9", "a")
    assert capsys.readouterr().out.startswith("Q9.9 is no question; there are Q1.1, ")


def test_questions_are_edited_in_plain_text(tmp_path, monkeypatch, capsys):
    questions.main([])
    plain = tmp_path / "plain.json"
    plain.write_text(capsys.readouterr().out, encoding="utf-8")
    assert json.loads(plain.read_text(encoding="utf-8")) == ENTRIES
    monkeypatch.setattr(questions, "FILE", tmp_path / "questions.json")
    questions.main([str(plain)])
    assert {number: questions.unseal(text) for number, text in questions.load().items()} == ENTRIES


# --- progress --------------------------------------------------------------------------------------------------

@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Progress goes to a fresh folder in each test; the course's own is never touched."""
    monkeypatch.setenv("MLM_OUT", str(tmp_path / "out"))
    return tmp_path / "out"


def kept(folder):
    return json.loads((folder / "progress.json").read_text(encoding="utf-8"))


def test_attempts_are_kept_exercises_and_questions_apart(folder, capsys):
    checks.first_position(lambda *a: ...)
    checks.first_position.outcome(namespace(FIRST)["f"])            # asked without printing, so not kept
    questions.answer("Q1.1", "")
    questions.answer("Q1.1", "z")
    assert not folder.exists()
    checks.first_position(namespace(FIRST)["f"])
    questions.answer("Q1.1", "a")
    assert kept(folder)["exercises"] == {"4.1": {
        "title": "Hide the first position", "state": "right", "words": outcome("4.1", namespace(FIRST)["f"])[1]}}
    assert kept(folder)["questions"] == {"Q1.1": {"state": "wrong", "letter": "a", "words": ENTRIES["Q1.1"]["a"][1]}}
    checks.first_position(lambda *a: 1.0)
    assert kept(folder)["exercises"]["4.1"]["state"] == "wrong"
    assert [path.name for path in folder.iterdir()] == ["progress.json"]
    checks.first_position(lambda *a: ...)                           # taken back
    questions.answer("Q1.1", "")
    assert kept(folder) == {"exercises": {}, "questions": {}, "notes": {}}


def test_notes_are_kept_replaced_and_taken_back(folder, capsys):
    progress.predict("3.1", "")
    assert not folder.exists()                          # an empty text writes nothing
    progress.predict("3.1", "  it stays ")
    progress.explain("3", "because")
    assert kept(folder)["notes"] == {"3.1": {"kind": "prediction", "text": "it stays", "state": "written"},
                                     "3": {"kind": "explanation", "text": "because", "state": "written"}}
    progress.predict("3.1", "")
    assert list(kept(folder)["notes"]) == ["3"]
    assert capsys.readouterr().out == "prediction 3.1 kept\nexplanation 3 kept\n"


def test_the_table_of_notes(folder, capsys):
    wanted = progress.asked()
    assert {"1.1", "1.6b", "2.5", "3.17b", "4.13"} <= wanted.keys() and [
        number for number, kind in wanted.items() if kind == "explanation"] == list("12345")
    progress.predict("1.1", "the second")
    progress.explain("5", "three rows")
    capsys.readouterr()
    progress.show_notes()
    out = capsys.readouterr().out
    number = len(wanted) - 5
    assert f"predictions: 1 of {number} written\n  still empty: 1.2 1.4" in out
    assert out.endswith("4.13\nexplanations: 1 of 5 written\n  still empty: 1 2 3 4\n")


def test_the_table_of_progress(folder, capsys):
    progress.show()
    assert not folder.exists()
    fresh = capsys.readouterr().out
    assert fresh.startswith("exercises: 0 of 13 right\n") and f"questions: 0 of {len(ENTRIES)} right\n" in fresh
    assert fresh.count("not attempted") == 13 and fresh.count(" open") == len(ENTRIES)
    checks.first_position(namespace(FIRST)["f"])
    checks.gradient(lambda *a: 1.0)
    questions.answer("Q2.1", "b")
    capsys.readouterr()
    progress.show()
    shown = capsys.readouterr().out
    assert "exercises: 1 of 13 right" in shown and f"questions: 1 of {len(ENTRIES)} right" in shown
    assert re.search(r"^  4\.1   Hide the first position +right$", shown, re.M)
    assert re.search(r"^  4\.3   Derive the gradient +wrong$", shown, re.M) and "Q2.1 right · Q2.2 open" in shown


@pytest.mark.parametrize("text", [
    "", "{", "[]", "3", "null", '{"exercises": 3}', '{"exercises": {"4.1": 7}}', "\ufffe",
    '{"questions": {"Q1.1": []}, "exercises": []}', '{"exercises": {"4.1": {"state": []}}}'])
def test_a_corrupt_file_of_progress_is_survived(text, folder, capsys):
    folder.mkdir()
    (folder / "progress.json").write_bytes(text.encode("utf-16" if text == "\ufffe" else "utf-8"))
    progress.show()
    assert "exercises: 0 of 13 right" in capsys.readouterr().out
    questions.answer("Q1.1", "b")
    checks.first_position(namespace(FIRST)["f"])
    progress.show()
    out = capsys.readouterr().out
    assert "exercises: 1 of 13 right" in out and f"questions: 1 of {len(ENTRIES)} right" in out


def test_a_folder_that_cannot_be_written_is_survived(folder, capsys):
    folder.write_text("a file where the folder should be", encoding="utf-8")
    checks.first_position(namespace(FIRST)["f"])
    questions.answer("Q1.1", "b")
    out = capsys.readouterr().out
    assert "4.1 Hide the first position: right" in out and "Q1.1 right" in out
    assert out.count("progress.json cannot be written") == 2
