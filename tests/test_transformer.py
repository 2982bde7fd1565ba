"""The encoder for a corpus: both frameworks against NumPy loops in float64 that never see a padded position."""
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from refusals import refuses

from mlm import masked_nll
from mlm.schedule import eligible_positions, mask_examples
from mlm.transformer import encode, encoder_logits, initial_encoder

FRAMEWORKS = ("jax", "torch")
VOCAB, WIDTH, LAYERS, HEADS = 13, 16, 2, 2
IDS = np.array([[2, 7, 4, 9, 11, 3, 0, 0], [2, 12, 5, 4, 6, 8, 10, 3], [2, 3, 0, 0, 0, 0, 0, 0]])      # 0 is padding
PADDING = IDS == 0
REAL = np.flatnonzero(~PADDING)
POSITIONS, TARGETS = np.array([2, 11, 4, 13, 8]), np.array([7, 5, 11, 10, 2])       # in no order


pytestmark = pytest.mark.usefixtures("one_thread")


# --- references, written without the helper ---------------------------------------------------------------------

erf = np.vectorize(math.erf)


def norm(x, scale, shift):
    return (x - x.mean()) / math.sqrt(x.var() + 1e-5) * scale + shift


def turned(vector, position):
    """Pair i is a complex number, turned by position / 100 ** (i / pairs) radians."""
    pairs = len(vector) // 2
    z = (vector[:pairs] + 1j * vector[pairs:]) * np.exp(1j * position * np.array([100 ** (-i / pairs)
                                                                                  for i in range(pairs)]))
    return np.concatenate([z.real, z.imag])


def reference(params, corrupted, padding):
    """One position at a time, in float64. Padding is left out, not masked; its vectors stay 0."""
    p = {name: np.asarray(x, np.float64) for name, x in params.items()}
    width, _, heads, _ = p["0.qkv"].shape
    out = np.zeros((*corrupted.shape, width))
    for row, ids in enumerate(corrupted):
        places = [t for t in range(len(ids)) if not padding[row][t]]
        x = [p["token"][ids[t]] for t in places]
        for layer in range(len([name for name in p if name[1:] == ".qkv"])):
            def w(name, layer=layer):
                return p[f"{layer}.{name}"]
            normed = [norm(h, w("norm1.scale"), w("norm1.shift")) for h in x]
            attended = [[] for _ in x]
            for head in range(heads):
                q, k, v = ([w("qkv")[:, i, head].T @ h + w("qkv.bias").reshape(3, heads, -1)[i, head] for h in normed]
                           for i in range(3))
                q, k = ([turned(a, t) for a, t in zip(b, places, strict=True)] for b in (q, k))
                for i in range(len(x)):
                    weights = np.exp([q[i] @ key / math.sqrt(len(key)) for key in k])
                    attended[i].append(weights / weights.sum() @ np.array(v))
            for i, heard in enumerate(attended):
                x[i] = x[i] + np.concatenate(heard) @ w("out") + w("out.bias")
                up = norm(x[i], w("norm2.scale"), w("norm2.shift")) @ w("up") + w("up.bias")
                x[i] = x[i] + (up * (1 + erf(up / math.sqrt(2))) / 2) @ w("down") + w("down.bias")
        for t, h in zip(places, x, strict=True):
            out[row, t] = norm(h, p["norm.scale"], p["norm.shift"])
    return out


def reference_nll(params, corrupted, padding, positions, targets):
    hidden = reference(params, corrupted, padding).reshape(-1, WIDTH)
    token, bias = (np.asarray(params[name], np.float64) for name in ("token", "bias"))
    scores = [token @ hidden[at] + bias for at in positions]
    return sum(np.log(np.exp(z).sum()) - z[target] for z, target in zip(scores, targets, strict=True))


@functools.cache
def start(seed=0):
    """Parameters of which none is 0 or 1, so that each matters, as NumPy arrays."""
    rng = np.random.default_rng(100 + seed)
    return {name: x.numpy() + (rng.normal(size=x.shape) * 0.3).astype(np.float32) for name, x in initial_encoder(
        seed, VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS).items()}


def params_in(framework, dtype=torch.float32):
    return {name: jnp.asarray(x) if framework == "jax" else torch.tensor(x, dtype=dtype) for name, x in start().items()}


def run(framework, function, *inputs):
    """With start()'s parameters, jitted where that can be, as a NumPy array."""
    function = jitted(function) if framework == "jax" else function
    return np.asarray(function(params_in(framework), *inputs))


