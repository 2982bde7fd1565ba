"""Masks with keys of their own: JAX's cipher, published vectors, and the whole function again in Python's integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32 as jax_threefry
from refusals import refuses

from mlm import masked_nll
from mlm.masking import draws_jax
from mlm.schedule import BRANCHES, EVALUATION, eligible_positions, example_draws, mask_examples, threefry_2x32

FRAMEWORKS = ("numpy", "jax", "torch")
SPECIAL, MASK, ORDINARY = range(5), 4, range(5, 12)
ROW = np.array([[2, 7, 9, 8, 7, 3, 0, 0]])
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=60)


# --- references, written without the helper ---------------------------------------------------------------------

def cipher(key, counter):
    """Threefry-2x32 of Salmon et al. with 20 rounds, in Python's own integers."""
    words = *key, key[0] ^ key[1] ^ 0x1BD11BDA
    x, y = ((c + k) % 2**32 for c, k in zip(counter, key, strict=True))
    for done in range(1, 21):
        turn = (24, 13, 15, 26, 6, 17, 29, 16)[done % 8]
        x = (x + y) % 2**32
        y = (y << turn) % 2**32 ^ y >> 32 - turn ^ x
        if done % 4 == 0:
            x, y = (x + words[done // 4 % 3]) % 2**32, (y + words[(done // 4 + 1) % 3] + done // 4) % 2**32
    return x, y


def key_of(seed, epoch, example, draw):
    return cipher((seed >> 32, seed % 2**32), (1 + 3 * epoch + draw, example))


def by_hand(tokens, examples, *, seed, epoch, eligible, mask_id, ordinary_ids, mask_prob, shares):
    """The whole function, one position at a time. Thresholds are float32, like the draws."""
    out = np.array(tokens), np.zeros(np.shape(tokens), bool), np.zeros(np.shape(tokens), int)
    for row, t in np.ndindex(np.shape(tokens)):
        words = [cipher(key_of(seed, epoch, int(examples[row]), draw), (0, t)) for draw in range(3)]
        select, corrupt, replacement = (a ^ b for a, b in words)
        if eligible[row][t] and (select >> 9) / 2**23 < np.float32(mask_prob):
            out[1][row, t], chance = True, (corrupt >> 9) / 2**23
            if chance < np.float32(shares[0]):
                out[0][row, t], out[2][row, t] = mask_id, 1
            elif chance < np.float32(shares[0] + shares[1]):
                out[0][row, t], out[2][row, t] = ordinary_ids[replacement * len(ordinary_ids) // 2**32], 2
            else:
                out[2][row, t] = 3
    return out


def into(framework, x, dtype=None):
    return {"numpy": np.array, "jax": jnp.array, "torch": lambda x, dtype: torch.tensor(np.asarray(x), dtype=dtype)}[
        framework](x, dtype=dtype)


def masked(tokens, examples, **changed):
    known = dict(seed=3, epoch=2, mask_id=MASK, ordinary_ids=ORDINARY, mask_prob=0.5)
    if "eligible" not in changed:
        known["eligible"] = eligible_positions(tokens, SPECIAL)
    return mask_examples(tokens, examples, **known | changed)


def many(rows=2000, length=64, **changed):
    """Rows of the ordinary tokens, and what came out, as NumPy arrays."""
    tokens = np.random.default_rng(0).integers(5, 12, (rows, length))
    return tokens, *(np.asarray(x) for x in masked(tokens, np.arange(rows), **changed))


def same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def within(count, of, p):
    """Five standard deviations of the binomial distribution."""
    return abs(count - of * p) < 5 * (of * p * (1 - p)) ** 0.5


# --- the cipher and its keys --------------------------------------------------------------------------------------

@pytest.mark.parametrize(("key", "counter", "wanted"), [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),                                             # Random123, kat_vectors
    ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
])
def test_published_vectors(key, counter, wanted):
    assert tuple(int(x[0]) for x in threefry_2x32(key, counter)) == wanted == cipher(key, counter)
    assert all(x.dtype == np.uint32 and x.shape == (1,) for x in threefry_2x32(key, counter))


def test_cipher_against_jax():
    rng = np.random.default_rng(0)
    for key in rng.integers(0, 2**32, (5, 2), dtype=np.uint32):
        counters = rng.integers(0, 2**32, (2, 50), dtype=np.uint32)
        got = threefry_2x32(key, counters)
        np.testing.assert_array_equal(np.concatenate(got), jax_threefry(*map(jnp.asarray, (key, counters.ravel()))))
        assert [int(x[7]) for x in got] == list(cipher(key.tolist(), counters[:, 7].tolist()))


def test_cipher_broadcasts_and_changes_nothing():
    first, second = np.arange(3, dtype=np.uint32)[:, None], np.arange(4, dtype=np.uint32)
    got = threefry_2x32((7, first), (second, 0))
    assert [x.shape for x in got] == [(3, 4)] * 2
    assert (int(got[0][2, 3]), int(got[1][2, 3])) == cipher((7, 2), (3, 0))
    assert first.ravel().tolist() == [0, 1, 2] and second.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63 + 5, 2**64 - 1])
