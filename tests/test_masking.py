"""The corruption: draws, policy and mask contract, against the exercise's own lines and recorded values."""
import json
import pathlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refuses

from mlm import apply_bert_masking, corrupt_tokens, validate_mask
from mlm.masking import _bert_policy, draws_jax, draws_torch

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "data" / "golden_masking.json").read_text())["cases"]
FRAMEWORKS = ("jax", "torch")
PLAIN = dict(vocab_size=11, mask_token_id=10, seed=3, mask_prob=0.5)
SHAPES = ((1, 1), (2, 12), (8, 32))         # those of golden cases: JAX needs most of a second for each new one
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=40)


# --- references, written without the helper ---------------------------------------------------------------------

def exercise_draws(framework, shape, vocab_size, seed):
    """The exercise's draw lines as they stand, as NumPy arrays."""
    N, T = shape
    if framework == "torch":
        gen = torch.Generator(device="cpu").manual_seed(int(seed))
        select_probs = torch.rand(N, T, generator=gen, dtype=torch.float32, device="cpu")
        corrupt_probs = torch.rand(N, T, generator=gen, dtype=torch.float32, device="cpu")
        random_tokens = torch.randint(0, int(vocab_size), (N, T), generator=gen, device="cpu")
    else:
        key = jax.random.PRNGKey(int(seed))
        _, k1, k2, k3 = jax.random.split(key, 4)
        select_probs = jax.random.uniform(k1, (N, T), dtype=jnp.float32)
        corrupt_probs = jax.random.uniform(k2, (N, T), dtype=jnp.float32)
        random_tokens = jax.random.randint(k3, (N, T), 0, int(vocab_size), dtype=jnp.int32)
    return tuple(np.asarray(x) for x in (select_probs, corrupt_probs, random_tokens))


def by_the_table(tokens, draws, mask_token_id, mask_prob):
    """The policy table, one position at a time. Thresholds are float32, like the draws."""
    out = np.zeros((*np.shape(tokens), 2), np.float32)
    for at in np.ndindex(np.shape(tokens)):
        select, corrupt, replacement = (draw[at] for draw in draws)
        out[at] = (tokens[at], 0)
        if select < np.float32(mask_prob):
            kept = replacement if corrupt < np.float32(0.9) else tokens[at]
            out[at] = (mask_token_id if corrupt < np.float32(0.8) else kept, 1)
    return out


def into(framework, x, dtype=None):
    return jnp.asarray(x, dtype) if framework == "jax" else torch.tensor(np.asarray(x), dtype=dtype)


def ids(shape, vocab_size, seed=0):
    return np.random.default_rng(seed).integers(0, vocab_size, shape, dtype=np.int64)


# --- recorded values --------------------------------------------------------------------------------------------

INPUTS = {
    "jax array": ("jax", lambda x: jnp.array(x, jnp.int32)),
    "numpy": ("jax", np.array),
    "nested lists": ("jax", list),
    "nested tuples": ("jax", lambda x: tuple(map(tuple, x))),
    "torch int64": ("torch", torch.tensor),
    "torch int32": ("torch", lambda x: torch.tensor(x, dtype=torch.int32)),
}


