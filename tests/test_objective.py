"""The masked objective, against NumPy in float64, PyTorch's own cross-entropy, and the closed-form gradient."""
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from mlm import masked_ce, masked_nll, perplexity

FRAMEWORKS = ("jax", "torch")
VOCAB = 7
SHAPES = ((), (4,), (2, 3))         # JAX compiles each new one, so most tests keep to (2, 3)
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=40)


# --- references, written without the helper ---------------------------------------------------------------------

def reference(logits, targets, selected):
    """Summed nats, their count, and the gradient of the sum: one position at a time, in float64."""
    total, count, gradient = 0.0, 0, np.zeros(np.shape(logits))
    for at in np.ndindex(np.shape(targets)):
        if selected[at]:
            z = np.asarray(logits[at], np.float64)
            log_sum = z.max() + math.log(np.exp(z - z.max()).sum())
            total, count = total + log_sum - z[targets[at]], count + 1
            gradient[at] = np.exp(z - log_sum) - (np.arange(len(z)) == targets[at])
    return total, count, gradient


def problem(shape, seed=0, scale=3.0, p=0.6):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (*shape, VOCAB)).astype(np.float32)
    targets = rng.integers(0, VOCAB, shape, dtype=np.int64)
    selected = np.array(rng.random(shape) < p)
    selected[(0,) * len(shape)] = True                          # at least one
    return logits, targets, selected


def into(framework, x):
    return jnp.asarray(x) if framework == "jax" else torch.tensor(np.asarray(x))


def masked_sum(logits, targets, selected):
    return masked_nll(logits, targets, selected)[0]


@functools.cache
def jitted(function):
    return jax.jit(jax.value_and_grad(function))


def number_and_gradient(framework, function, logits, targets, selected):
    """Value and gradient with respect to logits, from each framework's own autodiff, as NumPy arrays."""
    if framework == "jax":
        value, gradient = jitted(function)(*map(jnp.asarray, (logits, targets, selected)))
    else:
        logits = torch.tensor(logits, requires_grad=True)
        value = function(logits, torch.tensor(targets), torch.tensor(selected))
        gradient, = torch.autograd.grad(value, logits)
        value = value.detach()
    return np.asarray(value), np.asarray(gradient)


def close(got, wanted, tolerance=2e-6):
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


# --- values and gradients -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sum_count_mean_and_gradients(framework, shape):
    logits, targets, selected = problem(shape)
    total, count, gradient = reference(logits, targets, selected)
    summed, summed_gradient = number_and_gradient(framework, masked_sum, logits, targets, selected)
    mean, mean_gradient = number_and_gradient(framework, masked_ce, logits, targets, selected)
    close(summed, total)
    close(summed_gradient, gradient)
    close(mean, total / count)
    close(mean_gradient, gradient / count)
    assert (summed_gradient[~selected] == 0).all() and (mean_gradient[~selected] == 0).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_answers_in_kind_and_changes_nothing(framework):
    arguments = problem((2, 3))
    before, tensors = [x.copy() for x in arguments], [into(framework, x) for x in arguments]
    kind, (wanted, wanted_count, _) = (jax.Array if framework == "jax" else torch.Tensor), reference(*arguments)
    for arrays in (tensors, [tensors[0], *arguments[1:]]):
        total, count, mean = *masked_nll(*arrays), masked_ce(*arrays)
        assert all(isinstance(x, kind) and x.shape == () for x in (total, count, mean))
        close(total, wanted)
        close(mean, wanted / wanted_count)
        assert count == wanted_count and jnp.issubdtype(np.asarray(count).dtype, jnp.integer)
        for now, was in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(np.asarray(now), was)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("others", [np.asarray, jnp.asarray, torch.tensor, lambda x: x.tolist()],
                         ids=["numpy", "jax", "torch", "lists"])