@pytest.mark.parametrize("epoch", [0, 7, EVALUATION - 1, EVALUATION])
def test_draws_are_what_jax_gives_for_the_documented_keys(seed, epoch):
    examples, root = [0, 9, 2**32 - 1], jnp.array([seed >> 32, seed % 2**32], jnp.uint32)
    words = example_draws(seed, epoch, examples, 10)
    assert words.shape == (3, 3, 10) and words.dtype == np.uint32
    for draw, row in np.ndindex(3, 3):
        key = jax_threefry(root, jnp.array([1 + 3 * epoch + draw, examples[row]], jnp.uint32))
        assert tuple(key.tolist()) == key_of(seed, epoch, examples[row], draw)
        np.testing.assert_array_equal(
            words[draw, row], jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), (10,)))


def test_selection_is_that_of_jaxs_uniform_numbers():
    tokens = np.full((1, 50), 7)
    key = jnp.array(key_of(3, 2, 9, 0), jnp.uint32)
    uniform = jax.random.uniform(jax.random.wrap_key_data(key, impl="threefry2x32"), (50,))
    np.testing.assert_array_equal(masked(tokens, [9], mask_prob=0.3)[1][0], uniform < 0.3)


EPOCHS, EXAMPLES = [*range(10), EVALUATION - 1, EVALUATION], [*range(200), 2**32 - 1]


def test_no_two_keys_are_equal_and_none_is_the_exercises():
    keys = [threefry_2x32((0, 3), (np.arange(1 + 3 * epoch, 4 + 3 * epoch)[:, None], np.array(EXAMPLES)))
            for epoch in EPOCHS]
    keys = {tuple(key) for pair in keys for key in np.stack(pair, -1).reshape(-1, 2).tolist()}
    assert len(keys) == len(EPOCHS) * len(EXAMPLES) * 3
    with jax.threefry_partitionable(True):
        root = jax.random.PRNGKey(3)
        theirs = {tuple(key) for key in [root.tolist(), *jax.random.split(root, 4).tolist(),
                                         *jax.random.split(root, 1000).tolist()]}
    assert len(theirs) == 1001 and not keys & theirs


def test_no_two_draws_begin_alike_and_none_is_the_exercises():
    rows = np.concatenate([example_draws(3, epoch, EXAMPLES, 2).reshape(-1, 2) for epoch in EPOCHS])
    rows = {tuple(row) for row in (rows >> 9).tolist()}
    assert len(rows) == len(EPOCHS) * len(EXAMPLES) * 3
    theirs = np.concatenate([np.asarray(x).reshape(-1, 2) for x in draws_jax((8, 32), 11, 3)[:2]])
    assert not rows & {tuple(row) for row in (theirs * 2**23).astype(int).tolist()}


# --- the same mask in any batch -------------------------------------------------------------------------------------

