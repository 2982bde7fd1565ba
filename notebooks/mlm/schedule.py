"""Masks for a corpus: only eligible positions, from a key of their own for each seed, epoch and example.

The exercise's draws (masking.py) depend on the shape of the batch. These do not: one example
gets the same mask in any batch, order and padding, in both frameworks, bit for bit.
"""
import jax
import jax.numpy as jnp
import numpy as np
import torch

from .masking import _integer, _values, number

EVALUATION = 2**30                                          # an epoch that no training reaches: frozen masks
BRANCHES = ("not selected", "masked", "random", "kept")     # what the numbers in `branch` mean
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def eligible_positions(tokens, special_ids):
    """True where a position may be selected: everywhere but on special tokens.

    Args:
        tokens: `[batch, seq]` integers.
        special_ids: the IDs of padding, unknown, start, end and mask.

    Returns:
        `[batch, seq]` bool, in the framework of `tokens`.

    Example:
        >>> eligible_positions(jnp.array([[2, 7, 9, 3, 0]]), special_ids=range(5)).tolist()
        [[False, True, True, False, False]]
    """
    values, special = _whole("tokens", tokens, 2), _whole("special_ids", list(special_ids), 1)
    return _like(tokens, ~np.isin(values, special), bool)


def mask_examples(tokens, examples, *, seed, epoch, eligible, mask_id, ordinary_ids, mask_prob=0.15,
                  shares=(0.8, 0.1, 0.1)):
    """BERT's corruption for rows of a corpus, each with keys of its own.

    A row in which nothing is selected is no error: it adds 0 nats and 0 tokens. A batch in
    which nothing is selected has no mean; the caller skips and counts it.

    Args:
        tokens: `[batch, seq]` integers, padding on the right. Not changed.
        examples: `[batch]` integers in `[0, 2**32)`, which rows of the corpus these are.
            The same number gives the same mask, so number every row once.
        seed: integer in `[0, 2**64)`.
        epoch: integer in `[0, 2**30]`. Always 0 gives static masks, a count dynamic ones;
            `EVALUATION` is kept for frozen evaluation masks.
        eligible: `[batch, seq]` bool, where a position may be selected.
        mask_id: the ID that hides a token.
        ordinary_ids: `[n]`, the IDs that may stand in as a random replacement: no special
            ones. All are equally likely (to within n in 2**32).
        mask_prob: chance of an eligible position to be selected, 0 to 1.
        shares: chances of a selected token to be masked, replaced, kept; they add up to 1.

    Returns:
        `(corrupted, selected, branch)`, each `[batch, seq]`, in the framework of `tokens`:
        what the encoder reads, bool, and the number in `BRANCHES` (int8).

    Raises:
        TypeError: for a wrong dtype, or traced values.
        ValueError: for shapes that disagree or values out of range.

    Example:
        >>> tokens = jnp.array([[2, 7, 9, 8, 7, 3, 0, 0]])
        >>> corrupted, selected, branch = mask_examples(
        ...     tokens, [5], seed=0, epoch=0, eligible=eligible_positions(tokens, range(5)),
        ...     mask_id=4, ordinary_ids=range(5, 12), mask_prob=0.5)
        >>> corrupted.tolist(), branch.tolist()
        ([[2, 4, 11, 8, 4, 3, 0, 0]], [[0, 1, 2, 0, 1, 0, 0, 0]])

    References:
        Devlin et al., BERT, 2019, section 3.1. https://arxiv.org/abs/1810.04805
        Liu et al., RoBERTa, 2019, section 4.1, static against dynamic masks. https://arxiv.org/abs/1907.11692
    """
    values = _whole("tokens", tokens, 2)
    examples = _whole("examples", examples, 1)
    if len(examples) != len(values):
        raise ValueError(f"examples has {len(examples)} numbers for {len(values)} rows of tokens; wanted one a row")
    allowed, mask_id = _values("eligible", eligible), _integer("mask_id", mask_id)
    if allowed.dtype != np.bool_ or allowed.shape != values.shape:
        raise ValueError(f"eligible is {allowed.dtype} {list(allowed.shape)}; wanted bool {list(values.shape)}, "
                         "the shape of tokens")
    ordinary = _whole("ordinary_ids", ordinary_ids if hasattr(ordinary_ids, "shape") else list(ordinary_ids), 1)
    if mask_id in ordinary:
        raise ValueError(f"ordinary_ids holds {mask_id}, the mask ID; wanted ordinary tokens only")
    out_dtype = values.dtype if isinstance(tokens, torch.Tensor) else np.dtype(jnp.asarray(values[:0]).dtype)
    largest = np.iinfo(out_dtype).max       # JAX holds int64 as int32 and wraps around without a word
    for name, x in (("tokens", values), ("mask_id", np.array(mask_id)), ("ordinary_ids", ordinary)):
        if x.min() < 0 or x.max() > largest:
            raise ValueError(f"{name} reaches {x.min() if x.min() < 0 else x.max()}; wanted 0 to {largest}, "
                             f"what tokens of dtype {out_dtype} can hold")
    mask_prob = number("mask_prob", mask_prob, "a number from 0 to 1")
    if not 0 <= mask_prob <= 1:
        raise ValueError(f"mask_prob is {mask_prob}; wanted a number from 0 to 1")
    shares = [number("shares", share, "three numbers") for share in shares]
    if len(shares) != 3 or not min(shares) >= 0 or not abs(sum(shares) - 1) < 1e-9:
        raise ValueError(f"shares are {tuple(shares)}; wanted three numbers from 0 to 1 that add up to 1")

    select, corrupt, replacement = example_draws(seed, epoch, examples, values.shape[1])    # [batch, seq], each
    selected = allowed & (_uniform(select) < mask_prob)
    branch = selected * np.digitize(_uniform(corrupt), np.float32([0, shares[0], shares[0] + shares[1]]))
    index = replacement.astype(np.uint64) * np.uint64(len(ordinary)) >> np.uint64(32)       # in [0, n)
    corrupted = np.select([branch == 1, branch == 2], [mask_id, ordinary[index]], values)
    return _like(tokens, corrupted, out_dtype), _like(tokens, selected, bool), _like(tokens, branch, np.int8)