@pytest.mark.parametrize("case", range(len(GOLDEN)))
@pytest.mark.parametrize("kind", INPUTS)
def test_golden_values(kind, case):
    framework, convert = INPUTS[kind]
    case = GOLDEN[case]
    out = apply_bert_masking(convert(case["tokens"]), case["vocab_size"], case["mask_token_id"], case["seed"],
                             case["mask_prob"])
    expected = np.stack([case[framework]["corrupted"], case[framework]["selected"]], axis=-1)
    if framework == "torch":
        assert type(out) is torch.Tensor and out.dtype == torch.float32 and out.device.type == "cpu"
    else:
        assert isinstance(out, jax.Array) and out.dtype == jnp.float32 and not out.weak_type
    assert out.shape == (*np.shape(case["tokens"]), 2)
    np.testing.assert_array_equal(np.asarray(out), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_golden_values_show_every_branch(framework):
    # Otherwise the test above could pass with a branch missing.
    seen = set()
    for case in GOLDEN:
        before, after, selected = (np.array(x) for x in (
            case["tokens"], case[framework]["corrupted"], case[framework]["selected"]))
        masked, changed = after == case["mask_token_id"], after != before
        seen |= set(np.where(selected == 0, "unselected", np.where(changed & masked, "masked", np.where(
            changed, "random", "kept or drawn again"))).ravel().tolist())
        assert not changed[selected == 0].any()
    assert seen == {"unselected", "masked", "random", "kept or drawn again"}


def test_the_two_streams_differ():
    tokens = ids((8, 32), 11)
    outs = [np.asarray(apply_bert_masking(into(f, tokens), **PLAIN)) for f in FRAMEWORKS]
    assert (outs[0] != outs[1]).any()


def test_mask_prob_is_0_15_unless_said_otherwise():
    tokens = np.ones((8, 32), int)
    np.testing.assert_array_equal(apply_bert_masking(tokens, 11, 10, 3), apply_bert_masking(tokens, 11, 10, 3, 0.15))
    assert (apply_bert_masking(tokens, 11, 10, 3) != apply_bert_masking(tokens, 11, 10, 3, 0.25)).any()


# --- the draws --------------------------------------------------------------------------------------------------

SEEDS = (0, 1, 7, 42, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 2**63 - 1, -1, -7, -2**31 - 1, -2**63)
TORCH_SEEDS = (2**63, 2**64 - 1)


@pytest.mark.parametrize(("framework", "seed"),
                         [("jax", seed) for seed in SEEDS] + [("torch", seed) for seed in SEEDS + TORCH_SEEDS])
def test_draws_are_the_exercise_lines(framework, seed):
    helper = draws_jax if framework == "jax" else draws_torch
    for shape, vocab_size in zip(SHAPES, (1, 2**24, 30522), strict=True):
        for mine, theirs in zip(helper(shape, vocab_size, seed), exercise_draws(framework, shape, vocab_size, seed),
                                strict=True):
            assert np.asarray(mine).dtype == theirs.dtype and mine.shape == shape
            np.testing.assert_array_equal(np.asarray(mine), theirs)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("seed", [np.int8(-7), np.int64(2**63 - 1), np.uint32(7), np.array(7), jnp.array(7),
                                  torch.tensor(7)], ids=lambda s: f"{type(s).__name__} {s}")
def test_seeds_of_other_integer_types(framework, seed):
    tokens = into(framework, ids((2, 12), 11))
    settings = PLAIN | {"seed": seed}
    np.testing.assert_array_equal(apply_bert_masking(tokens, **settings),
                                  apply_bert_masking(tokens, **settings | {"seed": int(seed)}))


def test_the_largest_numpy_seed_is_one_for_pytorch():
    tokens = torch.tensor(ids((2, 12), 11))
    np.testing.assert_array_equal(apply_bert_masking(tokens, **PLAIN | {"seed": np.uint64(2**64 - 1)}),
                                  apply_bert_masking(tokens, **PLAIN | {"seed": -1}))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_low_32_bits_of_the_seed_count(framework):
    tokens = into(framework, ids((2, 12), 11))
    first, same, other = (np.asarray(apply_bert_masking(tokens, **PLAIN | {"seed": s})) for s in (5, 2**32 + 5, 6))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


@pytest.mark.parametrize(("framework", "seed", "limits"), [
    ("jax", 2**63, ("JAX takes -2**63 to 2**63 - 1",)), ("jax", -2**63 - 1, ("JAX takes",)),
    ("torch", 2**64, ("PyTorch takes -2**63 to 2**64 - 1",)), ("torch", -2**63 - 1, ("PyTorch takes",)),
])
def test_seeds_just_outside(framework, seed, limits):
    with refuses(ValueError, "seed is ", str(seed), *limits):
        apply_bert_masking(into(framework, [[1, 2]]), **PLAIN | {"seed": seed})


# --- nothing around it matters, and it disturbs nothing -----------------------------------------------------------

def global_states():
    name, words, *rest = np.random.get_state()                                      # noqa: NPY002 (the old global one)
    return torch.get_rng_state().tolist(), (name, words.tolist(), *rest), random.getstate()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_global_generators_neither_matter_nor_move(framework):
    tokens, outs = into(framework, ids((8, 32), 11)), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)                                                        # noqa: NPY002
        random.seed(seed)
        before = global_states()
        outs.append(np.asarray(apply_bert_masking(tokens, **PLAIN)))
        assert global_states() == before
    np.testing.assert_array_equal(*outs)


def golden_again(tokens, framework="jax"):
    """Golden case 0 with these tokens, which stand for its own."""
    case = GOLDEN[0]
    out = apply_bert_masking(tokens, case["vocab_size"], case["mask_token_id"], case["seed"], case["mask_prob"])
    np.testing.assert_array_equal(
        np.asarray(out), np.stack([case[framework]["corrupted"], case[framework]["selected"]], axis=-1))
    return out