@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batch_order_and_padding_do_not_matter(framework):
    rng = np.random.default_rng(1)
    tokens, examples = np.pad(rng.integers(5, 12, (6, 9)), ((0, 0), (1, 3))), np.array([4, 0, 17, 2**32 - 1, 5, 6])
    whole = [np.asarray(x) for x in masked(into(framework, tokens), examples)]
    assert whole[1].any()
    for row in range(6):                                                        # alone
        same(masked(into(framework, tokens[row:row + 1]), examples[row:row + 1]), [x[row:row + 1] for x in whole])
    order = rng.permutation(6)                                                  # in another order
    same(masked(into(framework, tokens[order]), examples[order]), [x[order] for x in whole])
    same(masked(into(framework, tokens[:, :10]), examples), [x[:, :10] for x in whole])         # less padding
    wider = masked(into(framework, np.pad(tokens, ((0, 0), (0, 50)))), examples)                # and more
    same([x[:, :13] for x in wider], whole)
    assert not np.asarray(wider[1])[:, 13:].any()


def test_frameworks_agree_bit_for_bit():
    tokens = np.random.default_rng(2).integers(0, 12, (7, 33))
    outs = [masked(into(framework, tokens), np.arange(7)) for framework in FRAMEWORKS]
    for got, kind in zip(outs, (jax.Array, jax.Array, torch.Tensor), strict=True):
        assert all(isinstance(x, kind) for x in got)
        same(got, outs[0])


@pytest.mark.parametrize("kind", [list, tuple, np.array, np.uint64, jnp.array, torch.tensor],
                         ids=["list", "tuple", "int64", "uint64", "jax", "torch"])
def test_numbers_of_any_integer_kind(kind):
    got = mask_examples(ROW, kind([5]), seed=np.uint64(3), epoch=jnp.array(2), eligible=eligible_positions(
        ROW, kind(SPECIAL)), mask_id=torch.tensor(4), ordinary_ids=kind(ORDINARY), mask_prob=0.5)
    same(got, masked(ROW, [5]))


def test_epochs_seeds_and_examples_differ():
    tokens = np.full((1, 200), 7)
    outs = [np.asarray(masked(tokens, [example], seed=seed, epoch=epoch)[2]).tobytes() for example, seed, epoch in (
        (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 3), (3, 0, 0), (0, 2**32, 0), (0, 2**63, 0),
        (2**32 - 1, 0, 0), (0, 0, EVALUATION), (0, 0, EVALUATION - 1))]
    assert len(set(outs)) == len(outs)


@pytest.mark.parametrize("epoch", [0, EVALUATION])
def test_one_epoch_gives_one_mask(epoch):
    # Static masks are those of epoch 0 again and again, evaluation masks those of one epoch for all models.
    tokens = np.random.default_rng(0).integers(5, 12, (4, 30))
    first = masked(tokens, range(4), epoch=epoch)
    same(masked(tokens, range(4), epoch=epoch), first)
    same(masked(tokens + 20, range(4), epoch=epoch)[1:], first[1:])             # whatever the tokens are


def test_evaluation_masks_as_they_were_recorded():
    tokens = np.arange(5, 45)[None]
    known = dict(seed=0, eligible=tokens > 4, mask_id=4, ordinary_ids=range(5, 2048), mask_prob=0.3,
                 shares=(0.8, 0.1, 0.1))
    corrupted, selected, branch = mask_examples(tokens, [1], epoch=EVALUATION, **known)
    same((corrupted, selected, branch), by_hand(tokens, [1], epoch=2**30, **known))
    assert np.flatnonzero(selected).tolist() == [4, 6, 8, 10, 12, 18, 19, 22, 23, 24, 26, 29, 33, 35, 37, 38]


# --- the policy -----------------------------------------------------------------------------------------------------

SHARES = st.sampled_from([(0.8, 0.1, 0.1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0.25, 0.5, 0.25), (1 / 3, 1 / 3, 1 / 3)])


@STEADY
@given(st.data(), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2**64 - 1), st.integers(0, EVALUATION),
       st.floats(0, 1), SHARES, st.sampled_from(FRAMEWORKS))
