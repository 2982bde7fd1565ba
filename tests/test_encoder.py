"""The encoder, the lesson's fixture and the package as a whole, against NumPy loops and the lesson's own numbers."""
import json
import math
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from refusals import refuses

import mlm
from mlm import corrupt_tokens, fixture_batch, initial_params, masked_ce, mlm_logits, train_fixture

FRAMEWORKS = ("jax", "torch")
IDS, WIDTH, CLASSES = 6, 4, 5
CORRUPTED = np.array([[0, 5, 2, 3], [4, 4, 1, 0]])              # different tokens, or axes could be swapped unseen


pytestmark = pytest.mark.usefixtures("one_thread")


# --- references, written without the helper ---------------------------------------------------------------------

def reference(params, corrupted):
    """One query at a time, in float64."""
    embedding, head = (np.asarray(params[name], np.float64) for name in ("embedding", "head"))
    out = np.zeros((*np.shape(corrupted), head.shape[1]))
    for row in np.ndindex(np.shape(corrupted)[:-1]):
        h = [embedding[token] for token in corrupted[row]]
        for query in range(len(h)):
            weights = np.exp([h[query].dot(key) / math.sqrt(len(key)) for key in h])
            out[(*row, query)] = sum(w * value for w, value in zip(weights / weights.sum(), h, strict=True)) @ head
    return out


def random_params(seed=0):
    rng = np.random.default_rng(seed)
    return {"embedding": rng.normal(size=(IDS, WIDTH)).astype(np.float32),
            "head": rng.normal(size=(WIDTH, CLASSES)).astype(np.float32)}


def into(framework, x):
    return jax.tree.map(jnp.asarray if framework == "jax" else torch.tensor, x)


def close(got, wanted, tolerance=2e-6):
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


# --- the encoder ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("corrupted", [CORRUPTED, CORRUPTED[0], CORRUPTED.reshape(2, 1, 4)],
                         ids=lambda x: str(x.shape))
def test_logits(framework, corrupted):
    params = random_params()
    function = jax.jit(mlm_logits) if framework == "jax" else mlm_logits        # without jit in the next test
    got = function(into(framework, params), into(framework, corrupted))
    assert isinstance(got, jax.Array if framework == "jax" else torch.Tensor)
    assert got.shape == (*corrupted.shape, CLASSES) and np.asarray(got).dtype == np.float32
    close(np.asarray(got), reference(params, corrupted))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", [np.ndarray.tolist, np.int8, np.uint8, np.int64, jnp.asarray, torch.tensor,
                                  lambda x: np.asarray(jnp.asarray(x))],
                         ids=["lists", "int8", "uint8", "int64", "jax", "torch", "read-only"])
def test_ids_of_every_kind(framework, kind):
    params = random_params()
    close(np.asarray(mlm_logits(into(framework, params), kind(CORRUPTED))), reference(params, CORRUPTED))


def test_gradients_against_differences_and_across_frameworks():
    params, weights = random_params(), np.random.default_rng(1).normal(size=(*CORRUPTED.shape, CLASSES))
    weights = weights.astype(np.float32)
    in_jax = jax.jit(jax.grad(lambda p: (mlm_logits(p, CORRUPTED) * weights).sum()))(into("jax", params))
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in params.items()}
    (mlm_logits(tensors, CORRUPTED) * torch.tensor(weights)).sum().backward()
    for name, x in params.items():
        x, slopes, step = x.astype(np.float64), np.zeros(x.shape), 1e-6
        for at in np.ndindex(x.shape):
            up, down = x.copy(), x.copy()
            up[at], down[at] = x[at] + step, x[at] - step
            ends = ((reference(params | {name: end}, CORRUPTED) * weights).sum() for end in (up, down))
            slopes[at] = (next(ends) - next(ends)) / (2 * step)
        close(in_jax[name], slopes, 1e-5)
        close(tensors[name].grad, slopes, 1e-5)
        close(in_jax[name], tensors[name].grad, 1e-5)