# One flag each for what changes draws. What forbids things is set all at once, for each would compile anew.
JAX_FLAGS = {
    "partitionable off": dict(jax_threefry_partitionable=False),            # jax#13346: this changes the stream
    "x64": dict(jax_enable_x64=True),
    "rbg": dict(jax_default_prng_impl="rbg"),
    "unsafe_rbg": dict(jax_default_prng_impl="unsafe_rbg"),
    "seed offset, typed keys, and all strict": dict(
        jax_random_seed_offset=7, jax_enable_custom_prng=True, jax_legacy_prng_key="error", jax_debug_key_reuse=True,
        jax_numpy_dtype_promotion="strict", jax_numpy_rank_promotion="raise", jax_debug_nans=True,
        jax_transfer_guard="disallow_explicit"),
}   # without jit: in a fresh process, in test_encoder.py


@pytest.mark.parametrize("flags", JAX_FLAGS)
def test_jax_flags_do_not_change_the_draws(flags):
    flags, tokens = JAX_FLAGS[flags], GOLDEN[0]["tokens"]
    inputs = [np.array(tokens), jnp.array(tokens)]                          # before a flag forbids the transfer
    before = {name: jax.config.values[name] for name in flags}
    try:
        for name, value in flags.items():
            jax.config.update(name, value)
        if "jax_enable_x64" in flags:
            inputs += [jnp.array(tokens, jnp.int64), jnp.array(tokens, jnp.float64)]
        for x in inputs:
            assert golden_again(x).dtype == jnp.float32
        assert flags == {name: jax.config.values[name] for name in flags}   # left as they were found
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_torch_default_dtype_and_device_do_not_matter():
    tokens, before = torch.tensor(GOLDEN[0]["tokens"]), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), torch.inference_mode():
            out = golden_again(tokens, "torch")
    finally:
        torch.set_default_dtype(before)
    assert out.dtype == torch.float32 and out.device.type == "cpu"


def test_torch_draws_move_to_the_device_of_the_tokens(monkeypatch):
    # There may be no second device here, so the draws only report where they would have gone.
    moved = []

    class Draw:
        def __init__(self, draw):
            self.draw = draw

        def to(self, device):
            moved.append(device)
            return self.draw

    monkeypatch.setattr("mlm.masking.draws_torch", lambda *settings: map(Draw, draws_torch(*settings)))
    tokens = torch.tensor(GOLDEN[0]["tokens"])
    golden_again(tokens, "torch")
    assert moved == [tokens.device] * 3


def test_thread_count_does_not_matter():
    tokens, before, outs = torch.zeros(64, 2048, dtype=torch.int64), torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            outs.append(apply_bert_masking(tokens, **PLAIN))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*outs)


# --- the policy -------------------------------------------------------------------------------------------------

below = lambda x: np.nextafter(np.float32(x), np.float32(0))                        # noqa: E731


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("select", "corrupt", "expected"), [
    (0.0, 0.0, (10, True)),
    (below(0.5), below(0.8), (10, True)),       # less than 0.8: the mask ID
    (0.25, 0.8, (4, True)),                     # 0.8 itself: the random draw
    (0.25, below(0.9), (4, True)),
    (0.25, 0.9, (7, True)),                     # 0.9 itself: kept, and still selected
    (0.25, below(1), (7, True)),
    (0.5, 0.0, (7, False)),                     # mask_prob itself: not selected
    (below(1), 0.85, (7, False)),
])
def test_thresholds(framework, select, corrupt, expected):
    where = jnp.where if framework == "jax" else torch.where
    draws = (into(framework, np.array([x], dtype)) for x, dtype in (
        (select, np.float32), (corrupt, np.float32), (4, np.int32)))
    tokens = into(framework, np.array([7], np.int32))
    corrupted, selected = _bert_policy(where, tokens, *draws, mask_token_id=10, mask_prob=0.5)
    assert (int(corrupted[0]), bool(selected[0])) == expected


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_draw_equal_to_mask_prob_does_not_select(framework):
    tokens = into(framework, ids((2, 12), 11))
    select = exercise_draws(framework, (2, 12), 11, 3)[0]
    for at in np.ndindex(2, 12):
        for mask_prob, expected in ((select[at], 0), (np.nextafter(select[at], np.float32(1)), 1)):
            out = apply_bert_masking(tokens, **PLAIN | {"mask_prob": float(mask_prob)})
            assert out[at][1] == expected
            assert np.asarray(out)[..., 1].sum() == (select < mask_prob).sum()