def test_against_the_function_by_hand(data, batch, length, seed, epoch, mask_prob, shares, framework):
    def table(elements):
        return np.array(data.draw(st.lists(st.lists(elements, min_size=length, max_size=length),
                                           min_size=batch, max_size=batch)))
    tokens, eligible = table(st.integers(0, 60)), table(st.booleans())
    examples = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=batch, max_size=batch))
    known = dict(seed=seed, epoch=epoch, mask_id=4, ordinary_ids=data.draw(
        st.lists(st.integers(5, 60), min_size=1, max_size=9)), mask_prob=mask_prob, shares=shares)
    same(mask_examples(into(framework, tokens), examples, eligible=into(framework, eligible), **known),
         by_hand(tokens, examples, eligible=eligible, **known))


@STEADY
@given(st.lists(st.lists(st.integers(1, 11), min_size=1, max_size=12), min_size=1, max_size=4),
       st.integers(0, 2**64 - 1), st.sampled_from([0.15, 1]), SHARES)
def test_special_tokens_are_never_selected_nor_brought_in(rows, seed, mask_prob, shares):
    tokens = np.zeros((len(rows), max(map(len, rows)) + 2), int)                # ragged: 0 is padding
    for row, values in zip(tokens, rows, strict=True):
        row[:len(values) + 2] = [2, *values, 3]
    corrupted, selected, branch = (np.asarray(x) for x in masked(
        tokens, np.arange(len(rows)), seed=seed, mask_prob=mask_prob, shares=shares))
    assert not selected[tokens < 5].any()
    assert mask_prob < 1 or selected[tokens >= 5].all()
    np.testing.assert_array_equal(selected, branch > 0)
    same([corrupted[branch % 3 == 0], corrupted[branch == 1]], [tokens[branch % 3 == 0], (branch == 1).sum() * [MASK]])
    assert np.isin(corrupted[branch == 2], ORDINARY).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("special", [range(5), [0, 1, 2, 3, 4], np.arange(5), (4, 0, 3, 1, 2, 2)], ids=str)
def test_eligible_positions(framework, special):
    tokens = into(framework, [[2, 7, 9, 3, 0], [1, 4, 11, 5, -1]])
    got = eligible_positions(tokens, special)
    assert isinstance(got, torch.Tensor if framework == "torch" else jax.Array)
    assert got.tolist() == [[False, True, True, False, False], [False, False, True, True, True]]


def test_shares_15_percent_and_80_10_10():
    tokens, corrupted, selected, branch = many(mask_prob=0.15)
    assert within(selected.sum(), tokens.size, 0.15)
    for i, p in ((1, 0.8), (2, 0.1), (3, 0.1)):
        assert within((branch == i).sum(), selected.sum(), p), BRANCHES[i]
    per_position, per_row = selected.sum(0), selected.sum(1)                    # no place and no row is preferred
    assert all(within(n, 2000, 0.15) for n in per_position) and all(within(n, 64, 0.15) for n in per_row)
    assert BRANCHES == ("not selected", "masked", "random", "kept")


def test_shares_are_those_unless_said_otherwise():
    known = dict(seed=3, epoch=2, eligible=np.full((9, 64), True), mask_id=MASK, ordinary_ids=ORDINARY)
    tokens = np.full((9, 64), 7)
    same(mask_examples(tokens, range(9), **known),
         mask_examples(tokens, range(9), **known, mask_prob=0.15, shares=(0.8, 0.1, 0.1)))


@pytest.mark.parametrize(("shares", "seen"), [
    ((1, 0, 0), {1}), ((0, 1, 0), {2}), ((0, 0, 1), {3}), ((0.5, 0.5, 0), {1, 2}), ((0.3, 0, 0.7), {1, 3}),
    ((0, 0.3, 0.7), {2, 3})])
def test_a_share_of_nothing_never_occurs(shares, seen):
    tokens, corrupted, selected, branch = many(mask_prob=1, shares=shares)
    assert selected.all() and set(np.unique(branch).tolist()) == seen
    for i, p in enumerate(shares, 1):
        assert within((branch == i).sum(), tokens.size, p) or p in (0, 1)


