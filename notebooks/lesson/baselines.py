"""What a good encoder must beat: token counts, and the two neighbours of a hidden token."""
import numpy as np
import torch

from .corpus import MASK, SPECIAL, VOCAB
from .training import frozen

FOR_WEIGHTS = 20        # every 20th row of the training part is not counted but fits the weights


def unigram(tokens):
    """`[vocab]` shares of the ordinary tokens in rows `[row, seq]`; every token is counted once more than it occurs."""
    counts = np.bincount(np.ravel(tokens), minlength=VOCAB) + 1.0
    counts[:len(SPECIAL)] = 0
    return counts / counts.sum()


def neighbours(tokens):
    """A model of a token given the tokens left and right of it, both as they are read.

    A weighted mean of five distributions: uniform, unigram, after the left neighbour, before the
    right neighbour, between the two. There are four sets of weights, as either neighbour may be a
    mask and then says nothing. They are fitted by expectation maximization (Jelinek and Mercer,
    1980) on rows that are not counted, masked as the rows are on which the model is used.

    Args:
        tokens: `[row, seq]` int64 array, the training part.

    Returns:
        A function of `(targets, corrupted, selected)`, arrays `[row, seq]`, which gives
        -log p(target) at the selected positions, `[n]` nats.
    """
    kept_back = np.arange(len(tokens)) % FOR_WEIGHTS == 0
    counted, share = tokens[~kept_back], unigram(tokens[~kept_back])
    left, middle, right = counted[:, :-2].ravel(), counted[:, 1:-1].ravel(), counted[:, 2:].ravel()
    tables = [_table(context, middle) for context in (left, right, left * VOCAB + right)]

    def shares(targets, corrupted, selected):
        """The five shares of each target, `[5, n]`, and which neighbours are masks, `[n]` 0 to 3."""
        row, column = np.nonzero(selected)
        target, before, after = targets[row, column], corrupted[row, column - 1], corrupted[row, column + 1]
        base = share[target]
        given = [_look_up(table, context, target, base)
                 for table, context in zip(tables, (before, after, before * VOCAB + after), strict=True)]
        five = np.stack([np.full(len(target), 1 / (VOCAB - len(SPECIAL))), base, *given])
        return five, (before == MASK) + 2 * (after == MASK)
    rows = frozen(torch.from_numpy(tokens[kept_back]), np.flatnonzero(kept_back))
    parts, masked = shares(*(x.numpy() for x in rows[:3]))
    weights = np.full((4, 5), 0.2)
    for p in np.unique(masked):
        for _ in range(50):
            posterior = weights[p][:, None] * parts[:, masked == p]
            weights[p] = (posterior / posterior.sum(0)).mean(1)

    def nll(targets, corrupted, selected):
        five, masked = shares(targets, corrupted, selected)
        return -np.log((weights[masked].T * five).sum(0))
    return nll


def _table(context, target):
    pairs, pair_counts = np.unique(context * VOCAB + target, return_counts=True)
    contexts, counts = np.unique(context, return_counts=True)
    return pairs, pair_counts, contexts, counts


def _look_up(table, context, target, otherwise):
    """Count(context, target) / count(context), or `otherwise` where the context never occurred."""
    pairs, pair_counts, contexts, counts = table
    both, alone = _count(pairs, pair_counts, context * VOCAB + target), _count(contexts, counts, context)
    return np.where(alone > 0, both / np.maximum(alone, 1), otherwise)


def _count(keys, counts, asked):
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, counts[at], 0)