def many(framework, mask_prob, seeds=40):
    """Input below 1000 beside what came out of a vocabulary far larger, so that what comes out tells the branch."""
    before = ids((8, 32), 1000)
    outs = [apply_bert_masking(into(framework, before), 2**24, 2**24 - 1, seed, mask_prob) for seed in range(seeds)]
    return before, np.stack([np.asarray(out) for out in outs])


def within(count, of, p):
    """Five standard deviations of the binomial distribution."""
    return abs(count - of * p) < 5 * (of * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_branches_have_the_shares_8_1_1(framework):
    before, out = many(framework, 0.3)
    after, selected = out[..., 0], out[..., 1] == 1
    m, masked, kept = selected.sum(), after == 2**24 - 1, after == before
    assert within(m, selected.size, 0.3)
    assert within((selected & masked).sum(), m, 0.8)
    assert within((selected & kept).sum(), m, 0.1)
    drawn = after[selected & ~kept & ~masked]
    assert within(len(drawn), m, 0.1)
    assert within((drawn < 2**23).sum(), len(drawn), 0.5)       # uniform over the vocabulary


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_short_row_is_empty_as_often_as_chance_has_it(framework):
    # transformers#16711, pytorch#70348: with 14 tokens at 0.15 one row in ten has nothing to predict. No NaN.
    _, out = many(framework, 0.15)
    rows = out[..., 1].ravel()[: 14 * 731].reshape(731, 14)
    assert within((rows.sum(axis=1) == 0).sum(), 731, 0.85**14)
    assert np.isfinite(out).all()


# --- properties -------------------------------------------------------------------------------------------------

@st.composite
def batches(draw):
    shape = draw(st.sampled_from(SHAPES))
    vocab_size = draw(st.sampled_from([1, 2, 11, 30522, 2**24]) | st.integers(1, 2**24))
    return dict(tokens=ids(shape, vocab_size, draw(st.integers(0, 99))), vocab_size=vocab_size,
                mask_token_id=draw(st.integers(0, vocab_size - 1)), seed=draw(st.integers(-2**63, 2**63 - 1)))


probabilities = st.sampled_from([0, 0.0, 0.15, 1, 1.0, 5e-324]) | st.floats(0, 1)


@STEADY
@given(framework=st.sampled_from(FRAMEWORKS), batch=batches(), mask_prob=probabilities)
def test_any_batch_follows_the_table(framework, batch, mask_prob):
    tokens, kept = into(framework, batch["tokens"]), batch["tokens"].copy()
    out = np.asarray(apply_bert_masking(**batch | {"tokens": tokens}, mask_prob=mask_prob))
    draws = exercise_draws(framework, tokens.shape, batch["vocab_size"], batch["seed"])
    np.testing.assert_array_equal(out, by_the_table(kept, draws, batch["mask_token_id"], mask_prob))
    np.testing.assert_array_equal(np.asarray(tokens), kept)                         # the input is untouched
    np.testing.assert_array_equal(out[out[..., 1] == 0, 0], kept[out[..., 1] == 0])
    assert mask_prob not in (0, 1) or (out[..., 1] == mask_prob).all()


@STEADY
@given(framework=st.sampled_from(FRAMEWORKS), batch=batches(), low=probabilities, high=probabilities)
def test_a_larger_mask_prob_only_adds(framework, batch, low, high):
    assume(low <= high)
    batch["tokens"] = into(framework, batch["tokens"])
    few, many = (np.asarray(apply_bert_masking(**batch, mask_prob=p)) for p in (low, high))
    assert (few[..., 1] <= many[..., 1]).all()
    both = few[..., 1] == 1
    np.testing.assert_array_equal(few[both], many[both])        # what was selected is corrupted the same


@STEADY
@given(framework=st.sampled_from(FRAMEWORKS), batch=batches(), other=batches(), mask_prob=probabilities)
def test_selection_does_not_look_at_tokens(framework, batch, other, mask_prob):
    # A selected token counts even if it stays as it was: neither IDs nor the vocabulary enter the indicator.
    other["tokens"] = ids(batch["tokens"].shape, other["vocab_size"])
    a, b = (apply_bert_masking(**x | {"tokens": into(framework, x["tokens"]), "seed": 9}, mask_prob=mask_prob)
            for x in (batch, other))
    np.testing.assert_array_equal(a[..., 1], b[..., 1])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_word_in_the_vocabulary_never_changes_but_is_selected(framework):
    out = np.asarray(apply_bert_masking(into(framework, np.zeros((2, 12), int)), 1, 0, seed=3, mask_prob=1))
    assert (out[..., 0] == 0).all() and (out[..., 1] == 1).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_mask_prob_1_masks_much_but_not_everything(framework):
    out = np.asarray(apply_bert_masking(into(framework, np.ones((8, 32), int)), 11, 10, seed=3, mask_prob=1))
    assert {1, 10} < set(out[..., 0].ravel().tolist()) and (out[..., 1] == 1).all()


def test_the_largest_ids_stay_exact():
    tokens = np.arange(2**24 - 24, 2**24).reshape(2, 12)
    for framework in FRAMEWORKS:
        out = apply_bert_masking(into(framework, tokens), 2**24, 0, seed=1, mask_prob=0)
        np.testing.assert_array_equal(np.asarray(out[..., 0]), tokens)


def test_special_ids_are_ordinary_ids_here():
    # transformers#15342 reports random replacements that are special IDs. The strict exercise allows every ID,
    # the mask ID included; a mode that spares some must therefore be another one.
    for framework in FRAMEWORKS:
        tokens, draws = np.zeros((8, 32), int), exercise_draws(framework, (8, 32), 4, 3)
        assert set(draws[2][(draws[1] >= 0.8) & (draws[1] < 0.9)]) == {0, 1, 2, 3}
        out = apply_bert_masking(into(framework, tokens), 4, 3, seed=3, mask_prob=1)
        np.testing.assert_array_equal(np.asarray(out), by_the_table(tokens, draws, 3, 1))


# --- dtype and layout of the input --------------------------------------------------------------------------------

WHOLE = np.array(GOLDEN[0]["tokens"])
NUMPY_DTYPES = ("int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 longdouble "
                ">i4 >u2 >f4").split()
JAX_DTYPES = "int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 float8_e4m3fn".split()
TORCH_DTYPES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()


@pytest.mark.parametrize("tokens", [WHOLE.astype(d) for d in NUMPY_DTYPES], ids=NUMPY_DTYPES)
def test_numpy_dtypes(tokens):
    golden_again(tokens)


@pytest.mark.parametrize("dtype", JAX_DTYPES)
def test_jax_dtypes(dtype):
    golden_again(jnp.array(WHOLE, dtype))


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch_dtypes(dtype):
    golden_again(torch.tensor(WHOLE).to(getattr(torch, dtype)), "torch")


def frozen(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "Fortran order": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "read-only": frozen,
    "lists of rows": list,
    "floats in lists": lambda x: x.astype(float).tolist(),
}
TORCH_LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: x.repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3],
    "expanded": lambda x: torch.stack([x, x])[0].expand(2, 12),
    "with gradient": lambda x: x.double().requires_grad_(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numpy_layouts(layout):
    tokens = LAYOUTS[layout](WHOLE)
    before = np.array(tokens)
    golden_again(tokens)
    np.testing.assert_array_equal(tokens, before)


@pytest.mark.parametrize("layout", TORCH_LAYOUTS)
def test_torch_layouts(layout):
    tokens = TORCH_LAYOUTS[layout](torch.tensor(WHOLE))
    before = tokens.clone()
    assert not golden_again(tokens, "torch").requires_grad
    assert torch.equal(tokens, before)


def test_the_answer_shares_no_memory():
    tokens = torch.tensor(WHOLE, dtype=torch.float32)
    golden_again(tokens, "torch").zero_()
    assert torch.equal(tokens, torch.tensor(WHOLE, dtype=torch.float32))


# --- refusals: the argument, what came, what was wanted --------------------------------------------------------------

BAD_TOKENS = {
    "0-d": (3, ValueError, ("tokens", "()", "[batch, seq]")),
    "1-d": ([1, 2], ValueError, ("tokens", "(2,)", "[batch, seq]")),
    "3-d": ([[[1]]], ValueError, ("tokens", "(1, 1, 1)", "[batch, seq]")),
    "no rows": (np.zeros((0, 3), int), ValueError, ("tokens", "(0, 3)", "neither of them 0")),
    "no columns": (np.zeros((3, 0), int), ValueError, ("tokens", "(3, 0)", "neither of them 0")),
    "Boolean": ([[True, False]], TypeError, ("tokens", "bool", "whole numbers")),
    "complex": ([[1j]], TypeError, ("tokens", "complex128", "whole numbers")),
    "7.5": ([[0, 7.5]], ValueError, ("tokens[0, 1]", "7.5", "a whole number")),
    "almost 8": ([[7.9999999]], ValueError, ("tokens[0, 0]", "7.9999999", "a whole number")),
    "NaN": ([[0, 1], [np.nan, 1]], ValueError, ("tokens[1, 0]", "nan", "a whole number")),
    "infinity": ([[0, np.inf]], ValueError, ("tokens[0, 1]", "inf", "[0, 11)")),
    "-infinity": ([[0, -np.inf]], ValueError, ("tokens[0, 1]", "-inf", "[0, 11)")),
    "-1": ([[0, 1, -1]], ValueError, ("tokens[0, 2]", "-1", "[0, 11)")),
    "vocab_size": ([[0, 0], [11, 99]], ValueError, ("tokens[1, 0]", "11", "[0, 11)")),
    "beyond int32": ([[2**32]], ValueError, ("tokens[0, 0]", "4294967296", "[0, 11)")),
    "beyond float64": ([[2**53 + 1]], ValueError, ("tokens[0, 0]", "9007199254740993", "[0, 11)")),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", BAD_TOKENS)
def test_bad_tokens(case, framework):
    tokens, error, words = BAD_TOKENS[case]
    if framework == "torch":
        tokens = torch.tensor(np.asarray(tokens))
    before = np.asarray(tokens).copy()
    with refuses(error, *words):
        apply_bert_masking(tokens, **PLAIN)
    np.testing.assert_array_equal(np.asarray(tokens), before)


@pytest.mark.parametrize(("tokens", "error", "words"), [
    ([[1, 2], [3]], ValueError, ("tokens must be rectangular",)),
    ([["a"]], TypeError, ("tokens", "<U1", "whole numbers")),
    ([[None]], TypeError, ("tokens", "object", "whole numbers")),
    ([[10**30]], TypeError, ("tokens", "object", "whole numbers")),
    (None, ValueError, ("tokens", "()", "[batch, seq]")),
    (np.array([[2**64 - 1]], np.uint64), ValueError, ("tokens[0, 0]", "18446744073709551615", "[0, 11)")),
    (jnp.array([[0.5]], jnp.bfloat16), ValueError, ("tokens[0, 0]", "0.5", "a whole number")),
    (jax.random.split(jax.random.key(0), 4).reshape(2, 2), TypeError, ("tokens cannot be read", "PRNGKey")),
    (torch.tensor([[float("nan")]], dtype=torch.bfloat16), ValueError, ("tokens[0, 0]", "nan", "a whole number")),
    (torch.tensor([[1, 2]]).to_sparse(), TypeError, ("tokens cannot be read", "Sparse")),
    (torch.ones((1, 2), dtype=torch.int64, device="meta"), TypeError, ("tokens cannot be read", "no data")),
], ids=lambda x: str(x)[:40] if not isinstance(x, tuple | type) else "")
def test_unreadable_tokens(tokens, error, words):
    with refuses(error, *words):
        apply_bert_masking(tokens, **PLAIN)


NOT_INTEGERS = (1.0, np.float32(1), True, np.True_, "1", None, 1j, [1], np.array([1]), np.array(True),
                jnp.array(1.0), jnp.array(True), torch.tensor(True), torch.tensor(1.0), torch.tensor([1]))
NOT_NUMBERS = (True, np.False_, ".5", b".5", np.array(".5"), None, 1j, [0.5], np.array([0.5]), np.array(True),
               jnp.array(True), torch.tensor(False), torch.tensor([0.5]), 10**400)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("argument", "value", "error", "wanted"),
    [(name, value, TypeError, "wanted an integer")
     for name in ("vocab_size", "mask_token_id", "seed") for value in NOT_INTEGERS]
    + [("mask_prob", value, TypeError, "wanted a number from 0 to 1") for value in NOT_NUMBERS]
    + [("mask_prob", value, ValueError, f"{value}; wanted a number from 0 to 1")
       for value in (-0.1, -5e-324, 1.0000001, float("nan"), float("inf"), -1.0, 2.0)]
    + [("vocab_size", value, ValueError, f"{value}; wanted 1 to 16777216")
       for value in (0, -3, 2**24 + 1, np.int64(2**40))]
    + [("mask_token_id", value, ValueError, f"{value}; wanted an ID in [0, 11)")
       for value in (-1, 11, np.int64(2**40))],
    ids=lambda x: repr(x)[:30] if not isinstance(x, type) else "")
def test_bad_settings(framework, argument, value, error, wanted):
    with refuses(error, f"{argument} is ", wanted):
        apply_bert_masking(into(framework, [[1, 2]]), **PLAIN | {argument: value})


def test_settings_are_checked_before_tokens_and_may_be_array_scalars():
    with refuses(ValueError, "vocab_size is 0"):
        apply_bert_masking([[99]], 0, 0, 0)
    plain = apply_bert_masking(WHOLE, 11, 10, 3, 0.5)
    for number in (np.array, jnp.array, torch.tensor):
        out = apply_bert_masking(WHOLE, number(11), number(10), number(3), number(0.5))
        np.testing.assert_array_equal(out, plain)


TRACED = {
    "jit tokens": lambda: jax.jit(lambda x: apply_bert_masking(x, **PLAIN))(jnp.ones((1, 2), jnp.int32)),
    "vmap tokens": lambda: jax.vmap(lambda x: apply_bert_masking(x, **PLAIN))(jnp.ones((3, 1, 2), jnp.int32)),
    "grad tokens": lambda: jax.grad(lambda x: apply_bert_masking(x, **PLAIN).sum())(jnp.ones((1, 2))),
    "torch.func.vmap tokens": lambda: torch.func.vmap(lambda x: apply_bert_masking(x, **PLAIN))(
        torch.ones((3, 1, 2), dtype=torch.int64)),
    "jit seed": lambda: jax.jit(lambda s: apply_bert_masking([[1]], 11, 10, s))(3),
    "vmap seed": lambda: jax.vmap(lambda s: apply_bert_masking([[1]], 11, 10, s))(jnp.arange(3)),
    "torch.func.vmap seed": lambda: torch.func.vmap(lambda s: apply_bert_masking([[1]], 11, 10, s))(torch.arange(3)),
    "jit vocab_size": lambda: jax.jit(lambda v: apply_bert_masking([[1]], v, 0, 3))(11),
    "jit mask_token_id": lambda: jax.jit(lambda m: apply_bert_masking([[1]], 11, m, 3))(10),
    "jit mask_prob": lambda: jax.jit(lambda p: apply_bert_masking([[1]], 11, 10, 3, p))(0.5),
    "corrupt jit tokens": lambda: jax.jit(lambda x: corrupt_tokens(x, [[True]], 3))(jnp.ones((1, 1), jnp.int32)),
    "corrupt jit selected": lambda: jax.jit(lambda s: corrupt_tokens(np.array([[1]]), s, 3))(jnp.array([[True]])),
    "corrupt jit mask_id": lambda: jax.jit(lambda m: corrupt_tokens(np.array([[1]]), [[True]], m))(3),
    "validate jit selected": lambda: jax.jit(lambda s: validate_mask(s, (1, 1)))(jnp.array([[True]])),
    "validate torch.func.vmap selected": lambda: torch.func.vmap(lambda s: validate_mask(s, (1,)))(
        torch.tensor([[True]])),
}


@pytest.mark.parametrize("case", TRACED)
def test_traced_values_are_refused_in_words(case):
    with refuses(TypeError, f"{case.split()[-1]} is traced", "before the step"):
        TRACED[case]()


def test_tensors_that_torch_compile_traces_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)       # what torch.compile sets; it takes seconds
    with refuses(TypeError, "tokens is traced", "torch.compile"):
        apply_bert_masking(torch.tensor([[1, 2]]), **PLAIN)