def test_a_draw_equal_to_a_threshold_is_not_below_it():
    tokens = np.full((1, 40), 7)
    select, corrupt, _ = (example_draws(3, 2, [5], 40)[:, 0] >> 9).astype(np.float32) / 2**23

    def edges(x):
        return (x, False), (np.nextafter(x, np.float32(1)), True)
    for t in range(40):
        for edge, below in (*edges(select[t]), (float(select[t]) + 1e-12, False)):     # thresholds become float32
            assert bool(masked(tokens, [5], mask_prob=float(edge))[1][0, t]) == below
        for edge, below in (*edges(corrupt[t]), (float(corrupt[t]) + 1e-12, False)):
            rest = 1 - float(edge)
            assert (masked(tokens, [5], mask_prob=1, shares=(float(edge), rest, 0))[2][0, t] == 1) == below
            assert (masked(tokens, [5], mask_prob=1, shares=(0, float(edge), rest))[2][0, t] == 2) == below


def test_the_three_draws_and_their_neighbours_are_independent():
    first = example_draws(0, 0, np.arange(2000), 64).astype(float)
    others = {"epoch": example_draws(0, 1, np.arange(2000), 64), "seed": example_draws(1, 0, np.arange(2000), 64),
              "example": example_draws(0, 0, np.arange(1, 2001), 64)}
    pairs = {f"draws {i} {j}": (first[i], first[j]) for i, j in ((0, 1), (0, 2), (1, 2))} | {
        "position": (first[..., 1:], first[..., :-1])} | {name: (first, x) for name, x in others.items()}
    for name, (a, b) in pairs.items():
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / a.size ** 0.5, name


def test_branch_and_replacement_do_not_depend_on_being_selected():
    tokens, corrupted, selected, branch = many(mask_prob=0.5, shares=(0.5, 0.5, 0))
    low, high = (many(mask_prob=p, shares=(0.5, 0.5, 0))[1:] for p in (0.1, 1))
    assert (low[1] <= selected).all()                                           # more are selected, not others
    same([x[selected] for x in high], [x[selected] for x in (corrupted, selected, branch)])


@pytest.mark.parametrize("ids", [range(5, 55), [7], range(5, 2048), [9, 5, 5, 7]], ids=len)
def test_replacements_are_equally_likely(ids):
    tokens, corrupted, _, _ = many(mask_prob=1, shares=(0, 1, 0), ordinary_ids=ids)
    values, weights = np.unique(ids, return_counts=True)
    counts = np.array([(corrupted == value).sum() for value in values])
    wanted = tokens.size * weights / weights.sum()
    chi2, free = ((counts - wanted) ** 2 / wanted).sum(), len(values) - 1
    assert counts.sum() == tokens.size and abs(chi2 - free) <= 5 * (2 * free) ** 0.5


@pytest.mark.parametrize("framework", ("jax", "torch"))
@pytest.mark.parametrize("changed", [dict(mask_prob=0), dict(eligible=np.zeros(ROW.shape, bool))], ids=str)
def test_nothing_selected_is_no_error_and_adds_nothing(framework, changed):
    tokens = into(framework, ROW)
    corrupted, selected, branch = masked(tokens, [5], **changed)
    same([corrupted, selected, branch], [ROW, np.zeros(ROW.shape, bool), np.zeros(ROW.shape)])
    logits = into(framework, np.random.default_rng(0).normal(size=(*ROW.shape, 12)).astype(np.float32))
    assert [float(x) for x in masked_nll(logits, tokens, selected)] == [0, 0]


# --- what comes in and what goes out ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("framework", "dtype"), [
    ("jax", jnp.int32), ("jax", jnp.int8), ("jax", jnp.uint8), ("numpy", np.int32), ("numpy", np.int8),
    ("torch", torch.int64), ("torch", torch.int32), ("torch", torch.uint8)], ids=str)