def example_draws(seed, epoch, examples, length):
    """Random words for (select, corrupt, replacement): `[3, batch, length]` uint32.

    The key of a draw is threefry(seed, [1 + 3 epoch + draw, example]). With a fixed seed threefry
    is a bijection, so no two such keys are equal; nor is any equal to a key of the exercise,
    which `split` makes from counters that begin with 0. Word t of a row is threefry(key, [0, t]),
    which is what `jax.random.bits(key, (length,))` gives.
    """
    seed, epoch = _integer("seed", seed), _integer("epoch", epoch)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; wanted 0 to 2**64 - 1")
    if not 0 <= epoch <= EVALUATION:
        raise ValueError(f"epoch is {epoch}; wanted 0 to {EVALUATION}")
    examples = np.asarray(examples)
    if examples.min() < 0 or examples.max() >= 2**32:
        raise ValueError(f"examples reach from {examples.min()} to {examples.max()}; wanted numbers in [0, 2**32)")
    first = np.arange(3)[:, None] + 1 + 3 * epoch                                           # [3, 1]
    keys = threefry_2x32((seed >> 32, seed % 2**32), (first, examples[None]))               # two of [3, batch]
    words = threefry_2x32([key[..., None] for key in keys], (0, np.arange(length)))         # two of [3, batch, length]
    return words[0] ^ words[1]


def threefry_2x32(key, counter):
    """The cipher behind JAX's random numbers, in NumPy: 20 rounds of add, rotate, exclusive or.

    Args:
        key, counter: pairs of whole numbers or arrays in `[0, 2**32)`, which broadcast.

    Returns:
        A pair of uint32 arrays, at least 1-D.

    References:
        Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011. https://doi.org/10.1145/2063384.2063405
    """
    (k0, k1), (x0, x1) = ([np.atleast_1d(np.asarray(word, np.uint32)) for word in pair] for pair in (key, counter))
    schedule = k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA)
    x0, x1 = x0 + k0, x1 + k1                               # uint32 wraps around, as it should
    for block in range(5):
        for turn in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(turn) | x1 >> np.uint32(32 - turn)) ^ x0
        x0 = x0 + schedule[(block + 1) % 3]
        x1 = x1 + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return x0, x1


def _uniform(words):
    """The upper 23 bits as a float32 in [0, 1), as `jax.random.uniform` does."""
    return (words >> np.uint32(9)).astype(np.float32) * np.float32(2**-23)


def _whole(name, x, dimensions):
    values = _values(name, x)
    if values.ndim != dimensions or 0 in values.shape:
        wanted = "[batch, seq]" if dimensions == 2 else "one dimension"
        raise ValueError(f"{name} has shape {list(values.shape)}; wanted {wanted}, nothing empty")
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"{name} has dtype {values.dtype}; wanted integers")
    return values


def _like(tokens, values, dtype):
    """`values` in the framework and on the device of `tokens`."""
    values = values.astype(dtype)
    if isinstance(tokens, torch.Tensor):
        return torch.from_numpy(values).to(tokens.device)
    out = jnp.asarray(values)
    return jax.device_put(out, tokens.sharding) if isinstance(tokens, jax.Array) else out
