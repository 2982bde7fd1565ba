"""Which positions are predicted, and what the encoder reads there.

Three objects, three names: `targets` are the clean tokens, `selected` is True where
a prediction is scored, `corrupted` is what the encoder reads.
"""
import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import torch

LARGEST_VOCABULARY = 2**24      # from 2**24 + 1 on, float32 no longer holds every ID


def apply_bert_masking(tokens, vocab_size, mask_token_id, seed, mask_prob=0.15):
    """BERT's corruption with exact, repeatable draws.

    Each position is selected when its own draw is below `mask_prob`. A selected token
    becomes the mask ID (8 in 10), a random ID (1 in 10), or stays as it is (1 in 10).
    These are probabilities, not quotas, and every position is eligible.

    Args:
        tokens: `[batch, seq]` whole numbers in `[0, vocab_size)`; neither size may be 0.
            A `torch.Tensor` uses the PyTorch stream; a JAX or NumPy array, or nested
            lists, the JAX stream. The two streams differ.
        vocab_size: number of IDs, 1 to 2**24.
        mask_token_id: the ID that hides a token, in `[0, vocab_size)`.
        seed: integer, in `[-2**63, 2**63)` for JAX, `[-2**63, 2**64)` for PyTorch. Both
            streams use its low 32 bits, so 5 and 2**32 + 5 draw the same.
        mask_prob: chance of being selected, 0 to 1.

    Returns:
        `[batch, seq, 2]` float32 in the framework of `tokens` and on its device.
        Channel 0 is the corrupted ID, channel 1 is 1.0 where selected, else 0.0.

    Raises:
        TypeError: for Booleans, text, or traced values; for a `seed`, `vocab_size` or
            `mask_token_id` that is not an integer.
        ValueError: for a wrong shape, an ID that is out of range or not whole, or a
            setting outside its range.

    Example:
        >>> out = apply_bert_masking([[7, 7, 7, 7]], vocab_size=11, mask_token_id=10, seed=3, mask_prob=0.5)
        >>> out[0].tolist()
        [[10.0, 1.0], [7.0, 0.0], [7.0, 1.0], [7.0, 0.0]]

    References:
        Devlin et al., BERT, 2019, section 3.1. https://arxiv.org/abs/1810.04805
    """
    vocab_size = _integer("vocab_size", vocab_size)
    if not 1 <= vocab_size <= LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size is {vocab_size}; wanted 1 to {LARGEST_VOCABULARY} "
                         "(float32 holds every ID up to there)")
    mask_token_id = _integer("mask_token_id", mask_token_id)
    if not 0 <= mask_token_id < vocab_size:
        raise ValueError(f"mask_token_id is {mask_token_id}; wanted an ID in [0, {vocab_size})")
    mask_prob = number("mask_prob", mask_prob, "a number from 0 to 1")
    if not 0 <= mask_prob <= 1:                                     # NaN fails this too
        raise ValueError(f"mask_prob is {mask_prob}; wanted a number from 0 to 1")
    values = _values("tokens", tokens)
    _check_ids("tokens", values, vocab_size)

    if isinstance(tokens, torch.Tensor):
        select, corrupt, replacement = (
            draw.to(tokens.device) for draw in draws_torch(values.shape, vocab_size, seed))
        tokens = tokens.to(torch.int64)
        corrupted, selected = _bert_policy(torch.where, tokens, select, corrupt, replacement,
                                           mask_token_id, mask_prob)
        return torch.stack([corrupted, selected], dim=-1).to(torch.float32)
    with _plain_jax():
        tokens = tokens.astype(jnp.int32) if isinstance(tokens, jax.Array) else jnp.asarray(values.astype(np.int32))
        corrupted, selected = _bert_policy(jnp.where, tokens, *draws_jax(values.shape, vocab_size, seed),
                                           mask_token_id, mask_prob)
        return jnp.stack([corrupted.astype(jnp.float32), selected.astype(jnp.float32)], axis=-1)


def draws_torch(shape, vocab_size, seed):
    """The exercise's three full-size draws in PyTorch: `(select, corrupt, replacement)`.

    One CPU generator, three draws in this order. Drawing only where it is needed, or on
    another device, would give other numbers.
    """
    seed = _integer("seed", seed)
    if not -2**63 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; PyTorch takes -2**63 to 2**64 - 1")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    select = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
    corrupt = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
    replacement = torch.randint(0, vocab_size, shape, generator=generator, device="cpu")
    return select, corrupt, replacement


def draws_jax(shape, vocab_size, seed):
    """The exercise's three full-size draws in JAX: `(select, corrupt, replacement)`.

    The same whatever JAX's configuration says: see `threefry_key`.
    """
    with _plain_jax():
        _, k1, k2, k3 = jax.random.split(threefry_key(seed), 4)
        select = jax.random.uniform(k1, shape, dtype=jnp.float32)
        corrupt = jax.random.uniform(k2, shape, dtype=jnp.float32)
        replacement = jax.random.randint(k3, shape, 0, vocab_size, dtype=jnp.int32)
    return select, corrupt, replacement


def threefry_key(seed):
    """The key that `jax.random.PRNGKey(seed)` gives in JAX's default configuration.

    There it is the pair of words `[0, seed mod 2**32]`. Written out, it no longer depends
    on the default generator, on x64 mode, or on a seed offset.
    """
    seed = _integer("seed", seed)
    if not -2**63 <= seed < 2**63:
        raise ValueError(f"seed is {seed}; JAX takes -2**63 to 2**63 - 1")
    with _plain_jax():
        return jax.random.wrap_key_data(jnp.array([0, seed % 2**32], jnp.uint32), impl="threefry2x32")


