"""What predicts: one attention head without positions, and the lesson's three-row fixture."""
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .masking import _plain_jax, corrupt_tokens, known_values, threefry_key
from .objective import _dtype, _kind, _shape, masked_ce, to_torch

MASK_ID, CLASSES, WIDTH = 3, 3, 6       # IDs 0, 1, 2 are classes; 3 only ever stands in the input
UPDATES, RATE, SEED = 100, 0.4, 7


def mlm_logits(params, corrupted):
    """Scores for every class at every position, read from both sides.

    Args:
        params: `{"embedding": [ids, width], "head": [width, classes]}`, both JAX or
            both PyTorch. `ids` counts the mask ID, `classes` does not.
        corrupted: `[..., seq]` integers in `[0, ids)`. Never the clean targets: they
            would hand the encoder the answer.

    Returns:
        `[..., seq, classes]` logits.

    Raises:
        ValueError: if there is no `seq` axis, or an ID lies outside the table (JAX alone
            would silently take the last row). IDs are not checked while they are traced.
        TypeError: if the IDs are not integers.

    Example:
        >>> mlm_logits(initial_params(), jnp.array([[0, 3, 0, 0]])).shape
        (1, 4, 3)
    """
    embedding, head = params["embedding"], params["head"]
    in_torch = isinstance(embedding, torch.Tensor)
    _check_corrupted(corrupted, len(embedding))
    corrupted = to_torch(corrupted, embedding.device).long() if in_torch else jnp.asarray(corrupted)
    softmax = torch.softmax if in_torch else jax.nn.softmax
    h = embedding[corrupted]                                # [..., seq, width]
    scores = h @ h.mT / math.sqrt(h.shape[-1])              # [..., query, key]; no causal triangle
    context = softmax(scores, -1) @ h                       # [..., seq, width]
    return context @ head                                   # [..., seq, classes]


def fixture_batch(framework="jax"):
    """The lesson's batch: three rows that repeat one token, the second position hidden.

    Returns:
        `(targets, selected, corrupted)`, each `[3, 4]`.

    Example:
        >>> fixture_batch()[2].tolist()
        [[0, 3, 0, 0], [1, 3, 1, 1], [2, 3, 2, 2]]
    """
    targets = np.repeat(np.arange(3, dtype=np.int32)[:, None], 4, axis=1)
    selected = np.tile([False, True, False, False], (3, 1))
    targets, selected = (_as(framework, x) for x in (targets, selected))
    return targets, selected, corrupt_tokens(targets, selected, MASK_ID)


def initial_params(framework="jax"):
    """The lesson's parameters before training: embedding from JAX's key 7, head zero.

    Returns:
        `{"embedding": [4, 6], "head": [6, 3]}`, float32, the same bits in both frameworks.
    """
    with _plain_jax():
        embedding = jax.random.normal(threefry_key(SEED), (CLASSES + 1, WIDTH), dtype=jnp.float32) * 0.2
    return {"embedding": _as(framework, embedding),
            "head": _as(framework, np.zeros((WIDTH, CLASSES), np.float32))}


def train_fixture(framework="jax"):
    """The lesson's training in one call: 100 updates of plain gradient descent at rate 0.4.

    Returns:
        `(params, history)`: the parameters after the last update, and 100 losses in
        nats, each measured before its update.
    """
    targets, selected, corrupted = fixture_batch(framework)
    params, history = initial_params(framework), []

    def loss(params):
        return masked_ce(mlm_logits(params, corrupted), targets, selected)

    def torch_step(params):
        leaves = {name: x.detach().requires_grad_() for name, x in params.items()}
        with torch.enable_grad():               # whatever the caller has switched off
            value = loss(leaves)
        return value.detach(), dict(zip(leaves, torch.autograd.grad(value, leaves.values()), strict=True))

    step = jax.jit(jax.value_and_grad(loss)) if framework == "jax" else torch_step
    for _ in range(UPDATES):
        value, gradient = step(params)
        history.append(float(value))
        params = {name: params[name] - RATE * gradient[name] for name in params}
    return params, history


def _as(framework, x):
    if framework not in ("jax", "torch"):
        raise ValueError(f"framework is {framework!r}; wanted 'jax' or 'torch'")
    return jnp.asarray(x) if framework == "jax" else torch.tensor(np.asarray(x))


def _check_corrupted(corrupted, ids):
    if not _shape("corrupted", corrupted):
        raise ValueError("corrupted has shape (); wanted [..., seq]")
    if _kind(corrupted) != "integer":
        raise TypeError(f"corrupted has dtype {_dtype(corrupted)}; wanted integer IDs")
    values = known_values(corrupted)
    if values is None:
        return
    wrong = (values < 0) | (values >= ids)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"corrupted{list(at)} is {values[at]}; wanted an ID in [0, {ids}), the rows of the embedding")