# --- corrupt_tokens and validate_mask -----------------------------------------------------------------------------

TOKENS, SELECTED = [[0, 0, 0, 0], [1, 1, 1, 1]], [[False, True, False, False], [True, False, False, True]]
HIDDEN = [[0, 3, 0, 0], [3, 1, 1, 3]]


@pytest.mark.parametrize("mask", [list, np.array, jnp.array, torch.tensor, lambda x: frozen(np.array(x))],
                         ids=["lists", "numpy", "jax", "torch", "read-only"])
@pytest.mark.parametrize("tokens", [TOKENS, np.array(TOKENS, np.int64), np.array(TOKENS, np.uint8),
                                    jnp.array(TOKENS, jnp.int8), jnp.array(TOKENS), torch.tensor(TOKENS),
                                    torch.tensor(TOKENS, dtype=torch.uint8)],
                         ids=lambda x: str(getattr(x, "dtype", "lists")))
def test_corrupt_tokens_hides_what_is_selected_and_nothing_else(tokens, mask):
    selected, before = mask(SELECTED), np.asarray(tokens).copy()
    out = corrupt_tokens(tokens, selected, 3)
    assert isinstance(out, torch.Tensor if isinstance(tokens, torch.Tensor) else jax.Array)
    dtype = jnp.asarray(before).dtype if isinstance(tokens, list | np.ndarray) else tokens.dtype
    assert out.tolist() == HIDDEN and out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(tokens), before)
    np.testing.assert_array_equal(np.asarray(selected), SELECTED)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 4)])
