"""The encoder for a corpus: positions, padding, residual blocks, a head that only sees selected positions."""
import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

from .encoder import _as, _check_corrupted
from .masking import _integer, known_values
from .objective import to_torch

SLOWEST = 100       # of the turning pairs: one radian in nearly so many positions: 56 with 8 pairs, a window of 64


def initial_encoder(seed, vocab_size, *, width=64, layers=2, heads=4, framework="torch"):
    """Parameters before training, the same bits in both frameworks.

    Returns:
        A flat dictionary of float32 arrays: `token` `[vocab, width]`, which is embedding and head
        at once, `bias` `[vocab]`, a `norm`, and for each layer `0.`, `1.` ...: `qkv`
        `[width, 3, heads, size]` (whose shape tells the number of heads), `out`, `up`, `down`,
        their biases, and two norms.

    Raises:
        ValueError: if `width` is not `heads` times an even number, or a size is not positive.
    """
    vocab_size, width, layers, heads = (_integer(name, x) for name, x in (
        ("vocab_size", vocab_size), ("width", width), ("layers", layers), ("heads", heads)))
    if min(vocab_size, width, layers, heads) < 1 or width % (2 * heads):
        raise ValueError(f"vocab_size {vocab_size}, width {width}, layers {layers}, heads {heads}: wanted positive "
                         "numbers, and a width that is heads times an even number (positions turn pairs)")
    rng = np.random.default_rng(_integer("seed", seed))

    def normal(*shape, scale):
        return rng.normal(size=shape).astype(np.float32) * np.float32(scale)
    # A token's vector has length 1.
    params = {"token": normal(vocab_size, width, scale=width**-0.5), "bias": np.zeros(vocab_size)}
    for layer in range(layers):
        params |= {f"{layer}.{name}": x for name, x in {
            "qkv": normal(width, 3, heads, width // heads, scale=width**-0.5), "qkv.bias": np.zeros(3 * width),
            "out": normal(width, width, scale=width**-0.5 / 2), "out.bias": np.zeros(width),
            "up": normal(width, 4 * width, scale=width**-0.5), "up.bias": np.zeros(4 * width),
            "down": normal(4 * width, width, scale=width**-0.5 / 4), "down.bias": np.zeros(width)}.items()}
    for norm in ["norm"] + [f"{layer}.norm{i}" for layer in range(layers) for i in (1, 2)]:
        params |= {norm + ".scale": np.ones(width), norm + ".shift": np.zeros(width)}
    return {name: _as(framework, x.astype(np.float32)) for name, x in params.items()}


def encode(params, corrupted, padding, positions=None):
    """Contextual vectors of every position, or of chosen ones, read from both sides.

    Pre-norm residual blocks: each adds to the stream what it makes of the normed stream.
    Positions enter by rotation: query and key are turned by an angle that grows with their
    position, so their product depends on the distance. Padding is never read: a row gives
    the same vectors with more of it, and beside any other rows.

    Args:
        params: as `initial_encoder` gives them, all JAX or all PyTorch.
        corrupted: `[batch, seq]` integers in `[0, vocab)`.
        padding: `[batch, seq]` bool, True where a row has ended; never in a whole row.
        positions: None, or `[n]` integers, indices into the flattened `[batch * seq]`. The last
            block reads all positions, but what it does to each alone is done for these only.

    Returns:
        `[batch, seq, width]`, where what stands at padding means nothing; or `[n, width]`.

    Raises:
        ValueError: for shapes that disagree, an ID without a row in the table, a position out of
            range, or a row of padding alone. Values are not checked while they are traced.
        TypeError: if the IDs are not integers or `padding` is not Boolean.

    References:
        Xiong et al., On layer normalization in the transformer architecture, 2020. https://arxiv.org/abs/2002.04745
        Su et al., RoFormer: rotary position embedding, 2021. https://arxiv.org/abs/2104.09864
    """
    token = params["token"]
    ops = TORCH if isinstance(token, torch.Tensor) else JAX
    _check_corrupted(corrupted, len(token))
    _check_padding(padding, tuple(np.shape(corrupted)))
    if positions is not None:
        _check_positions(positions, math.prod(np.shape(corrupted)))
    corrupted, padding = ops.index(corrupted, token), ops.array(padding, token)
    batch, seq = corrupted.shape
    width, _, heads, size = params["0.qkv"].shape
    cos, sin = (ops.array(x, token).astype(token.dtype) if ops is JAX else ops.array(x, token).to(token.dtype)
                for x in _angles(seq, size))                                # [1, seq, 1, 1, size / 2]
    last = sum(name.endswith(".qkv") for name in params) - 1

    def turned(x):                                                          # [batch, seq, 2, heads, size]
        a, b = x[..., :size // 2], x[..., size // 2:]
        return ops.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    x = token[corrupted]                                                    # [batch, seq, width]
    for layer in range(last + 1):
        p = {name.partition(".")[2]: value for name, value in params.items() if name.startswith(f"{layer}.")}
        h = ops.norm(x, p["norm1.scale"], p["norm1.shift"])
        qkv = ops.affine(h, p["qkv"].reshape(width, -1), p["qkv.bias"]).reshape(batch, seq, 3, heads, size)
        qk, v = turned(qkv[:, :, :2]), qkv[:, :, 2]
        h = ops.attend(qk[:, :, 0], qk[:, :, 1], v, ~padding).reshape(batch, seq, width)
        if layer == last and positions is not None:
            x, h = (y.reshape(-1, width)[ops.index(positions, token)] for y in (x, h))      # [n, width]
        x = x + ops.affine(h, p["out"], p["out.bias"])
        h = ops.norm(x, p["norm2.scale"], p["norm2.shift"])
        x = x + ops.affine(ops.gelu(ops.affine(h, p["up"], p["up.bias"])), p["down"], p["down.bias"])
    return ops.norm(x, params["norm.scale"], params["norm.shift"])


def encoder_logits(params, corrupted, padding, positions):
    """Scores at chosen positions only: with 15 % selected, head and last feed-forward have a seventh of the work.

    Args:
        params, corrupted, padding: as in `encode`.
        positions: `[n]` integers, indices into the flattened `[batch * seq]`: for example
            `np.flatnonzero(selected)`. Inside `jax.jit` their number must be fixed.

    Returns:
        `[n, vocab]` logits, in the order of `positions`.
    """
    hidden = encode(params, corrupted, padding, positions)
    ops = TORCH if isinstance(hidden, torch.Tensor) else JAX
    return ops.affine(hidden, params["token"].T, params["bias"])


@functools.lru_cache
def _angles(seq, size):
    """cos and sin of `position / SLOWEST ** (pair / pairs)`, for `size / 2` pairs."""
    pairs = size // 2
    angle = np.arange(seq)[:, None] * SLOWEST ** -(np.arange(pairs) / pairs)
    return np.cos(angle)[None, :, None, None], np.sin(angle)[None, :, None, None]


def _jax_norm(x, scale, shift):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def _torch_attend(q, k, v, visible):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))                        # [batch, heads, seq, size]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None, None, :]).transpose(1, 2)


