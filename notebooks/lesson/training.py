"""Training and evaluating the encoder on rows of a corpus, in PyTorch. Notebook 3 shows each step by hand."""
import hashlib
from contextlib import contextmanager

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from mlm.schedule import BRANCHES, EVALUATION, eligible_positions, mask_examples
from mlm.transformer import encoder_logits, initial_encoder

from .corpus import MASK, PAD, SPECIAL, VOCAB, rows
from .figures import PROJECT, output_folder

FILE = "encoder.npz"
ROWS_HELD = 0.05        # share of the training documents' rows that is held out after cutting
BATCH, UPDATES, RATE, WARM_UP, LONGEST_GRADIENT = 64, 1000, 1e-2, 100, 1.0


def masks(tokens, examples, seed, epoch):
    """`mask_examples` with this corpus's special tokens. tokens `[batch, seq]` int64 tensor."""
    return mask_examples(tokens, examples, seed=seed, epoch=epoch, mask_id=MASK,
                         ordinary_ids=np.arange(len(SPECIAL), VOCAB),
                         eligible=eligible_positions(tokens, range(len(SPECIAL))))


def selected_nll(params, targets, corrupted, selected):
    """Summed nats over the selected positions of a batch, and their number; the head sees only those."""
    positions = selected.flatten().nonzero()[:, 0]                              # [n]
    logits = encoder_logits(params, corrupted, corrupted == PAD, positions)     # [n, vocab]
    # What `masked_nll` gives, in one piece: here nothing unselected is left to mask.
    return cross_entropy(logits, targets.flatten()[positions], reduction="sum"), torch.tensor(len(positions))


def learning_rate(update, updates, highest=RATE):
    """Rises over the first `WARM_UP` updates (of a short training, the first half), then falls, in straight lines."""
    rise = min(WARM_UP, updates / 2)
    return highest * min(1, (update + 1) / rise, (updates - update) / (updates - rise))


def train(tokens, *, seed=0, updates=UPDATES, static=False, after_update=None):
    """Train an encoder on rows of tokens.

    Args:
        tokens: `[row, seq]` int64 tensor; row i is example i for its masks. (In a corpus that grows, a row needs a
            number that stays, such as a hash of its document and place.)
        seed: of the initial parameters, the order of rows, and the masks.
        updates: of `BATCH` rows each.
        static: whether every epoch sees the same masks.
        after_update: called with `(updates so far, params)`, not after a skipped batch.

    Returns:
        `(params, history, skipped)`: the parameters, the loss of each update in nats, measured
        before it, and the number of batches skipped because nothing was selected, which leave
        no loss.
    """
    params = initial_encoder(seed, VOCAB)
    for x in params.values():
        x.requires_grad_()
    # Weight decay falls on everything here, gains and biases too; many recipes leave those out.
    optimizer = torch.optim.AdamW(params.values(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    order, history, skipped = np.random.default_rng(seed), [], 0
    batches, name = epochs(len(tokens), order), "static masks" if static else "dynamic masks"
    for update in tqdm(range(updates), desc=name, unit="update", mininterval=0.5):
        epoch, chosen = next(batches)
        targets = tokens[chosen]
        corrupted, selected, _ = masks(targets, chosen, seed, 0 if static else epoch)
        total, count = selected_nll(params, targets, corrupted, selected)
        if not count:               # with several ranks, the count of all decides, or one waits for the others for ever
            skipped += 1
            continue
        loss = total / count
        history.append(loss.item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(update, updates)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), LONGEST_GRADIENT)
        optimizer.step()
        if after_update:
            after_update(update + 1, params)
    return {name: x.detach() for name, x in params.items()}, np.array(history), skipped


def epochs(number, order):
    """Endless `(epoch, [BATCH] row numbers)`; each epoch in a new order, without its last incomplete batch."""
    if number < BATCH:
        raise ValueError(f"{number} rows of tokens; wanted at least one batch of {BATCH}")
    epoch = 0
    while True:
        shuffled = order.permutation(number)
        for start in range(0, number - BATCH + 1, BATCH):
            yield epoch, shuffled[start:start + BATCH]
        epoch += 1


def frozen(tokens, examples, seed=0):
    """`(targets, corrupted, selected, branch)` for evaluation, the same for every model."""
    return tokens, *masks(tokens, examples, seed, EVALUATION)


def held_out(parts, tokenizer):
    """Training rows and evaluation sets, as notebook 3 makes them in sections 3.12 and 3.13.

    Returns:
        `(train_rows, {"rows", "documents", "library": (targets, corrupted, selected, branch)})`.
    """
    whole = {name: torch.from_numpy(rows(tokenizer, inside)[0]) for name, inside in parts.items()}
    by_chance = torch.from_numpy(np.random.default_rng(0).random(len(whole["train"])) < ROWS_HELD)
    train_rows, sets = whole["train"][~by_chance], {}
    first = len(train_rows)                 # rows are numbered through, and the number is the key of a mask
    for name, tokens in (("rows", whole["train"][by_chance]), ("documents", whole["document"]),
                         ("library", whole["library"])):
        sets[name] = frozen(tokens, np.arange(first, first + len(tokens)))
        first += len(tokens)
    return train_rows, sets


def position_nll(params, targets, corrupted, selected, at_once=32):
    """-log p(target) at each selected position, `[n]` nats, in the order of the flattened rows; few rows at once, which
    takes less memory and no more time."""
    parts = []
    with torch.no_grad():
        for start in range(0, len(targets), at_once):
            part = slice(start, start + at_once)
            positions = selected[part].flatten().nonzero()[:, 0]
            logits = encoder_logits(params, corrupted[part], corrupted[part] == PAD, positions)
            answers = targets[part].flatten()[positions]
            parts.append(-torch.log_softmax(logits, -1).gather(1, answers[:, None])[:, 0])
    return torch.cat(parts).double().numpy()


def by_branch(nll, selected, branch):
    """`{"all", "masked", "random", "kept": (nats, tokens)}` from the losses of all selected positions."""
    branch = branch[selected].numpy()
    return {"all": (nll.sum(), len(nll))} | {
        name: (nll[branch == i].sum(), int((branch == i).sum())) for i, name in enumerate(BRANCHES) if i}


def save(params):
    """Write `data/encoder.npz`, under the project or the folder that MLM_OUT names."""
    path = output_folder() / "data" / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".part"), "wb") as file:                     # whole or not at all
        np.savez(file, **{name: x.numpy() for name, x in params.items()})   # zip with fixed dates: same bytes
    path.with_suffix(".part").replace(path)


def load(path=None):
    """The trained parameters as PyTorch tensors, those just saved or the recorded ones."""
    saved = output_folder() / "data" / FILE
    with np.load(path or (saved if saved.exists() else PROJECT / "data" / FILE)) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


def fingerprint(x):
    """SHA-256 of a tensor's values, as int64 in the order of rows."""
    return hashlib.sha256(x.numpy().astype("<i8").tobytes()).hexdigest()


@contextmanager
def threads(number):
    """PyTorch with so many threads inside a `with` block, and as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