jitted = functools.cache(jax.jit)           # for five positions in three rows of eight, one compilation


def close(got, wanted, tolerance=1e-5):
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


# --- values -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_hidden_vectors_and_logits(framework):
    wanted = reference(start(), IDS, PADDING)
    hidden = run(framework, encode, IDS, PADDING)
    assert hidden.shape == (3, 8, WIDTH) and hidden.dtype == np.float32
    close(hidden[~PADDING], wanted[~PADDING])
    logits = run(framework, encoder_logits, IDS, PADDING, POSITIONS)
    assert logits.shape == (5, VOCAB) and logits.dtype == np.float32
    close(logits, wanted.reshape(-1, WIDTH)[POSITIONS] @ start()["token"].T + start()["bias"])


def test_float64_to_ten_digits():
    params = params_in("torch", torch.float64)
    hidden = encode(params, IDS, PADDING)
    assert hidden.dtype == torch.float64
    wanted = reference(start(), IDS, PADDING)
    close(hidden.numpy()[~PADDING], wanted[~PADDING], 1e-10)
    close(encoder_logits(params, IDS, PADDING, REAL).numpy(),
          wanted[~PADDING] @ start()["token"].T.astype(float) + start()["bias"], 1e-10)


def test_x64_changes_no_dtype():
    with jax.enable_x64(True):
        params = {name: jnp.asarray(x, float) for name, x in start().items()}
        hidden = jax.jit(encode)(params, IDS, PADDING)
        kept = jax.eval_shape(encode, params_in("jax"), IDS, PADDING)           # positions do not widen anything
    assert hidden.dtype == np.float64 and kept.dtype == np.float32
    close(np.asarray(hidden)[~PADDING], reference(start(), IDS, PADDING)[~PADDING])     # JAX's softmax is in float32


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_any_number_of_heads_and_layers(heads):
    params = initial_encoder(3, VOCAB, width=16, layers=3, heads=heads)
    wanted = reference(params, IDS, PADDING)
    close(encode(params, IDS, PADDING).numpy()[~PADDING], wanted[~PADDING])


def test_layer_11_is_not_layer_1():
    params = initial_encoder(3, VOCAB, width=4, layers=12, heads=1)
    before = encode(params, IDS, PADDING).numpy()[~PADDING]
    for layer in range(12):
        other = encode(params | {f"{layer}.down.bias": torch.arange(4.0)}, IDS, PADDING).numpy()[~PADDING]
        assert abs(other - before).max() > 1e-2, layer


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_logits_at_positions_are_the_full_head_gathered_there(framework):
    hidden = run(framework, encode, IDS, PADDING)
    full = (hidden @ start()["token"].T + start()["bias"]).reshape(-1, VOCAB)
    for positions in (POSITIONS, [0], [15, 15, 2], np.arange(24)):
        close(encoder_logits(params_in(framework), IDS, PADDING, positions), full[np.array(positions)])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_position_gives_no_logits(framework):
    nothing = np.flatnonzero(np.zeros(24, bool))
    logits = encoder_logits(params_in(framework), IDS, PADDING, nothing)
    assert tuple(logits.shape) == (0, VOCAB)
    assert [float(x) for x in masked_nll(logits, nothing, nothing > 0)] == [0, 0]