def test_the_logits_decide_the_framework(framework, others):
    # np.asarray of a JAX array is read-only, which PyTorch would warn about.
    logits, targets, selected = problem((2, 3))
    targets, selected = (np.asarray(jnp.asarray(x)) for x in (targets, selected))
    got = masked_ce(into(framework, logits), others(targets), others(selected))
    assert isinstance(got, torch.Tensor) == (framework == "torch")
    total, count, _ = reference(logits, targets, selected)
    close(got, total / count)
    close(masked_ce(logits.tolist(), others(targets), others(selected)), total / count)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_same_as_pytorch_cross_entropy_and_across_frameworks(shape):
    logits, targets, selected = problem(shape, seed=1)
    targets = np.where(selected, targets, -100)                 # PyTorch's own way to leave positions out

    def theirs(z, labels, _):
        return torch.nn.functional.cross_entropy(z.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)

    value, gradient = number_and_gradient("torch", theirs, logits, targets, selected)
    for framework in FRAMEWORKS:
        got, got_gradient = number_and_gradient(framework, masked_ce, logits, targets, selected)
        close(got, value)
        close(got_gradient, gradient)


@STEADY
@given(framework=st.sampled_from(FRAMEWORKS), seed=st.integers(0, 10**6), p=st.floats(0, 1),
       scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]))
def test_any_problem(framework, seed, p, scale):
    logits, targets, selected = problem((2, 3), seed, scale, p)
    total, count, gradient = reference(logits, targets, selected)
    value, got = number_and_gradient(framework, masked_ce, logits, targets, selected)
    np.testing.assert_allclose(value, total / count, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got, gradient / count, atol=1e-5)
    assert value >= 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 3e38, "labels"], ids=str)
def test_what_stands_at_unselected_positions_does_not_matter(framework, junk):
    # d2l-en#2582: a loss whose mask is a no-op would move here. Zero times NaN is why the gradient is looked at.
    logits, targets, selected = problem((2, 3))
    dirty, labels = logits.copy(), np.where(selected, targets, [[-100, 99, -1]])
    if junk != "labels":
        dirty[~selected] = [junk, 0, 5, junk, 1, -2, 3]         # not a constant: softmax would drop that
    assert not selected.all() and (labels != targets).any()
    for function in (masked_sum, masked_ce):
        clean, clean_gradient = number_and_gradient(framework, function, logits, targets, selected)
        got, gradient = number_and_gradient(framework, function, dirty, labels, selected)
        assert got == clean == function(into(framework, dirty), labels, selected)                   # to the last bit
        np.testing.assert_array_equal(gradient, clean_gradient)
        assert np.isfinite(gradient).all() and (gradient[~selected] == 0).all()