def test_transformations():
    params = into("jax", random_params())
    plain = np.asarray(mlm_logits(params, CORRUPTED))
    for transformed in (jax.jit(mlm_logits), jax.vmap(mlm_logits, (None, 0))):
        close(transformed(params, jnp.asarray(CORRUPTED)), plain)
    tensors = into("torch", random_params())
    close(torch.func.vmap(mlm_logits, (None, 0))(tensors, torch.tensor(CORRUPTED)), plain)
    with torch.device("meta"):                                  # the parameters' device counts, not the default one
        close(mlm_logits(tensors, CORRUPTED), plain)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_reads_both_sides_and_knows_no_order(framework):
    params = into(framework, random_params())
    first, last = np.asarray(mlm_logits(params, CORRUPTED[0]))[[0, -1]]
    for changed, there in (([0, 5, 2, 1], first), ([1, 5, 2, 3], last)):
        got = np.asarray(mlm_logits(params, changed))[0 if there is first else -1]
        assert abs(got - there).max() > 1e-3                    # no causal triangle, in neither direction
    backwards = np.asarray(mlm_logits(params, CORRUPTED[0, ::-1].copy()))
    close(backwards[::-1], np.asarray(mlm_logits(params, CORRUPTED[0])))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("corrupted", "error", "words"), [
    ([[0, 1], [2, IDS]], ValueError, ("corrupted[1, 1] is 6", "[0, 6)", "embedding")),
    ([[0, -1]], ValueError, ("corrupted[0, 1] is -1", "[0, 6)")),
    ([2**40], ValueError, ("corrupted[0] is 1099511627776", "[0, 6)")),
    ([[0.0, 1.0]], TypeError, ("corrupted has dtype", "float", "integer IDs")),
    ([[True]], TypeError, ("corrupted has dtype", "bool", "integer IDs")),
    (3, ValueError, ("corrupted has shape ()", "[..., seq]")),
    ([[0], [1, 2]], ValueError, ("corrupted must be rectangular",)),
], ids=str)
def test_refused(framework, corrupted, error, words):
    params = into(framework, random_params())
    with refuses(error, *words):
        mlm_logits(params, corrupted)


def test_types_are_refused_while_traced():
    params = random_params()
    with refuses(TypeError, "corrupted has dtype float32", "integer IDs"):
        jax.jit(mlm_logits)(params, jnp.zeros((1, 2)))
    with refuses(TypeError, "corrupted has dtype torch.float32", "integer IDs"):    # .long() would have cut 0.5 to 0
        torch.func.vmap(lambda x: mlm_logits(into("torch", params), x))(torch.full((1, 2), 0.5))


# --- the lesson's fixture ---------------------------------------------------------------------------------------------

def lesson():
    """The lesson's build, written out: batch, parameters from key 7, 100 updates at rate 0.4."""
    tokens = jnp.array([[0] * 4, [1] * 4, [2] * 4], jnp.int32)
    selected = jnp.array([[False, True, False, False]] * 3)
    params = {"embedding": jax.random.normal(jax.random.key(7), (4, 6)) * 0.2, "head": jnp.zeros((6, 3))}
    return tokens, selected, params


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batch_and_first_parameters(framework):
    tokens, selected, params = lesson()
    kind = jax.Array if framework == "jax" else torch.Tensor
    for got, wanted in zip(fixture_batch(framework), (tokens, selected, [[0, 3, 0, 0], [1, 3, 1, 1], [2, 3, 2, 2]]),
                           strict=True):
        assert isinstance(got, kind) and got.tolist() == np.asarray(wanted).tolist()
    for name, got in initial_params(framework).items():
        assert isinstance(got, kind) and np.asarray(got).dtype == np.float32
        np.testing.assert_array_equal(np.asarray(got), np.asarray(params[name]))    # the same bits in both
    assert list(initial_params(framework)) == ["embedding", "head"]


@pytest.fixture(scope="module")
def trained():
    before = torch.get_rng_state()
    yield {framework: train_fixture(framework) for framework in FRAMEWORKS}
    assert torch.equal(torch.get_rng_state(), before)           # nothing here draws from the global generator