@pytest.mark.parametrize("kind", [np.ndarray.tolist, np.int32, np.int64, jnp.asarray, torch.tensor],
                         ids=["lists", "int32", "int64", "jax", "torch"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_input_of_every_kind(framework, kind):
    got = encoder_logits(params_in(framework), kind(IDS), PADDING.tolist() if kind is np.ndarray.tolist else (
        torch.tensor if kind is torch.tensor else jnp.asarray)(PADDING), kind(POSITIONS))
    assert isinstance(got, jax.Array if framework == "jax" else torch.Tensor)
    close(np.asarray(got), run(framework, encoder_logits, IDS, PADDING, POSITIONS))


def test_jit_compiles_once_for_a_number_of_positions():
    for positions in (POSITIONS, POSITIONS[::-1].copy(), POSITIONS + 1):
        close(run("jax", encoder_logits, IDS, PADDING, positions),
              run("torch", encoder_logits, IDS, PADDING, positions))
    assert jitted(encoder_logits)._cache_size() == 1


# --- gradients ----------------------------------------------------------------------------------------------------

def loss(params, corrupted, padding, positions, targets):
    return masked_nll(encoder_logits(params, corrupted, padding, positions), targets, targets >= 0)[0]


def torch_gradients(function, params):
    leaves = {name: x.detach().requires_grad_() for name, x in params.items()}
    gradients = torch.autograd.grad(function(leaves), leaves.values(), allow_unused=True)
    return dict(zip(leaves, gradients, strict=True))


def test_gradients_of_every_parameter_agree():
    inputs = IDS, PADDING, POSITIONS, TARGETS
    in_jax = jax.jit(jax.grad(loss))(params_in("jax"), *inputs)
    in_torch = torch_gradients(lambda p: loss(p, *inputs), params_in("torch"))
    assert in_jax.keys() == in_torch.keys() and len(in_jax) == 4 + 12 * LAYERS
    for name, gradient in in_torch.items():
        scale = float(abs(gradient).max())
        assert scale > 1e-3, name                               # every parameter takes part
        np.testing.assert_allclose(np.asarray(in_jax[name]), gradient.numpy(), rtol=1e-5, atol=1e-5 * max(scale, 1))


def test_gradients_against_differences():
    # One random direction in each parameter, along the loss of the reference.
    inputs, rng, step = (IDS, PADDING, POSITIONS, TARGETS), np.random.default_rng(0), 1e-5
    params = {name: x.astype(float) for name, x in start().items()}
    gradients = torch_gradients(lambda p: loss(p, *map(torch.tensor, inputs)), params_in("torch", torch.float64))
    for name, x in params.items():
        direction = rng.normal(size=x.shape)
        up, down = (reference_nll(params | {name: x + sign * step * direction}, *inputs) for sign in (1, -1))
        slope = (gradients[name].numpy() * direction).sum()
        assert abs((up - down) / (2 * step) - slope) < 1e-6 * max(1, abs(slope)), name


# --- padding and positions --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_padding_is_inert(framework):
    wanted = run(framework, encode, IDS, PADDING)[~PADDING]
    rng = np.random.default_rng(0)
    other = np.where(PADDING, rng.integers(0, VOCAB, IDS.shape), IDS)               # other content there
    np.testing.assert_array_equal(run(framework, encode, other, PADDING)[~PADDING], wanted)
    wider = np.pad(IDS, ((0, 0), (0, 5)))                                           # more padding
    close(run(framework, encode, wider, wider == 0)[:, :8][~PADDING], wanted, 2e-6)
    other = np.where([[True], [False], [False]], IDS, rng.integers(0, VOCAB, IDS.shape))        # other rows beside it
    close(run(framework, encode, other, PADDING)[0, :6], wanted[:6], 2e-6)
    close(run(framework, encode, IDS[::-1].copy(), PADDING[::-1].copy())[::-1][~PADDING], wanted, 2e-6)
    close(run(framework, encode, IDS[:1, :6], PADDING[:1, :6])[0], wanted[:6], 2e-6)            # alone and without any


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_gradient_comes_from_padding(framework):
    # The head would send one to every row of the table, so look at the vectors themselves.
    weights = np.where(PADDING[..., None], 0, np.random.default_rng(0).normal(size=(3, 8, WIDTH)).astype(np.float32))

    def score(p):
        return (encode(p, IDS, PADDING) * (jnp.asarray if framework == "jax" else torch.tensor)(weights)).sum()
    gradient = np.asarray((jax.jit(jax.grad(score))(params_in("jax")) if framework == "jax"
                           else torch_gradients(score, params_in("torch")))["token"])
    read = np.isin(np.arange(VOCAB), IDS[~PADDING])
    assert not gradient[~read].any() and not read[0] and not read[1]
    assert (abs(gradient[read]).max(1) > 1e-3).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_padded_position_counts_as_padding_wherever_it_stands(framework):
    hole = PADDING.copy()
    hole[1, 3] = True
    close(run(framework, encode, IDS, hole)[~hole], reference(start(), IDS, hole)[~hole])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_position_matters(framework):
    order = [0, 1, 2, 5, 4, 3, 6, 7]                            # row 1 has no padding
    plain, permuted = (run(framework, encode, ids, PADDING)[1] for ids in (IDS, IDS[:, order]))
    unmoved = [0, 1, 2, 4, 6, 7]                                # they read the same tokens, but elsewhere
    assert (abs(plain - permuted)[unmoved].max(1) > 1e-2).all()
    assert (abs(plain - permuted[order]).max(1) > 1e-2).all()   # nor do the vectors just move along


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_distances_matter(framework):
    later = np.pad(IDS, ((0, 0), (5, 0)))                       # padding on the left moves every token
    got = run(framework, encode, later, later == 0)[:, 5:]
    close(got[~PADDING], run(framework, encode, IDS, PADDING)[~PADDING])


def test_it_reads_both_sides_of_the_whole_row():
    plain = encode(params_in("torch"), IDS, PADDING)[1]
    for changed in range(8):
        ids = IDS.copy()
        ids[1, changed] = 1
        assert (abs(encode(params_in("torch"), ids, PADDING)[1] - plain).amax(1) > 1e-4).all()


# --- the beginning ----------------------------------------------------------------------------------------------------

def test_the_same_bits_in_both_frameworks():
    first, again = initial_encoder(5, 40, framework="jax"), initial_encoder(5, 40)
    assert list(first) == list(again) == list(initial_encoder(np.int64(5), np.array(40)))
    for name, x in first.items():
        assert isinstance(x, jax.Array) and isinstance(again[name], torch.Tensor)
        assert x.dtype == np.float32 and again[name].dtype == torch.float32
        assert x.shape == again[name].shape and np.asarray(x).tobytes() == again[name].numpy().tobytes()


def test_a_seed_decides_alone():
    before = torch.get_rng_state()
    first, again, other = (initial_encoder(seed, 40) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    for name, x in first.items():
        assert torch.equal(x, again[name])
        assert torch.equal(x, other[name]) == (name.endswith(("bias", "scale", "shift"))), name
    drawn = [x.ravel()[:16].tolist() for name, x in first.items() if not name.endswith(("bias", "scale", "shift"))]
    assert len({tuple(x) for x in drawn}) == 9                  # no two are drawn alike


def test_shapes_and_scales():
    params = initial_encoder(0, 500, width=32, layers=3, heads=2)
    layer = {"qkv": (32, 3, 2, 16), "qkv.bias": (96,), "out": (32, 32), "out.bias": (32,), "up": (32, 128),
             "up.bias": (128,), "down": (128, 32), "down.bias": (32,), "norm1.scale": (32,), "norm1.shift": (32,),
             "norm2.scale": (32,), "norm2.shift": (32,)}
    wanted = {"token": (500, 32), "bias": (500,), "norm.scale": (32,), "norm.shift": (32,)} | {
        f"{i}.{name}": shape for i in range(3) for name, shape in layer.items()}
    assert {name: tuple(x.shape) for name, x in params.items()} == wanted
    for name, x in params.items():
        if name.endswith(("bias", "shift", "scale")):
            assert (x == float(name.endswith("scale"))).all()
        else:
            part = {"out": 1 / 2, "down": 1 / 4}.get(name.partition(".")[2], 1)
            assert abs(x.std() * 32**0.5 / part - 1) < 5 / (2 * x.numel())**0.5
    assert abs(params["token"].norm(dim=1).mean() - 1) < 0.02   # a token's vector has length 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_begins_near_log_vocab(seed):
    tokens = torch.tensor(np.random.default_rng(seed).integers(5, 2048, (16, 64)))
    corrupted, selected, _ = mask_examples(tokens, range(16), seed=seed, epoch=0, mask_id=4,
                                           ordinary_ids=range(5, 2048), eligible=eligible_positions(tokens, range(5)))
    positions = np.flatnonzero(selected)
    total, count = masked_nll(encoder_logits(initial_encoder(seed, 2048), corrupted, corrupted == 0, positions),
                              tokens.flatten()[positions], np.ones(len(positions), bool))
    assert abs(float(total / count) - math.log(2048)) < 0.6     # it favours what it reads, the mask token above all


# --- what is refused ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("corrupted", "padding", "error", "words"), [
    (IDS[0], PADDING[0], ValueError, ("corrupted has shape [8]", "[batch, seq]")),
    (IDS[None], PADDING[None], ValueError, ("corrupted has shape [1, 3, 8]", "[batch, seq]")),
    (3, PADDING, ValueError, ("corrupted has shape ()",)),
    (IDS * 1.0, PADDING, TypeError, ("corrupted has dtype float64", "integer IDs")),
    (PADDING, PADDING, TypeError, ("corrupted has dtype bool", "integer IDs")),
    (np.where(IDS == 12, VOCAB, IDS), PADDING, ValueError, ("corrupted[1, 1] is 13", "[0, 13)")),
    (np.where(IDS == 12, -1, IDS), PADDING, ValueError, ("corrupted[1, 1] is -1", "[0, 13)")),
    (np.where(PADDING, -100, IDS), PADDING, ValueError, ("corrupted[0, 6] is -100", "[0, 13)")),    # padding too
    (IDS.tolist()[:1] + [[1]], PADDING, ValueError, ("corrupted must be rectangular",)),
    (IDS, PADDING.astype(int), TypeError, ("padding has dtype int64", "bool")),
    (IDS, None, TypeError, ("padding has dtype object", "bool")),
    (IDS, PADDING[:, :1], ValueError, ("padding has shape [3, 1]", "[3, 8]", "that of corrupted")),
    (IDS, PADDING[1:2], ValueError, ("padding has shape [1, 8]", "[3, 8]")),
    (IDS, PADDING[0], ValueError, ("padding has shape [8]", "[3, 8]")),
    (IDS, np.arange(3)[:, None] + 0 * IDS == 1, ValueError, ("padding covers the whole of row 1", "a token to")),
], ids=["1-D", "3-D", "scalar", "float", "bool", "too large", "negative", "at padding", "ragged", "padding int",
        "padding None", "would broadcast", "one row", "padding 1-D", "a row of padding"])
def test_refused(framework, corrupted, padding, error, words):
    for function in (encode, lambda *inputs: encoder_logits(*inputs, [0])):
        with refuses(error, *words):
            function(params_in(framework), corrupted, padding)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("positions", [[24], [-1], [0, 1, 24], [0.0], np.arange(24) == 3, [[1]], 1], ids=str)
def test_positions_refused(framework, positions):
    with refuses(ValueError, "positions are ", "[n] integers in [0, 24)", "flattened"):
        encoder_logits(params_in(framework), IDS, PADDING, positions)


@pytest.mark.parametrize(("sizes", "error", "words"), [
    (dict(width=6), ValueError, ("width 6", "heads 4", "heads times an even number")),
    (dict(width=64, heads=3), ValueError, ("width 64", "heads 3")),
    (dict(width=4, heads=4), ValueError, ("width 4", "heads 4", "even")),
    (dict(width=0), ValueError, ("width 0", "positive")),
    (dict(width=-8), ValueError, ("width -8", "positive")),
    (dict(layers=0), ValueError, ("layers 0", "positive")),
    (dict(heads=0), ValueError, ("heads 0", "positive")),
    (dict(vocab_size=0), ValueError, ("vocab_size 0", "positive")),
    (dict(layers=1.0), TypeError, ("layers is 1.0", "integer")),
    (dict(heads=True), TypeError, ("heads is True", "integer")),
    (dict(seed=0.5), TypeError, ("seed is 0.5", "integer")),
    (dict(framework="numpy"), ValueError, ("framework is 'numpy'", "'jax' or 'torch'")),
], ids=str)
def test_sizes_refused(sizes, error, words):
    with refuses(error, *words):
        initial_encoder(**dict(seed=0, vocab_size=11) | sizes)


def test_types_and_shapes_are_refused_while_traced():
    params = params_in("jax")
    with refuses(TypeError, "corrupted has dtype float32", "integer IDs"):
        jax.jit(encode)(params, jnp.zeros((1, 2)), jnp.zeros((1, 2), bool))
    with refuses(TypeError, "padding has dtype int32", "bool"):
        jax.jit(encode)(params, jnp.zeros((1, 2), int), jnp.zeros((1, 2), int))
    with refuses(ValueError, "padding has shape [2, 2]", "[1, 2]"):
        jax.jit(encode)(params, jnp.zeros((1, 2), int), jnp.zeros((2, 2), bool))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_changed(framework):
    params, inputs = params_in(framework), [x.copy() for x in (IDS, PADDING, POSITIONS)]
    encoder_logits(params, *inputs)
    for x, before in zip(inputs, (IDS, PADDING, POSITIONS), strict=True):
        np.testing.assert_array_equal(x, before)
    assert all((np.asarray(params[name]) == x).all() for name, x in start().items())


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.int64])
def test_small_integers_are_ids_and_not_a_mask(dtype):
    params, padding = initial_encoder(0, 20, width=8, heads=2, layers=1), np.zeros((1, 4), bool)
    wanted = encoder_logits(params, np.array([[2, 5, 7, 3]]), padding, np.array([1, 0, 1, 1]))
    got = encoder_logits(params, np.array([[2, 5, 7, 3]], dtype), padding, np.array([1, 0, 1, 1], dtype))
    assert got.shape == (4, 20) and torch.equal(got, wanted)