def test_junk_does_not_set_off_jax_debug_nans():
    logits, targets, selected = problem((2, 3))
    logits[~selected] = np.nan
    with jax.debug_nans(True):
        assert np.isfinite(masked_ce(logits, np.where(selected, targets, -100), selected))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_selected_label_does_matter(framework):
    logits, targets, selected = problem((2, 3))
    at = tuple(np.argwhere(selected)[0])
    moved = targets.copy()
    moved[at] = (targets[at] + 1) % VOCAB
    difference = logits[at][targets[at]] - logits[at][moved[at]]
    before, after = (masked_nll(into(framework, logits), into(framework, x), selected)[0] for x in (targets, moved))
    close(after - before, difference, 1e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nan_where_selected_is_not_hidden(framework):
    logits, targets, selected = problem((2, 3))
    assert math.isnan(masked_ce(into(framework, logits * np.nan), targets, selected))


# --- numbers one can check by hand ----------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("vocab", [3, VOCAB])
@pytest.mark.parametrize("count", [1, 4])
def test_uniform_scores_cost_log_vocab_however_many_are_selected(framework, vocab, count):
    targets = np.arange(6).reshape(2, 3)
    total, counted = masked_nll(into(framework, np.zeros((2, 3, vocab), np.float32)), targets % vocab, targets < count)
    close(total / counted, math.log(vocab))
    assert perplexity(total, counted) == pytest.approx(vocab, rel=1e-5)


def with_nll(nll):
    """Logits whose class 0 costs exactly these nats; class 1 takes the rest, class 2 is impossible."""
    nll = np.asarray(nll, np.float64)
    return np.stack([-nll, np.log(-np.expm1(-nll)), np.full(nll.shape, -np.inf)], axis=-1).astype(np.float32)


UNEQUAL = dict(logits=with_nll([[2, 9, 9], [1, 1, 1]]), targets=np.zeros((2, 3), int),
               selected=np.array([[True, False, False], [True, True, True]]))
ROWS = [np.array([[True], [False]]), np.array([[False], [True]])]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_unequal_masks(framework):
    # One token at 2 nats against three at 1: 5/4 by tokens, 3/2 by sentences. The 9s are not selected.
    logits, targets, selected = (into(framework, x) for x in UNEQUAL.values())
    close(masked_ce(logits, targets, selected), 1.25)
    close([float(masked_ce(logits, targets, selected & into(framework, row))) for row in ROWS], [2, 1])
    total, count = masked_nll(logits, targets, selected)
    close(total, 5)
    assert count == 4


LESSON = dict(
    logits=jnp.log(jnp.array([[[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.2, 0.3, 0.5]],
                              [[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.3, 0.4, 0.3]]])),
    targets=jnp.array([[0, 1, 2], [1, 0, 2]]),
    selected=jnp.array([[True, False, False], [True, True, True]]))


def test_the_lessons_token_weighted_loss():
    assert float(masked_ce(**LESSON)) == 0.6577723026275635
    by_hand = -(math.log(0.8) + math.log(0.6) + math.log(0.5) + math.log(0.3)) / 4
    close(by_hand, 0.6577723)
    close(masked_ce(*(torch.tensor(np.asarray(x)) for x in LESSON.values())), by_hand)
    rows = [masked_ce(**LESSON | {"selected": LESSON["selected"] & row}) for row in ROWS]
    close(np.mean(rows), 0.512896)                              # by sentences: another number


# --- precision ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_added_up_in_float32(framework, dtype):
    # 4096 tokens: float16 stops counting ones at 2048, bfloat16 at 256.
    logits, targets, selected = problem((4096,), p=0.9)
    logits = (jnp.asarray(logits, dtype) if framework == "jax" else torch.tensor(logits).to(getattr(torch, dtype)))
    exact = np.asarray(logits.astype(jnp.float32) if framework == "jax" else logits.float())
    function = jax.jit(masked_nll) if framework == "jax" else masked_nll
    total, count = function(logits, into(framework, targets), into(framework, selected))
    assert total.dtype == (jnp.float32 if framework == "jax" else torch.float32)
    wanted, wanted_count, _ = reference(exact, targets, selected)
    np.testing.assert_allclose(total, wanted, rtol=2e-6)
    assert count == wanted_count > 2048


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_half_precision_gradient_comes_back_in_its_own_dtype(framework):
    targets, selected = np.array([0, 1]), np.array([True, False])
    if framework == "jax":
        gradient = jax.jit(jax.grad(masked_ce))(jnp.zeros((2, 3), jnp.bfloat16), targets, selected)
        assert gradient.dtype == jnp.bfloat16
    else:
        logits = torch.zeros((2, 3), dtype=torch.bfloat16, requires_grad=True)
        gradient, = torch.autograd.grad(masked_ce(logits, targets, selected), logits)
        assert gradient.dtype == torch.bfloat16
        gradient = gradient.float()
    close(np.asarray(gradient, np.float32), [[-2 / 3, 1 / 3, 1 / 3], [0, 0, 0]], 2e-3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_float64_stays_float64(framework):
    logits, targets, selected = problem((2, 3))
    logits = logits.astype(np.float64) / 3
    total, count, gradient = reference(logits, targets, selected)
    with jax.enable_x64(True):
        value, got = number_and_gradient(framework, masked_ce, logits, targets, selected)
        single, _ = number_and_gradient(framework, masked_ce, logits.astype(np.float32), targets, selected)
    assert value.dtype == got.dtype == np.float64
    assert single.dtype == np.float32
    close(value, total / count, 1e-14)
    close(got, gradient / count, 1e-14)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint16"])
def test_targets_of_every_integer_type(framework, dtype):
    logits, targets, selected = problem((2, 3))
    total, count, _ = reference(logits, targets, selected)
    got = masked_nll(into(framework, logits), into(framework, targets.astype(dtype)), selected)
    close(got[0], total)
    assert got[1] == count


# --- under transformations --------------------------------------------------------------------------------------------

def test_jax_transformations():
    logits, targets, selected = (jnp.asarray(x) for x in problem((2, 3)))
    selected = selected.at[1].set(False)                        # an empty microbatch is no reason to stop
    total, count, gradient = reference(*map(np.asarray, (logits, targets, selected)))

    value, got = jitted(masked_ce)(logits, targets, selected)
    close(value, total / count)
    close(got, gradient / count)

    totals, counts = jax.jit(jax.vmap(masked_nll))(logits, targets, selected)
    close(totals, [reference(*map(np.asarray, row))[0] for row in zip(logits, targets, selected, strict=True)])
    assert counts.tolist() == np.asarray(selected).sum(axis=1).tolist() and counts[1] == 0

    def add(carry, row):
        return jax.tree.map(jnp.add, carry, masked_nll(*row)), None

    (summed, counted), _ = jax.jit(lambda *batch: jax.lax.scan(add, (0.0, 0), batch))(logits, targets, selected)
    close(summed, total)
    assert counted == count


def test_torch_transformations():
    logits, targets, selected = (torch.tensor(x) for x in problem((4, 3), p=0.5))
    selected[2] = False
    total, count, _ = reference(*(x.numpy() for x in (logits, targets, selected)))
    totals, counts = torch.func.vmap(masked_nll)(logits, targets, selected)
    close(totals.sum(), total)
    assert counts.tolist() == selected.sum(1).tolist() and counts[2] == 0
    with torch.device("meta"):                                  # the default device is not asked
        close(masked_ce(logits, targets.tolist(), selected.tolist()), total / count)


def test_torch_compile_leaves_out_the_checks(monkeypatch):
    logits, targets, selected = (torch.tensor(x) for x in problem((2, 3)))
    plain = masked_ce(logits, targets, selected)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)       # what torch.compile sets; it takes seconds
    assert masked_ce(logits, targets, selected) == plain
    assert math.isnan(masked_ce(logits, targets, selected & False))


# --- adding up ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_microbatches_add_up_to_the_whole(framework, size):
    # transformers#37766, #34191: the loss must not depend on the number of accumulation steps.
    logits, targets, _ = problem((4, 8), seed=2)
    selected = np.arange(8) < np.array([[1], [7], [2], [6]])
    total, count, gradient = reference(logits, targets, selected)
    parts = [slice(i, i + size) for i in range(0, 4, size)]
    sums, counts, gradients = [], [], []
    for part in parts:
        value, got = number_and_gradient(framework, masked_sum, logits[part], targets[part], selected[part])
        sums.append(value)
        counts.append(selected[part].sum())
        gradients.append(got)
    close(sum(sums) / sum(counts), total / count)
    close(np.concatenate(gradients) / sum(counts), gradient / count)
    # The mean of means is another objective, unless counts are equal, as the 1 + 7 and 2 + 6 of pairs happen to be.
    assert (abs(np.mean(np.divide(sums, counts)) - total / count) > 0.01) == (size == 1)


# --- nothing selected -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3)], ids=str)
def test_nothing_selected(framework, shape):
    # transformers#16711, pytorch#70348: a sum of nothing is 0 with gradient 0; a mean of nothing is an error.
    logits = np.full((*shape, VOCAB), np.nan, np.float32)
    targets, selected = np.zeros(shape, int), np.zeros(shape, bool)
    total, gradient = number_and_gradient(framework, masked_sum, logits, targets, selected)
    assert total == 0 and (gradient == 0).all()
    assert masked_nll(into(framework, logits), targets, selected)[1] == 0
    with refuses(ValueError, "selected is empty", str(shape), "no mean"):
        masked_ce(into(framework, logits), targets, selected)


def test_nothing_selected_cannot_be_seen_while_traced():
    logits, targets, selected = np.zeros((2, 3), np.float32), np.zeros(2, int), np.zeros(2, bool)
    assert math.isnan(jax.jit(masked_ce)(logits, targets, selected))
    assert math.isnan(torch.func.vmap(masked_ce)(*(torch.tensor(x)[None] for x in (logits, targets, selected))))
    with refuses(ValueError, "selected is empty"):              # concrete, though the logits are traced
        jax.jit(lambda z: masked_ce(z, targets, selected))(logits)


# --- refusals: the argument, what came, what was wanted --------------------------------------------------------------

Z, Y, M = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), int), np.ones((2, 3), bool)
REFUSED = {
    "0-d logits": (Z[0, 0, 0], Y[0, 0], M[0, 0], ValueError, ("logits []", "wanted [..., vocab], [...] and [...]")),
    "no vocabulary": (Z[..., :0], Y, M, ValueError, ("logits [2, 3, 0]", "[..., vocab]")),
    "one row of targets": (Z, Y[:1], M, ValueError, ("logits [2, 3, 4]", "targets [1, 3]", "selected [2, 3]")),
    "one column of targets": (Z, Y[:, :1], M, ValueError, ("targets [2, 1]",)),
    "flat targets": (Z, Y[0], M, ValueError, ("targets [3]",)),
    "scalar target": (Z, Y[0, 0], M, ValueError, ("targets []",)),
    "one row selected": (Z, Y, M[:1], ValueError, ("selected [1, 3]",)),
    "one column selected": (Z, Y, M[:, :1], ValueError, ("selected [2, 1]",)),
    "selected for each class": (Z, Y, np.ones((2, 3, 4), bool), ValueError, ("selected [2, 3, 4]",)),
    "scalar selected": (Z, Y, M[0, 0], ValueError, ("selected []",)),
    "one row of logits": (Z[:1], Y, M, ValueError, ("logits [1, 3, 4]",)),
    "one-hot targets": (Z, np.zeros((2, 3, 4), int), M, ValueError, ("targets [2, 3, 4]",)),
    "integer logits": (Z.astype(int), Y, M, TypeError, ("logits have dtype", "int", "wanted floating scores")),
    "complex logits": (Z.astype(complex), Y, M, TypeError, ("logits have dtype", "complex", "floating scores")),
    "Boolean logits": (Z > 0, Y, M, TypeError, ("logits have dtype", "bool", "floating scores")),
    "float targets": (Z, Y.astype(np.float32), M, TypeError, ("targets have dtype", "float32", "integer IDs")),
    "Boolean targets": (Z, M, M, TypeError, ("targets have dtype", "bool", "integer IDs")),
    "complex targets": (Z, Y.astype(complex), M, TypeError, ("targets have dtype", "complex", "integer IDs")),
    "integer selected": (Z, Y, np.ones((2, 3), int), TypeError, ("selected has dtype", "int", "wanted bool")),
    "float selected": (Z, Y, np.ones((2, 3), np.float32), TypeError, ("selected has dtype", "float32", "wanted bool")),
    "target is vocab": (Z, np.array([[0, 0, 0], [0, 4, 9]]), M, ValueError, ("targets[1, 1] is 4", "[0, 4)")),
    "target is -100": (Z, np.array([[0, 0, -100], [0, 0, 0]]), M, ValueError, ("targets[0, 2] is -100", "[0, 4)")),
    "target is -1": (Z, np.array([[0, 0, 0], [0, 0, -1]]), M, ValueError, ("targets[1, 2] is -1", "[0, 4)")),
    "target beyond int32": (Z, np.array([[0, 0, 0], [2**32, 0, 0]]), M, ValueError, ("targets[1, 0] is 4294967296",)),
}


