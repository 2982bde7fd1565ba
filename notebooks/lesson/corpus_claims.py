"""What a bundle claims about the corpus: its evaluation, computed again from the saved encoder without training."""
import functools
import json

import numpy as np

from .claims import Verdict, claim
from .container import Malformed, read_arrays
from .figures import PROJECT
from .recompute import numbers

CORPUS, TOKENIZER, ENCODER, EVALUATION = (
    "data/corpus.json", "data/tokenizer.json", "data/encoder.npz", "data/corpus_evaluation.json")
FILES = {CORPUS: "names, hashes and split of the documents, no texts", TOKENIZER: "the frozen tokenizer",
         ENCODER: "parameters of the encoder that the evaluation is of",
         EVALUATION: "held-out losses of three models, by part and branch"}
MODELS = ("unigram", "neighbours", "encoder")


def same_as_own(name):
    """The function of a claim about a file that is frozen: it must say what this copy's file says."""
    def check(bundle):
        path = PROJECT / name
        if not path.exists():
            raise Verdict("unverifiable", f"this copy of the course has no {name}")
        given, own = numbers(bundle, name), json.loads(path.read_text(encoding="utf-8"))
        if json.dumps(given, sort_keys=True) != json.dumps(own, sort_keys=True):        # True is not 1 there
            raise Verdict("fails", f"{name} is not the course's own")
        return [("files", 1, 1)]
    return check


claim("corpus.documents", "names, hashes and split of the documents are the course's", "as named", 0, CORPUS)(
    same_as_own(CORPUS))
claim("corpus.tokenizer", "the frozen tokenizer is the course's", "as named", 0, TOKENIZER)(same_as_own(TOKENIZER))


@functools.cache
def prepared():
    """The two counting models and the evaluation sets, from the libraries here; or why they are not the recorded."""
    from . import baselines, corpus, training
    documents, missing = corpus.collect()
    words = missing + corpus.differences(documents)
    if words:
        return "the corpus here is not the recorded one: " + words[0]
    train_rows, sets = training.held_out(corpus.split(documents), corpus.load_tokenizer())
    return baselines.unigram(train_rows.numpy()), baselines.neighbours(train_rows.numpy()), sets


@functools.cache
def of_counts():
    """`{part: {model: {branch: (nats, tokens)}}}` of the two models that only count."""
    from . import training
    share, neighbours, sets = prepared()
    found = {}
    for part, (targets, corrupted, selected, branch) in sets.items():
        answers = targets.numpy()[selected.numpy()]
        nll = {"unigram": -np.log(share[answers]),
               "neighbours": neighbours(targets.numpy(), corrupted.numpy(), selected.numpy())}
        found[part] = {model: training.by_branch(x, selected, branch) for model, x in nll.items()}
    return found


def both_encoders(raw):
    """`{name: array}` of the bytes of an npz file, and of the course's own encoder, which has to be alike in layout."""
    with np.load(PROJECT / ENCODER) as file:
        own = dict(file)
    return read_arrays(raw, ENCODER, {name: (x.dtype, x.shape) for name, x in own.items()}), own


@functools.lru_cache(maxsize=4)
def of_encoder(raw):
    """`{part: {branch: (nats, tokens)}}` of the parameters in the bytes of an npz file."""
    import torch

    from . import training
    given = both_encoders(raw)[0]
    params = {name: torch.from_numpy(np.array(x)) for name, x in given.items()}
    found = {}
    for part, (targets, corrupted, selected, branch) in prepared()[2].items():
        found[part] = training.by_branch(training.position_nll(params, targets, corrupted, selected), selected, branch)
    return found


def evaluation(bundle):
    """The bundle's evaluation and what is computed again here, both `{part: {name: number or text}}`."""
    from . import training
    if not (PROJECT / ENCODER).exists():
        raise Verdict("unverifiable", f"this copy of the course has no {ENCODER}")
    ready = prepared()
    if isinstance(ready, str):
        raise Verdict("unverifiable", ready)
    for name in (ENCODER, EVALUATION):
        if name not in bundle:
            raise Malformed(f"{name} is not in the bundle")
    again, encoder = of_counts(), of_encoder(bundle[ENCODER])
    wanted = {}
    for part, (_, corrupted, selected, _) in ready[2].items():
        wanted[part] = {"rows": len(selected), "selected positions, SHA-256": training.fingerprint(selected),
                        "corrupted rows, SHA-256": training.fingerprint(corrupted)}
        for model in MODELS:
            for branch, (nats, tokens) in (again[part] | {"encoder": encoder[part]})[model].items():
                wanted[part][f"{model}, {branch}"] = {"nats": float(nats), "tokens": int(tokens)}
    body = numbers(bundle, EVALUATION)
    given = body.get("numbers") if isinstance(body, dict) else None
    if not isinstance(given, dict) or given.keys() != wanted.keys() or not all(
            isinstance(given[part], dict) and given[part].keys() - {"12-token overlap"} == wanted[part].keys()
            for part in wanted):
        raise Verdict("fails", f"{EVALUATION} does not hold the parts and numbers of the course's")
    return given, wanted


@claim("corpus.masks", "evaluation masks and inputs, made again from their keys; tokens counted in them", "tokens", 0,
       EVALUATION, ENCODER)
def _(bundle):
    given, wanted = evaluation(bundle)
    for part in wanted:
        for name, value in wanted[part].items():
            stated, value = (x["tokens"] if isinstance(x, dict) and "tokens" in x else x
                             for x in (given[part][name], value))
            if type(stated) is not type(value) or stated != value:
                raise Verdict("fails", f"{EVALUATION}: {part}, {name} is not what the keys give")
    return [(part, given[part]["encoder, all"]["tokens"], wanted[part]["encoder, all"]["tokens"]) for part in wanted]


def of_models(models, statement, *files):
    @claim(f"corpus.{models[-1]}", statement, "nats per token", 1e-3, EVALUATION, ENCODER, *files)
    def _(bundle):
        given, wanted = evaluation(bundle)
        found = []
        for part in wanted:
            for name, value in wanted[part].items():
                if name.startswith(models):
                    stated = given[part][name]
                    nats = stated.get("nats") if isinstance(stated, dict) else None
                    if type(nats) not in (int, float) or not abs(nats) < 1e12:
                        raise Verdict("fails", f"{EVALUATION}: {part}, {name} states no nats")
                    if not np.isfinite(value["nats"]):      # finite parameters may be far too large
                        raise Verdict("fails", f"{ENCODER}: its loss, {part}, {name}, is not finite")
                    found.append((f"{part}, {name}", nats / value["tokens"], value["nats"] / value["tokens"]))
        return found


of_models(("encoder",), "loss of the saved encoder on three held-out parts, by branch, computed again")
of_models(("unigram", "neighbours"), "losses of the two counting models, counted and computed again")


@claim("corpus.training", "parameters of the encoder are those of the course's own training", "1", 1e-4, ENCODER)
def _(bundle):
    if not (PROJECT / ENCODER).exists():
        raise Verdict("unverifiable", f"this copy of the course has no {ENCODER}")
    if ENCODER not in bundle:
        raise Malformed(f"{ENCODER} is not in the bundle")
    given, own = both_encoders(bundle[ENCODER])
    far = max(float(np.abs(given[name].astype(np.float64) - x).max()) for name, x in own.items())
    if far > 1e-4:              # so it is on another processor: a thousand updates part from each other
        raise Verdict("not checked", f"other parameters than the course's own, by up to {far:.1g}: what they score is "
                                     "computed above, how they were trained is not")
    return [(name, given[name], x) for name, x in own.items()]