def _bert_policy(where, tokens, select, corrupt, replacement, mask_token_id, mask_prob):
    """The policy table, once for both frameworks: `where` is torch.where or jnp.where."""
    selected = select < mask_prob                                   # strict: 0 selects nothing
    changed = where(corrupt < 0.8, mask_token_id,
                    where(corrupt < 0.9, replacement, tokens))      # may equal the original
    return where(selected, changed, tokens), selected


def corrupt_tokens(tokens, selected, mask_id):
    """Hide every selected token behind the mask ID.

    Args:
        tokens: `[batch, seq]` integers, or any other shape.
        selected: Boolean, the shape of `tokens`, with at least one True.
        mask_id: a non-negative integer that the dtype of `tokens` can hold.

    Returns:
        An array or tensor like `tokens`, which stays as it was.

    Raises:
        TypeError: if `tokens` or `mask_id` is not integer, or a value is traced.
        ValueError: if the mask fails `validate_mask`, or `mask_id` does not fit.

    Example:
        >>> corrupt_tokens([[0, 0, 0, 0]], [[False, True, False, False]], 3).tolist()
        [[0, 3, 0, 0]]
    """
    values = _values("tokens", tokens)
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"tokens have dtype {values.dtype}; wanted integer IDs")
    validate_mask(selected, values.shape)
    mask_id, selected = _integer("mask_id", mask_id), _values("selected", selected)
    if isinstance(tokens, torch.Tensor):
        selected = torch.tensor(selected, device=tokens.device)
        largest, where = torch.iinfo(tokens.dtype).max, torch.where
    else:
        tokens = jnp.asarray(tokens if isinstance(tokens, jax.Array) else values)
        if (np.asarray(tokens) != values).any():                    # JAX wraps int64 around without a word
            raise ValueError(f"tokens of dtype {values.dtype} reach {values.max()}; JAX holds them as {tokens.dtype}")
        largest, where = jnp.iinfo(tokens.dtype).max, jnp.where
    if not 0 <= mask_id <= largest:
        raise ValueError(f"mask_id is {mask_id}; wanted 0 to {largest}, what tokens of dtype {tokens.dtype} can hold")
    return where(selected, mask_id, tokens)


def validate_mask(selected, shape):
    """Refuse a selection that would give an undefined or a silently wrong loss.

    Args:
        selected: a Boolean array or tensor, not traced.
        shape: the shape that it must have, that of the targets.

    Raises:
        TypeError: if `selected` is traced. Call this before the transformed step.
        ValueError: if dtype or shape is wrong, or nothing is selected.

    Example:
        >>> validate_mask([[False, False]], (1, 2))
        Traceback (most recent call last):
        ...
        ValueError: selected is empty: no position of shape (1, 2) is True; wanted at least one
    """
    values, shape = _values("selected", selected), tuple(shape)
    if values.dtype != np.bool_:
        raise ValueError(f"selected has dtype {values.dtype}; wanted bool (1.0 and 0.0 are not a mask)")
    if values.shape != shape:
        raise ValueError(f"selected has shape {values.shape}; wanted {shape}, the shape of the targets")
    if not values.any():
        raise ValueError(f"selected is empty: no position of shape {shape} is True; wanted at least one")


def known_values(x):
    """`x` as a NumPy array on the host, or None while JAX or PyTorch traces it."""
    if isinstance(x, jax.core.Tracer) or torch.compiler.is_compiling():
        return None
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        try:
            return (x.double() if x.is_floating_point() else x).numpy()     # NumPy has no bfloat16
        except RuntimeError:                                                # inside torch.func.vmap
            return None
    return np.asarray(x)


def _values(name, x):
    try:
        values = known_values(x)
    except ValueError as error:
        raise ValueError(f"{name} must be rectangular: {error}") from None
    except (TypeError, NotImplementedError) as error:               # sparse or meta tensors, JAX keys
        raise TypeError(f"{name} cannot be read: {error}") from None
    if values is None:
        raise TypeError(f"{name} is traced, so its values cannot be checked: call this outside jit, grad, vmap "
                        "or torch.compile, before the step that they transform")
    return values


def _check_ids(name, values, size):
    """Whole numbers in `[0, size)`, in two dimensions, at least one of them."""
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"{name} has shape {values.shape}; wanted [batch, seq], neither of them 0")
    if not (jnp.issubdtype(values.dtype, jnp.integer) or jnp.issubdtype(values.dtype, jnp.floating)):
        raise TypeError(f"{name} has dtype {values.dtype}; wanted whole numbers")
    numbers = values.astype(np.float64)
    for wrong, wanted in ((numbers != np.floor(numbers), "a whole number"),     # NaN differs from itself
                          ((numbers < 0) | (numbers >= size), f"an ID in [0, {size})")):
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise ValueError(f"{name}{list(at)} is {values[at]}; wanted {wanted}")


def _scalar(name, x):
    return _values(name, x)[()] if isinstance(x, (np.ndarray, jax.Array, torch.Tensor)) else x


def _integer(name, x):
    x = _scalar(name, x)
    if isinstance(x, bool) or not isinstance(x, (int, np.integer)):
        raise TypeError(f"{name} is {x!r}; wanted an integer")
    return int(x)


def number(name, x, wanted):
    """`x` as a float; Booleans and text are refused, though float() takes them."""
    x = _scalar(name, x)
    try:
        if isinstance(x, (bool, np.bool_, str, bytes)):
            raise TypeError
        return float(x)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {x!r}; wanted {wanted}") from None


@contextlib.contextmanager
def _plain_jax():
    """JAX's own defaults for whatever could change the draws or forbid them."""
    with (jax.threefry_partitionable(True), jax.enable_x64(False),
          jax.numpy_dtype_promotion("standard"), jax.transfer_guard("allow")):
        yield
