"""Nine small training set-ups, eight of them with one fault that runs without an error, and the audits that tell.

Which letter has which fault is shuffled. Each set-up is a namespace of four functions:

    mask(epoch)                         -> (corrupted, selected), both `[row, seq]`
    logits(params, corrupted, targets)  -> `[row, seq, vocab]`
    log_probs(logits)                   -> `[row, seq, vocab]`
    loss(params, epoch, pieces)         -> nats, the rows run in so many pieces
"""
import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

PAD, CLS, SEP, MASK, VOCABULARY = 0, 1, 2, 3, 24
ROWS, LENGTH, MASK_PROB = 12, 20, 0.15
FAULTS = {
    "healthy": "nothing is wrong",
    "leak": "clean targets reach the encoder",
    "means": "the loss is a mean of batch means",
    "changed": "selection is inferred from 'the token changed'",
    "reseeded": "the generator is seeded again between the draws",
    "axis": "the vocabulary softmax runs over positions",
    "causal": "a causal triangle was left in",
    "frozen": "one mask serves every epoch",
    "special": "special tokens are drawn as replacements",
}
_rng = np.random.default_rng(12)
_lengths = _rng.integers(9, LENGTH + 1, (ROWS, 1))
_place = np.arange(LENGTH)
# [CLS] text [SEP] padding, a different length for each row
TARGETS = np.where(_place == 0, CLS, np.where(_place == _lengths - 1, SEP,
                   np.where(_place >= _lengths, PAD, _rng.integers(4, VOCABULARY, (ROWS, LENGTH)))))
PARAMS = {"embedding": _rng.normal(size=(VOCABULARY, 8)).astype(np.float32),
          "head": _rng.normal(size=(8, VOCABULARY)).astype(np.float32)}


def _setup(fault):
    def mask(epoch):
        seed = [5, 0 if fault == "frozen" else epoch]
        rng = np.random.default_rng(seed)
        select = rng.random((ROWS, LENGTH))
        if fault == "reseeded":
            rng = np.random.default_rng(seed)
        corrupt = rng.random((ROWS, LENGTH))
        replacement = rng.integers(0 if fault == "special" else 4, VOCABULARY, (ROWS, LENGTH))
        selected = (select < MASK_PROB) & (TARGETS > MASK)
        changed = np.where(corrupt < 0.8, MASK, np.where(corrupt < 0.9, replacement, TARGETS))
        corrupted = np.where(selected, changed, TARGETS)
        return corrupted, corrupted != TARGETS if fault == "changed" else selected

    def logits(params, corrupted, targets):
        params = {name: jnp.asarray(p) for name, p in params.items()}
        h = params["embedding"][jnp.asarray(corrupted)]
        scores = h @ h.mT / np.sqrt(h.shape[-1])
        if fault == "causal":
            scores = jnp.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        scores = jnp.where((np.asarray(corrupted) != PAD)[:, None, :], scores, -1e9)    # nobody reads padding
        if fault == "leak":
            h = h + 0.2 * params["embedding"][jnp.asarray(targets)]
        return jax.nn.softmax(scores, axis=-1) @ h @ params["head"]

    def log_probs(logits):
        return jax.nn.log_softmax(logits, axis=-2 if fault == "axis" else -1)

    def loss(params, epoch=0, pieces=1):
        corrupted, selected = mask(epoch)
        logp = log_probs(logits(params, corrupted, TARGETS))
        nll = -jnp.take_along_axis(logp, jnp.asarray(TARGETS)[..., None], axis=-1)[..., 0]
        totals = [(jnp.where(s, n, 0).sum(), s.sum()) for n, s in
                  zip(np.array_split(nll, pieces), np.array_split(selected, pieces), strict=True)]
        if fault == "means":
            return float(np.mean([total / count for total, count in totals if count]))
        return float(sum(total for total, _ in totals) / sum(count for _, count in totals))

    return SimpleNamespace(mask=mask, logits=logits, log_probs=log_probs, loss=loss)


_order = list(FAULTS)
random.Random(17).shuffle(_order)
SETUPS = {letter: _setup(fault) for letter, fault in zip("ABCDEFGHI", _order, strict=True)}


def audit_leak(setup):
    """Change selected targets, keep the input: largest change of a logit. Healthy: exactly 0."""
    corrupted, selected = setup.mask(0)
    other = np.where(selected, 4 + (TARGETS - 3) % (VOCABULARY - 4), TARGETS)
    return float(jnp.abs(setup.logits(PARAMS, corrupted, other) - setup.logits(PARAMS, corrupted, TARGETS)).max())


def audit_future(setup):
    """Change the last word: largest change of the *first* position's logits. Healthy: more than 0."""
    corrupted, _ = setup.mask(0)
    other = corrupted.copy()
    last = (TARGETS == SEP).argmax(-1) - 1
    other[np.arange(ROWS), last] = 4 + (corrupted[np.arange(ROWS), last] + 1) % (VOCABULARY - 4)
    moved = setup.logits(PARAMS, other, TARGETS) - setup.logits(PARAMS, corrupted, TARGETS)
    return float(jnp.abs(moved[:, 0]).max())


def audit_first_loss(setup):
    """First loss with a zero head, minus log V. Healthy: 0."""
    return setup.loss({**PARAMS, "head": 0 * PARAMS["head"]}) - float(np.log(VOCABULARY))


def audit_cut(setup):
    """Loss with the rows run in four pieces, minus the loss of the whole. Healthy: 0."""
    return setup.loss(PARAMS, pieces=4) - setup.loss(PARAMS)


def audit_epochs(setup):
    """Share of positions selected in epoch 0 that are selected in epoch 1 too. Healthy: about 0.15."""
    first, second = setup.mask(0)[1], setup.mask(1)[1]
    return float((first & second).sum() / first.sum())


def audit_shares(setup, epochs=100):
    """Shares over 100 epochs: `{"selected", "mask", "random", "kept"}`. Healthy: about 0.15, 0.8, 0.1, 0.1.

    The first is of the ordinary tokens, the others are of the selected ones, by what is read there.
    """
    read, selected = (np.stack(a) for a in zip(*map(setup.mask, range(epochs)), strict=True))
    ordinary, clean = np.broadcast_to(TARGETS > MASK, read.shape), np.broadcast_to(TARGETS, read.shape)
    return {"selected": float(selected[ordinary].mean()), "mask": float((read == MASK)[selected].mean()),
            "random": float(((read != MASK) & (read != clean))[selected].mean()),
            "kept": float((read == clean)[selected].mean())}


def audit_special(setup, epochs=100):
    """How many padding, CLS and SEP IDs are read at places that held a word, in 100 epochs. Healthy: 0."""
    return int(sum(((setup.mask(epoch)[0] < MASK) & (TARGETS > MASK)).sum() for epoch in range(epochs)))


# Which audit shows which fault, and when it fires. (The mask ID among replacements cannot be told from masking.)
AUDITS = {
    audit_leak: ({"leak"}, lambda moved: moved > 0),
    audit_future: ({"causal"}, lambda moved: moved == 0),
    audit_first_loss: ({"axis"}, lambda off: abs(off) > 1e-3),
    audit_cut: ({"means"}, lambda off: abs(off) > 1e-3),
    audit_epochs: ({"frozen"}, lambda share: share > 0.9),
    audit_shares: ({"changed", "reseeded"}, lambda share: share["kept"] < 0.03),
    audit_special: ({"special"}, lambda count: count > 0),
}


def fault_of(letter):
    """The fault of a set-up, for the check and its tests."""
    return _order["ABCDEFGHI".index(letter)]