def test_corrupt_tokens_takes_any_shape(framework, shape):
    tokens, selected = ids(shape, 3), np.ones(shape, bool)
    assert (np.asarray(corrupt_tokens(into(framework, tokens), selected, 3)) == 3).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("tokens", "selected", "mask_id", "error", "words"), [
    (np.ones((1, 2)), [[True, False]], 3, TypeError, ("tokens", "float64", "integer IDs")),
    (np.array([[True, True]]), [[True, False]], 3, TypeError, ("tokens", "bool", "integer IDs")),
    (np.array([[1, 2]]), [[False, False]], 3, ValueError, ("selected is empty", "(1, 2)", "at least one")),
    (np.array([[1, 2]]), [True, False], 3, ValueError, ("selected", "(2,)", "(1, 2)")),
    (np.array([[1, 2]]), [[True], [True]], 3, ValueError, ("selected", "(2, 1)", "(1, 2)")),
    (np.array([[1, 2]]), [[1, 0]], 3, ValueError, ("selected", "int64", "bool")),
    (np.array([[1, 2]]), [[1.0, 0.0]], 3, ValueError, ("selected", "float64", "bool")),
    (np.array([[1, 2]]), [[True], []], 3, ValueError, ("selected must be rectangular",)),
    (np.zeros((0, 3), int), np.zeros((0, 3), bool), 3, ValueError, ("selected is empty", "(0, 3)")),
    (np.array([[1, 2]]), [[True, False]], 3.0, TypeError, ("mask_id is 3.0", "integer")),
    (np.array([[1, 2]]), [[True, False]], True, TypeError, ("mask_id is True", "integer")),
    (np.array([[1, 2]]), [[True, False]], -1, ValueError, ("mask_id is -1", "wanted 0 to")),
    (np.array([[1, 2]], np.int8), [[True, False]], 128, ValueError, ("mask_id is 128", "0 to 127", "int8")),
])
def test_corrupt_tokens_refuses(framework, tokens, selected, mask_id, error, words):
    tokens = torch.tensor(tokens) if framework == "torch" else tokens
    before = np.asarray(tokens).copy()
    with refuses(error, *words):
        corrupt_tokens(tokens, selected, mask_id)
    np.testing.assert_array_equal(np.asarray(tokens), before)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_largest_mask_id_of_a_dtype_fits(framework):
    assert corrupt_tokens(into(framework, np.array([[1, 2]], np.int8)), [[True, False]], 127).tolist() == [[127, 2]]