def test_the_lessons_numbers_to_the_last_bit(trained):
    params, history = trained["jax"]
    assert len(history) == 100
    assert history[0] == 1.0986123085021973 and abs(history[0] - math.log(3)) < 1e-6
    assert history[-1] == 0.010633035562932491
    targets, selected, corrupted = fixture_batch()
    assert masked_ce(mlm_logits(params, corrupted), targets, selected) < history[-1]    # measured before each update
    for position in range(4):
        moved = jnp.zeros((3, 4), bool).at[:, position].set(True)
        loss = float(masked_ce(mlm_logits(params, corrupt_tokens(targets, moved, 3)), targets, moved))
        # The moved mask of the lesson and of its first exercise. Without positions any single one is like any other.
        assert loss == 0.010457751341164112 if position in (0, 2) else abs(loss - 0.01045775) < 1e-7
    wrong = targets.at[:, 1].set((targets[:, 1] + 1) % 3)
    assert masked_ce(mlm_logits(params, corrupted), wrong, selected) > 1


def test_training_in_pytorch_follows_jax(trained):
    (params, history), (tensors, torch_history) = trained.values()
    assert all(isinstance(x, torch.Tensor) for x in tensors.values())
    np.testing.assert_allclose(torch_history, history, rtol=0, atol=1e-6)
    for name in params:
        np.testing.assert_allclose(tensors[name], params[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("function", [fixture_batch, initial_params, train_fixture])
def test_unknown_framework(function):
    with refuses(ValueError, "framework is 'tensorflow'", "'jax' or 'torch'"):
        function("tensorflow")


def test_jax_flags_do_not_change_the_first_parameters():
    plain = np.asarray(initial_params()["embedding"])
    flags = dict(jax_threefry_partitionable=False, jax_default_prng_impl="rbg", jax_enable_x64=True)
    before = {name: jax.config.values[name] for name in flags}
    try:
        for name, value in flags.items():
            jax.config.update(name, value)
        np.testing.assert_array_equal(initial_params()["embedding"], plain)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


# --- the package as a whole ---------------------------------------------------------------------------------------

IN_A_FRESH_PROCESS = """
import json, os, random, sys, time
import jax, jax.numpy as jnp, numpy as np, torch

state = lambda: (torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate(), sorted(os.listdir()))
modules, before, start = set(sys.modules), state(), time.thread_time()      # CPU time: other processes do not count
import mlm
seconds = time.thread_time() - start
new = sorted({name.split(".")[0] for name in set(sys.modules) - modules})

assert state() == before
jax.config.update("jax_num_cpu_devices", 2)         # raises if the import has set up a device
tokens = jax.device_put(jnp.array(json.loads(sys.argv[1]), jnp.int32), jax.devices()[1])
out = mlm.apply_bert_masking(tokens, 11, 10, 7, 0.5)
print(json.dumps(dict(seconds=seconds, new=new, out=out.tolist(), devices=[d.id for d in out.devices()])))
"""


def test_import_and_environment():
    # Once more under the environment variables that could change the draws, and on the second of two devices.
    case = json.loads((pathlib.Path(__file__).parents[1] / "data" / "golden_masking.json").read_text())["cases"][0]
    environment = dict(os.environ, JAX_THREEFRY_PARTITIONABLE="0", JAX_ENABLE_X64="1", JAX_DEFAULT_PRNG_IMPL="rbg",
                       JAX_RANDOM_SEED_OFFSET="7", JAX_DISABLE_JIT="1", PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS, json.dumps(case["tokens"])], env=environment,
                          cwd=pathlib.Path(mlm.__file__).parents[1], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["seconds"] < 0.05
    assert got["new"] == ["mlm"]                                # no matplotlib, no lesson, nothing else
    assert got["out"] == np.stack([case["jax"]["corrupted"], case["jax"]["selected"]], axis=-1).tolist()
    assert got["devices"] == [1]


def test_public_names():
    assert mlm.__all__ == ["apply_bert_masking", "corrupt_tokens", "validate_mask", "masked_nll", "masked_ce",
                           "perplexity", "mlm_logits", "fixture_batch", "initial_params", "train_fixture",
                           "eligible_positions", "mask_examples", "initial_encoder", "encode", "encoder_logits"]
    assert all(callable(getattr(mlm, name)) and getattr(mlm, name).__doc__ for name in mlm.__all__)