@pytest.mark.parametrize("framework", ["numpy", *FRAMEWORKS])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, framework):
    *arguments, error, words = REFUSED[case]
    if framework == "torch" or framework == "jax" and case != "target beyond int32":    # which JAX could not hold
        arguments = [into(framework, x) for x in arguments]
    for function in (masked_nll, masked_ce):
        with refuses(error, *words):
            function(*arguments)


def test_ragged_lists_are_refused_by_name():
    for targets, selected, name in (([[0], [0, 0]], M, "targets"), (Y, [[True], []], "selected")):
        with refuses(ValueError, f"{name} must be rectangular"):
            masked_ce(Z, targets, selected)


def test_shapes_and_types_are_refused_while_traced():
    for arguments, error, words in (((Z, Y[:1], M), ValueError, ("logits", "targets [1, 3]")),
                                    ((Z, Y, Y), TypeError, ("selected has dtype", "bool"))):
        with refuses(error, *words):
            jax.jit(masked_ce)(*arguments)
        with refuses(error, *words):
            torch.func.vmap(masked_ce)(*(torch.tensor(x)[None] for x in arguments))


def test_a_wrong_target_is_seen_though_the_logits_are_traced():
    for wrap in (jax.jit, jax.grad):
        with refuses(ValueError, "targets[0, 0] is 4"):
            wrap(lambda z: masked_ce(z, Y + 4, M))(jnp.asarray(Z))


