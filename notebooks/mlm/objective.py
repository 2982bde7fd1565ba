"""What is scored: negative log likelihood at the selected positions, added before it is divided."""
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .masking import known_values, number


def masked_nll(logits, targets, selected):
    """Sum of -log p(target) over the selected positions, and how many there were.

    Add up both over microbatches and devices, and divide once at the end: then every
    selected token weighs the same. What stands at unselected positions, NaN and labels
    of -100 included, changes neither the sum nor any gradient.

    Args:
        logits: `[..., vocab]` floating, scores before the softmax over `vocab`.
        targets: `[...]` integer, the clean tokens; in `[0, vocab)` where selected.
        selected: `[...]` bool, True where a prediction is scored. Not an attention
            mask: the encoder still reads unselected tokens.

    Returns:
        `(total, count)`: nats, at least in float32, and tokens. With nothing selected
        they are `(0, 0)`: a microbatch may well be empty.

    Raises:
        TypeError: if a dtype is wrong, `selected` not Boolean above all.
        ValueError: if the shapes disagree (they are never broadcast), or a selected
            target lies outside the vocabulary (not checked on traced values).

    Example:
        >>> logits = jnp.log(jnp.array([[0.25, 0.75], [0.5, 0.5]]))
        >>> total, count = masked_nll(logits, [0, 1], [True, False])
        >>> print(f"{total:.4f} nats, {count} token")
        1.3863 nats, 1 token
    """
    if not isinstance(logits, torch.Tensor):
        logits = jnp.asarray(logits)
    _check(logits, targets, selected)
    if isinstance(logits, torch.Tensor):
        targets, selected = (to_torch(x, logits.device) for x in (targets, selected))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # Unselected positions get harmless numbers first: 0 times the gradient of NaN is NaN.
        logp = torch.log_softmax(torch.where(selected[..., None], logits, 0.0), dim=-1)
        index = torch.where(selected, targets, 0).long()
        nll = -torch.gather(logp, -1, index[..., None])[..., 0]
        return torch.where(selected, nll, 0.0).sum(), selected.sum()
    targets, selected = jnp.asarray(targets), jnp.asarray(selected)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    logp = jax.nn.log_softmax(jnp.where(selected[..., None], logits, 0.0), axis=-1)
    index = jnp.where(selected, targets, 0)
    nll = -jnp.take_along_axis(logp, index[..., None], axis=-1)[..., 0]
    return jnp.sum(jnp.where(selected, nll, 0.0)), jnp.sum(selected)


def masked_ce(logits, targets, selected):
    """Mean cross-entropy over the selected positions.

    Its gradient is `(softmax(logits) - onehot(targets)) / count` where selected, and
    exactly zero elsewhere.

    Args:
        logits, targets, selected: as in `masked_nll`.

    Returns:
        A scalar in nats per selected token.

    Raises:
        TypeError, ValueError: as `masked_nll`, and a ValueError if nothing is selected.
        A traced `selected` cannot be looked at: there an empty one gives NaN. Call
        `validate_mask` before the transformed step.

    Example:
        >>> print(f"{masked_ce(jnp.zeros((1, 4, 3)), [[0, 1, 2, 0]], [[True, False, True, False]]):.4f}")
        1.0986
    """
    total, count = masked_nll(logits, targets, selected)
    known = known_values(selected)
    if known is not None and not known.any():
        raise ValueError(f"selected is empty: no position of shape {known.shape} is True, so there is no mean to take")
    return total / count


def perplexity(total, count):
    """`exp(total / count)`: the number of equally likely tokens that would be as surprising.

    Args:
        total: summed negative log likelihood, nats, over the whole corpus.
        count: the number of tokens in that sum.

    Returns:
        A float, 1 or more; infinity where the exponential overflows.

    Raises:
        ValueError: if nothing was counted, or `total` is negative or NaN.
        TypeError: if a value is not a number, or is traced.

    Example:
        >>> round(perplexity(3 * math.log(4), 3), 6)        # p = 1/4 for each of three tokens
        4.0
    """
    for name, x in (("total", total), ("count", count)):
        if known_values(x) is None:
            raise TypeError(f"{name} is traced: return it from the transformed function, then take the perplexity")
    total, count = number("total", total, "nats"), number("count", count, "a number of tokens")
    if not (count > 0 and count.is_integer()):
        raise ValueError(f"count is {count:g}; wanted a whole number of tokens, at least 1")
    if not total >= 0:
        raise ValueError(f"total is {total:g} nats; wanted a sum of -log p, which cannot be negative or NaN")
    try:
        return math.exp(total / count)
    except OverflowError:
        return math.inf


def _check(logits, targets, selected):
    shapes = [_shape(*x) for x in (("logits", logits), ("targets", targets), ("selected", selected))]
    if not shapes[0] or not shapes[0][-1] or not shapes[0][:-1] == shapes[1] == shapes[2]:
        raise ValueError("logits {}, targets {} and selected {} disagree; ".format(*map(list, shapes))
                         + "wanted [..., vocab], [...] and [...]")
    for name, x, kind, wanted in (("logits", logits, "floating", "floating scores"),
                                  ("targets", targets, "integer", "integer IDs"),
                                  ("selected", selected, "bool", "bool")):
        if _kind(x) != kind:
            verb = "has" if name == "selected" else "have"
            raise TypeError(f"{name} {verb} dtype {_dtype(x)}; wanted {wanted}")
    targets, selected = known_values(targets), known_values(selected)
    if targets is None or selected is None:
        return
    wrong = selected & ((targets < 0) | (targets >= shapes[0][-1]))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"targets{list(at)} is {targets[at]} and selected; wanted an ID in [0, {shapes[0][-1]})")


def to_torch(x, device):
    """`x` as a tensor; anything but a tensor is copied, for PyTorch warns about read-only memory."""
    return x.to(device) if isinstance(x, torch.Tensor) else torch.tensor(np.asarray(x), device=device)


def _shape(name, x):
    try:
        return tuple(np.shape(x))
    except ValueError as error:
        raise ValueError(f"{name} must be rectangular: {error}") from None


def _dtype(x):
    return getattr(x, "dtype", None) or np.asarray(x).dtype


def _kind(x):
    if isinstance(x, torch.Tensor):
        if x.dtype == torch.bool:
            return "bool"
        return "floating" if x.is_floating_point() else "complex" if x.is_complex() else "integer"
    for kind, parent in (("bool", jnp.bool_), ("integer", jnp.integer), ("floating", jnp.floating)):
        if jnp.issubdtype(_dtype(x), parent):
            return kind
    return "other"
