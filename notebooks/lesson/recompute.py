"""What the verifier computes again: the fixture in NumPy and float64 without the helper, and what is trained and drawn.

Everything here works on the arrays of a bundle, `{name: bytes}`, or on this copy of the course, never on both at once.
"""
import contextlib
import functools
import itertools
import json
import math

import numpy as np

from .container import Malformed, read_arrays, read_json
from .figures import PROJECT

MASK_ID = 3
ORDER = [places for count in (1, 2, 3, 4) for places in itertools.combinations(range(4), count)]        # hidden places
FIXTURE, HIDE, OBJECTIVE, GOLDEN = (f"arrays/{name}.npz" for name in ("fixture", "hidden", "objective", "golden"))


@functools.cache
def golden_cases():
    return json.loads((PROJECT / "data" / "golden_masking.json").read_text(encoding="utf-8"))["cases"]


@functools.cache
def layout():
    """`{file: {array: (dtype, shape)}}`: what the arrays of a bundle have to be."""
    ids, mask = ("int32", (3, 4)), ("bool", (3, 4))
    parameters = {f"{framework}_{when}_{part}": ("float32", shape) for framework in ("jax", "torch")
                  for when in ("initial", "trained") for part, shape in (("embedding", (4, 6)), ("head", (6, 3)))}
    fixture = {"targets": ids, "selected": mask, "corrupted": ids, **parameters,
               "jax_history": ("float64", (100,)), "torch_history": ("float64", (100,)),
               "final_probability": ("float32", (3, 3)), "output_gradient": ("float32", (3, 4, 3))}
    hidden = {"selected": ("bool", (15, 3, 4)), "corrupted": ("int32", (15, 3, 4)), "loss": ("float64", (15,)),
              "moved_selected": mask, "moved_corrupted": ids}
    objective = {"probability": ("float64", (2, 3, 3)), "targets": ("int32", (2, 3)), "selected": ("bool", (2, 3)),
                 "jax_gradient": ("float32", (2, 3, 3)), "torch_gradient": ("float64", (2, 3, 3))}
    golden = {f"{stream}_{i}": ("float32", (*np.shape(case["tokens"]), 2)) for stream in ("jax", "torch")
              for i, case in enumerate(golden_cases())}
    return {FIXTURE: fixture, HIDE: hidden, OBJECTIVE: objective, GOLDEN: golden}


def arrays(bundle, name):
    if name not in bundle:
        raise Malformed(f"{name} is missing")
    return _arrays(bundle[name], name)


@functools.lru_cache(maxsize=8)         # many claims rest on one file
def _arrays(raw, name):
    return read_arrays(raw, name, layout()[name])


def numbers(bundle, name):
    if name not in bundle:
        raise Malformed(f"{name} is missing")
    return read_json(bundle[name], name)


@contextlib.contextmanager
def full_precision():
    """JAX's CPU: an accelerator may be there, and would round the factors of matrix products."""
    import jax
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        yield


@functools.cache
def trained():
    """`{array: values}` of a fresh training by this copy of the course, both frameworks."""
    from mlm import initial_params, train_fixture
    found = {}
    for framework in ("jax", "torch"):
        with full_precision():
            params, history = train_fixture(framework)
        found[f"{framework}_history"] = np.array(history)
        for when, values in (("initial", initial_params(framework)), ("trained", params)):
            found |= {f"{framework}_{when}_{part}": np.asarray(value) for part, value in values.items()}
    return found


@functools.cache
def masked():
    """`{array: values}` of the exercise's masking, drawn again from the seeds, both frameworks."""
    import jax.numpy as jnp
    import torch

    from mlm import apply_bert_masking
    found = {}
    for i, case in enumerate(golden_cases()):
        settings = {name: case[name] for name in ("vocab_size", "mask_token_id", "seed", "mask_prob")}
        for stream, array in (("jax", jnp.array), ("torch", torch.tensor)):
            found[f"{stream}_{i}"] = np.asarray(apply_bert_masking(array(case["tokens"]), **settings))
    return found


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(embedding, read):
    """`[..., query, key]` weights of the encoder's one head."""
    h = ids(read, len(embedding), embedding)
    return softmax(h @ np.swapaxes(h, -1, -2) / math.sqrt(h.shape[-1]))


def logits(embedding, head, read):
    """The encoder of the course, in float64."""
    embedding, head = embedding.astype(np.float64), head.astype(np.float64)
    return attention(embedding, read) @ ids(read, len(embedding), embedding) @ head


def ids(values, limit, table):
    if ((values < 0) | (values >= limit)).any():
        raise Malformed(f"an ID lies outside [0, {limit})")
    return table[values]


def loss(scores, targets, selected):
    """Mean of -log p over the selected positions, in nats, and its gradient at the scores."""
    p, count = softmax(scores), selected.sum()
    if not count:
        raise Malformed("nothing is selected")
    onehot = ids(targets, scores.shape[-1], np.eye(scores.shape[-1]))
    top = scores - scores.max(-1, keepdims=True)
    logp = ((top - np.log(np.exp(top).sum(-1, keepdims=True))) * onehot).sum(-1)
    return -logp[selected].sum() / count, (p - onehot) * selected[..., None] / count


def trained_loss(a, read, selected, framework="jax"):
    scores = logits(a[f"{framework}_trained_embedding"], a[f"{framework}_trained_head"], read)
    return loss(scores, a["targets"], selected)[0]


def fixture_batch():
    targets = np.repeat(np.arange(3, dtype=np.int32)[:, None], 4, axis=1)
    selected = np.tile([False, True, False, False], (3, 1))
    return {"targets": targets, "selected": selected, "corrupted": np.where(selected, MASK_ID, targets)}


def objective_batch():
    return {"probability": np.array([[[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.2, 0.3, 0.5]],
                                     [[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.3, 0.4, 0.3]]]),
            "targets": np.array([[0, 1, 2], [1, 0, 2]], np.int32),
            "selected": np.array([[True, False, False], [True, True, True]])}


def hidden_losses(bundle):
    a, fixture = arrays(bundle, HIDE), arrays(bundle, FIXTURE)
    return np.array([trained_loss(fixture, *pair) for pair in zip(a["corrupted"], a["selected"], strict=True)])


def moved_loss(bundle):
    a = arrays(bundle, HIDE)
    return trained_loss(arrays(bundle, FIXTURE), a["moved_corrupted"], a["moved_selected"])


def objective(bundle):
    a = arrays(bundle, OBJECTIVE)
    if not (a["probability"] > 0).all():
        raise Malformed(f"{OBJECTIVE}: a probability is not positive")
    return np.log(a["probability"]), a["targets"], a["selected"]