# --- perplexity -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("total", "count", "expected"), [
    (0.0, 5, 1.0),
    (-0.0, 1, 1.0),
    (3 * math.log(4), 3, 4.0),                                  # 1/4 for each of three
    (math.log(50_000), 1, 50_000.0),
    (2.0 + 3.0, 4, math.exp(1.25)),                             # transformers#3927: add first, divide last
    (709.0, 1, math.exp(709)),
    (710.0, 1, math.inf),
    (math.inf, 3, math.inf),
    (1, 2.0, math.exp(0.5)),
    (np.float32(3), np.int64(2), math.exp(1.5)),
    (jnp.array(3.0), jnp.array(2), math.exp(1.5)),
    (torch.tensor(3.0, requires_grad=True), torch.tensor(2), math.exp(1.5)),
    (jnp.array(3.0, jnp.bfloat16), 2, math.exp(1.5)),
], ids=str)
def test_perplexity(total, count, expected):
    got = perplexity(total, count)
    assert type(got) is float and got == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("total", "count", "error", "words"), [
    (0.0, 0, ValueError, ("count is 0", "at least 1")),
    (1.0, -2, ValueError, ("count is -2", "at least 1")),
    (1.0, 1.5, ValueError, ("count is 1.5", "whole number")),
    (1.0, math.nan, ValueError, ("count is nan", "whole number")),
    (1.0, math.inf, ValueError, ("count is inf", "whole number")),
    (-1e-9, 3, ValueError, ("total is -1e-09", "cannot be negative")),
    (math.nan, 3, ValueError, ("total is nan", "cannot be negative or NaN")),
    ("3", 1, TypeError, ("total is '3'", "nats")),
    (None, 1, TypeError, ("total is None", "nats")),
    (True, 1, TypeError, ("total is True", "nats")),
    (np.ones(2), 1, TypeError, ("total is array", "nats")),
    (1.0, torch.ones(2), TypeError, ("count is array", "number of tokens")),
    (1.0, "1", TypeError, ("count is '1'", "number of tokens")),
], ids=str)
def test_perplexity_refuses(total, count, error, words):
    with refuses(error, *words):
        perplexity(total, count)


@pytest.mark.parametrize("name", ["total", "count"])
def test_perplexity_is_for_the_host(name):
    one = lambda x: perplexity(**{"total": 1.0, "count": 1} | {name: x})                            # noqa: E731
    with refuses(TypeError, f"{name} is traced", "then take the perplexity"):
        jax.jit(one)(1.0)
    with refuses(TypeError, f"{name} is traced", "then take the perplexity"):
        torch.func.vmap(one)(torch.ones(2))


def test_perplexity_of_two_batches_is_not_the_mean_of_theirs():
    parts = [masked_nll(**UNEQUAL | {"selected": UNEQUAL["selected"] & row}) for row in ROWS]
    whole = perplexity(sum(t for t, _ in parts), sum(int(c) for _, c in parts))
    assert whole == pytest.approx(math.exp(1.25), rel=1e-5)
    assert abs(whole - np.mean([perplexity(*part) for part in parts])) > 1