# What the two frameworks name differently, or do faster in one piece.
TORCH = types.SimpleNamespace(
    array=lambda x, like: to_torch(x, like.device), concatenate=torch.cat, gelu=functional.gelu, attend=_torch_attend,
    affine=lambda x, weight, bias: functional.linear(x, weight.T, bias),
    index=lambda x, like: to_torch(x, like.device).long(),                  # uint8 would be read as a mask
    norm=lambda x, scale, shift: functional.layer_norm(x, scale.shape, scale, shift))
JAX = types.SimpleNamespace(
    affine=lambda x, weight, bias: x @ weight + bias,
    array=lambda x, like: jnp.asarray(x), index=lambda x, like: jnp.asarray(x), concatenate=jnp.concatenate,
    gelu=functools.partial(jax.nn.gelu, approximate=False), norm=_jax_norm,
    attend=lambda q, k, v, visible: jax.nn.dot_product_attention(q, k, v, mask=visible[:, None, None, :]))


def _check_positions(positions, size):
    known = known_values(positions)
    if known is not None and (known.ndim != 1 or not np.issubdtype(known.dtype, np.integer)
                              or (known < 0).any() or (known >= size).any()):
        raise ValueError(f"positions are {known.dtype} {list(known.shape)}; wanted [n] integers in [0, {size}), "
                         "positions of the flattened batch")


def _check_padding(padding, shape):
    if len(shape) != 2:
        raise ValueError(f"corrupted has shape {list(shape)}; wanted [batch, seq]")
    dtype = getattr(padding, "dtype", None) or np.asarray(padding).dtype
    if dtype not in (torch.bool, np.bool_):
        raise TypeError(f"padding has dtype {dtype}; wanted bool, True where a row has ended")
    if tuple(np.shape(padding)) != shape:
        raise ValueError(f"padding has shape {list(np.shape(padding))}; wanted {list(shape)}, that of corrupted")
    known = known_values(padding)
    if known is not None and known.all(1).any():
        raise ValueError(f"padding covers the whole of row {int(np.flatnonzero(known.all(1))[0])}; "
                         "a row must have a token to attend to")