def test_dtypes_are_kept(framework, dtype):
    corrupted, selected, branch = masked(into(framework, ROW, dtype), [5])
    assert corrupted.dtype == dtype and corrupted.shape == selected.shape == branch.shape == ROW.shape
    assert (selected.dtype, branch.dtype) == ((torch.bool, torch.int8) if framework == "torch" else (bool, np.int8))
    same([corrupted], masked(ROW, [5])[:1])


def test_int64_is_kept_where_jax_can_hold_it():
    assert masked(ROW, [5])[0].dtype == np.int32
    with jax.enable_x64(True):
        assert masked(ROW, [5])[0].dtype == np.int64 and masked(jnp.asarray(ROW), [5])[0].dtype == np.int64


def test_everything_moves_to_the_device_of_the_tokens(monkeypatch):
    # There may be no second device here, so what moves only reports where it would have gone.
    moved, from_numpy, tokens = [], torch.from_numpy, {name: into(name, ROW) for name in ("jax", "torch")}

    class Made:
        def __init__(self, x):
            self.x = x

        def to(self, device):
            moved.append(device)
            return from_numpy(self.x)

    def put(x, sharding):
        moved.append(sharding)
        return x
    monkeypatch.setattr(torch, "from_numpy", Made)
    monkeypatch.setattr(jax, "device_put", put)
    same(masked(tokens["torch"], [5], eligible=ROW > 4), masked(tokens["jax"], [5], eligible=ROW > 4))
    assert moved == [tokens["torch"].device] * 3 + [tokens["jax"].sharding] * 3


@pytest.mark.parametrize("mask_prob", [0, 0.5])
@pytest.mark.parametrize("framework", ("numpy", "torch"))
def test_the_input_stays_as_it_was(framework, mask_prob):
    tokens, examples, ids = into(framework, ROW), into(framework, [5]), into(framework, list(ORDINARY))
    eligible = into(framework, np.asarray(ROW) > 4)
    inputs = tokens, examples, ids, eligible
    before = [np.asarray(x).copy() for x in inputs]
    out = masked(tokens, examples, ordinary_ids=ids, eligible=eligible, mask_prob=mask_prob)
    same(inputs, before)
    if framework == "torch":
        for x in out:
            x.fill_(1)                                                          # nor does the output share memory
        same(inputs, before)


def test_read_only_input_will_do():
    tokens = ROW.copy()
    tokens.flags.writeable = False
    same(masked(tokens, [5]), masked(torch.tensor(ROW), [5]))