def test_ids_that_jax_would_wrap_around_are_refused():
    # Without x64, jnp.asarray turns 2**40 into 0 and says nothing.
    with refuses(ValueError, "tokens", "int64", str(2**40), "int32"):
        corrupt_tokens(np.array([[0, 2**40]]), [[True, False]], 3)
    assert corrupt_tokens(torch.tensor([[0, 2**40]]), [[True, False]], 3).tolist() == [[3, 2**40]]
    with jax.enable_x64(True):
        assert corrupt_tokens(np.array([[0, 2**40]]), [[True, False]], 3).tolist() == [[3, 2**40]]


@pytest.mark.parametrize("shape", [(2, 4), [2, 4], torch.Size([2, 4])], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("mask", [list, np.array, jnp.array, torch.tensor])
def test_validate_mask_accepts(mask, shape):
    assert validate_mask(mask(SELECTED), shape) is None


@pytest.mark.parametrize(("selected", "error", "words"), [
    (np.zeros((2, 4), bool), ValueError, ("selected is empty", "(2, 4)", "at least one")),
    (np.ones((4, 2), bool), ValueError, ("selected", "(4, 2)", "(2, 4)", "the shape of the targets")),
    (np.ones((1, 4), bool), ValueError, ("selected", "(1, 4)", "(2, 4)")),           # would broadcast
    (True, ValueError, ("selected", "()", "(2, 4)")),                                # so would this
    (np.ones((2, 4)), ValueError, ("selected", "float64", "bool")),
    (torch.ones(2, 4, dtype=torch.uint8), ValueError, ("selected", "uint8", "bool")),
    (None, ValueError, ("selected", "object", "bool")),
    (torch.ones(2, 4, dtype=torch.bool, device="meta"), TypeError, ("selected cannot be read", "no data")),
], ids=["empty", "shape", "one row", "scalar", "float", "uint8", "None", "meta"])
def test_validate_mask_refuses(selected, error, words):
    with refuses(error, *words):
        validate_mask(selected, (2, 4))