REFUSED = {
    "tokens 1-D": (dict(tokens=ROW[0]), ValueError, ("tokens has shape [8]", "[batch, seq]")),
    "tokens empty": (dict(tokens=np.zeros((0, 3), int)), ValueError, ("tokens has shape [0, 3]", "nothing empty")),
    "tokens without columns": (dict(tokens=np.zeros((3, 0), int)), ValueError, ("tokens has shape [3, 0]",)),
    "tokens float": (dict(tokens=ROW * 1.0), TypeError, ("tokens has dtype float64", "integers")),
    "tokens bool": (dict(tokens=ROW > 4), TypeError, ("tokens has dtype bool", "integers")),
    "tokens ragged": (dict(tokens=[[1, 2], [3]]), ValueError, ("tokens must be rectangular",)),
    "tokens meta": (dict(tokens=torch.ones(1, 8, device="meta")), TypeError, ("tokens cannot be read",)),
    "examples scalar": (dict(examples=5), ValueError, ("examples has shape []", "one dimension")),
    "examples 2-D": (dict(examples=[[5]]), ValueError, ("examples has shape [1, 1]", "one dimension")),
    "examples empty": (dict(examples=[]), ValueError, ("examples has shape [0]", "nothing empty")),
    "too many examples": (dict(examples=[5, 6]), ValueError, ("examples has 2 numbers for 1 rows", "one a row")),
    "examples float": (dict(examples=[5.0]), TypeError, ("examples has dtype float64", "integers")),
    "examples bool": (dict(examples=[True]), TypeError, ("examples has dtype bool", "integers")),
    "examples below": (dict(examples=[-1]), ValueError, ("examples reach from -1", "[0, 2**32)")),
    "examples above": (dict(examples=[2**32]), ValueError, ("examples reach", "to 4294967296", "[0, 2**32)")),
    "examples uint64": (dict(examples=np.array([2**64 - 1], np.uint64)), ValueError, ("examples reach", "709551615")),
    "seed below": (dict(seed=-1), ValueError, ("seed is -1", "0 to 2**64 - 1")),
    "seed above": (dict(seed=2**64), ValueError, ("seed is 18446744073709551616", "0 to 2**64 - 1")),
    "seed float": (dict(seed=1.0), TypeError, ("seed is 1.0", "integer")),
    "seed bool": (dict(seed=True), TypeError, ("seed is True", "integer")),
    "epoch below": (dict(epoch=-1), ValueError, ("epoch is -1", "0 to 1073741824")),
    "epoch above": (dict(epoch=EVALUATION + 1), ValueError, ("epoch is 1073741825", "0 to 1073741824")),
    "epoch float": (dict(epoch=0.5), TypeError, ("epoch is 0.5", "integer")),
    "eligible int": (dict(eligible=ROW), ValueError, ("eligible is int64 [1, 8]", "bool [1, 8], the shape")),
    "eligible would broadcast": (dict(eligible=[[True]]), ValueError, ("eligible is bool [1, 1]", "bool [1, 8]")),
    "eligible 1-D": (dict(eligible=[True] * 8), ValueError, ("eligible is bool [8]", "bool [1, 8]")),
    "mask_id float": (dict(mask_id=4.0), TypeError, ("mask_id is 4.0", "integer")),
    "mask_id bool": (dict(mask_id=True), TypeError, ("mask_id is True", "integer")),
    "mask_id below": (dict(mask_id=-1), ValueError, ("mask_id reaches -1", "0 to ")),
    "mask_id above": (dict(tokens=np.int8(ROW), mask_id=128), ValueError, ("mask_id reaches 128", "0 to 127", "int8")),
    "mask_id ordinary": (dict(mask_id=7), ValueError, ("ordinary_ids holds 7, the mask ID", "ordinary tokens only")),
    "ids empty": (dict(ordinary_ids=[]), ValueError, ("ordinary_ids has shape [0]", "nothing empty")),
    "ids 2-D": (dict(ordinary_ids=[[5]]), ValueError, ("ordinary_ids has shape [1, 1]", "one dimension")),
    "ids float": (dict(ordinary_ids=[5.5]), TypeError, ("ordinary_ids has dtype float64", "integers")),
    "ids too large": (dict(tokens=np.int8(ROW), ordinary_ids=[5, 128]), ValueError,
                      ("ordinary_ids reaches 128", "0 to 127", "int8")),
    "mask_prob below": (dict(mask_prob=-0.1), ValueError, ("mask_prob is -0.1", "0 to 1")),
    "mask_prob above": (dict(mask_prob=1.0001), ValueError, ("mask_prob is 1.0001", "0 to 1")),
    "mask_prob NaN": (dict(mask_prob=float("nan")), ValueError, ("mask_prob is nan", "0 to 1")),
    "mask_prob text": (dict(mask_prob="0.5"), TypeError, ("mask_prob is '0.5'", "a number from 0 to 1")),
    "mask_prob bool": (dict(mask_prob=True), TypeError, ("mask_prob is True", "a number from 0 to 1")),
    "mask_prob None": (dict(mask_prob=None), TypeError, ("mask_prob is None", "a number from 0 to 1")),
    "two shares": (dict(shares=(0.9, 0.1)), ValueError, ("shares are (0.9, 0.1)", "three numbers", "add up to 1")),
    "four shares": (dict(shares=(0.7, 0.1, 0.1, 0.1)), ValueError, ("shares are (0.7, 0.1,", "three numbers")),
    "no shares": (dict(shares=()), ValueError, ("shares are ()", "three numbers")),
    "shares above": (dict(shares=(0.5, 0.5, 0.5)), ValueError, ("shares are (0.5, 0.5, 0.5)", "add up to 1")),
    "a negative share": (dict(shares=(1, 0.1, -0.1)), ValueError, ("shares are (1.0, 0.1, -0.1)", "0 to 1")),
    "a share of NaN": (dict(shares=(float("nan"), 0, 1)), ValueError, ("shares are (nan, 0.0, 1.0)", "0 to 1")),
    "an infinite share": (dict(shares=(0, 0, float("inf"))), ValueError, ("shares are (0.0, 0.0, inf)", "0 to 1")),
    "a share in words": (dict(shares=("all", 0, 0)), TypeError, ("shares is 'all'", "three numbers")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    changed, error, words = REFUSED[case]
    known = dict(tokens=ROW, examples=[5], eligible=ROW > 4) | changed
    with refuses(error, *words):
        masked(known.pop("tokens"), known.pop("examples"), **known)


@pytest.mark.parametrize("mask_id", [5, 1, 0])
def test_refused_whatever_the_tokens_are(mask_id):
    with refuses(ValueError, f"ordinary_ids holds {mask_id}, the mask ID"):
        masked(ROW, [5], mask_id=mask_id, ordinary_ids=[0, 1, 5])


@pytest.mark.parametrize(("tokens", "special", "error", "words"), [
    (ROW[0], SPECIAL, ValueError, ("tokens has shape [8]", "[batch, seq]")),
    (ROW * 1.0, SPECIAL, TypeError, ("tokens has dtype float64", "integers")),
    (ROW, [0.5], TypeError, ("special_ids has dtype float64", "integers")),
    (ROW, [[0, 1]], ValueError, ("special_ids has shape [1, 2]", "one dimension")),
], ids=["1-D", "float", "float IDs", "2-D IDs"])
def test_eligible_positions_refuses(tokens, special, error, words):
    with refuses(error, *words):
        eligible_positions(tokens, special)


TRACED = {"tokens": jnp.array(ROW), "examples": jnp.array([5]), "eligible": jnp.array(ROW > 4), "seed": 3, "epoch": 2,
          "mask_id": 4, "ordinary_ids": jnp.arange(5, 12), "mask_prob": 0.5, "shares": jnp.array([1.0, 0, 0])}


@pytest.mark.parametrize("name", TRACED)
def test_traced_values_are_refused(name):
    def step(x):
        known = dict(tokens=ROW, examples=[5], eligible=ROW > 4) | {name: x}
        return masked(known.pop("tokens"), known.pop("examples"), **known)
    with refuses(TypeError, f"{name} is traced", "outside jit"):
        jax.jit(step)(TRACED[name])


def test_traced_tokens_are_refused_everywhere():
    with refuses(TypeError, "tokens is traced", "outside jit"):
        jax.jit(lambda tokens: eligible_positions(tokens, SPECIAL))(jnp.array(ROW))
    with refuses(TypeError, "tokens is traced", "vmap"):
        torch.func.vmap(lambda tokens: masked(tokens[None], [5], eligible=ROW > 4)[0])(torch.tensor(ROW))


def test_no_id_wraps_around():
    """JAX holds int64 as int32: without a check, a large ID would come back as a small one, padding for example."""
    settings_ = {"seed": 0, "epoch": 0, "eligible": np.ones((1, 2), bool), "mask_id": 4, "mask_prob": 1,
                 "shares": (0, 1, 0)}
    for tokens, ordinary, words in (([[7, 7]], [-1, 5], "ordinary_ids reaches -1"),
                                    ([[7, 7]], [5, 2**40], "ordinary_ids reaches 1099511627776"),
                                    ([[7, 2**40]], [5, 6], "tokens reaches 1099511627776")):
        with pytest.raises(ValueError, match=words):
            mask_examples(np.array(tokens), [5], ordinary_ids=ordinary, **settings_)
    with pytest.raises(ValueError, match="ordinary_ids reaches -1"):
        mask_examples(torch.tensor([[7, 7]]), [5], ordinary_ids=[-1, 5], **settings_)
    big = mask_examples(torch.tensor([[7, 7]]), [5], ordinary_ids=[2**40], **settings_)[0]
    assert big.tolist() == [[2**40, 2**40]]
