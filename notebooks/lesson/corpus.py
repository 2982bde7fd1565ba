"""Real text without a download: the docstrings of the libraries that the course installs.

A document is one docstring, a source one library. Text is read, never run. What was found on the
machine of the record stands in `data/corpus.json` (names, hashes, split; no texts), the frozen
tokenizer in `data/tokenizer.json`. A maintainer renews both with `python -m lesson.corpus`.
"""
import hashlib
import importlib
import inspect
import json
import re
import unicodedata
import warnings
from collections import Counter, namedtuple
from importlib.metadata import PackageNotFoundError, version
from operator import itemgetter

import numpy as np

from .figures import PROJECT

# The public modules to look into. The last library is held out as a source.
LIBRARIES = {
    "torch": ["torch", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.optim",
              "torch.optim.lr_scheduler", "torch.utils.data", "torch.linalg", "torch.fft", "torch.special",
              "torch.distributions", "torch.autograd", "torch.func", "torch.sparse"],
    "jax": ["jax", "jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.lax", "jax.nn", "jax.nn.initializers",
            "jax.random", "jax.tree_util", "jax.scipy.linalg", "jax.scipy.special", "jax.scipy.signal", "jax.sharding"],
    "matplotlib": ["matplotlib", "matplotlib.pyplot", "matplotlib.axes", "matplotlib.figure", "matplotlib.colors",
                   "matplotlib.patches", "matplotlib.lines", "matplotlib.text", "matplotlib.collections",
                   "matplotlib.ticker", "matplotlib.transforms", "matplotlib.image", "matplotlib.axis"],
    "scipy": ["scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.special", "scipy.integrate",
              "scipy.interpolate", "scipy.ndimage", "scipy.sparse", "scipy.spatial", "scipy.fft"],
    "numpy": ["numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.ma", "numpy.polynomial", "numpy.strings"],
}
HELD_LIBRARY = "numpy"
SHORTEST, LONGEST = 300, 100_000        # characters
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB, LENGTH = 2048, 64                # IDs; tokens in a row, [CLS] and [SEP] among them
RECORD, TOKENIZER = PROJECT / "data" / "corpus.json", PROJECT / "data" / "tokenizer.json"

Document = namedtuple("Document", "name source sha256 text")


def collect(libraries=LIBRARIES):
    """All distinct documents in a fixed order, and what is missing, in words.

    Returns:
        `(documents, missing)`: a list of `Document`, and a list of sentences, empty when
        every module could be imported.
    """
    documents, missing = {}, []
    for source, modules in libraries.items():
        for name in modules:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")         # some modules warn that they will move
                    module = importlib.import_module(name)
            except Exception as error:                      # an import can fail in any way
                missing.append(f"{name} cannot be imported ({type(error).__name__}: {error}); "
                               "its documents are left out. Install the packages of requirements-cpu.txt.")
                continue
            for full_name, docstring in public_docstrings(source, name, module):
                text = clean(docstring)
                if len(text) >= SHORTEST:
                    sha = hashlib.sha256(text.encode()).hexdigest()
                    documents.setdefault(sha, Document(full_name, source, sha, text))   # aliases share a text
    return list(documents.values()), missing


def public_docstrings(source, name, module):
    """`(name, docstring)` of a module, its public functions and classes, and their public members."""
    yield name, _docstring(module)
    named = {key: thing for key, thing in vars(module).items() if type(key) is str}
    for key, thing in sorted(named.items(), key=itemgetter(0)):
        if key.startswith("_") or not _own(source, thing):
            continue
        yield f"{name}.{key}", _docstring(thing)
        if inspect.isclass(thing):
            for member, inside in sorted(vars(thing).items(), key=itemgetter(0)):
                if not member.startswith("_") and (callable(inside) or isinstance(
                        inside, (property, classmethod, staticmethod)) or inspect.isdatadescriptor(inside)):
                    yield f"{name}.{key}.{member}", _docstring(inside)


def _docstring(thing):
    try:
        text, of_its_kind = thing.__doc__, type(thing).__doc__
    except Exception:               # an attribute can be code, and code can fail
        return None
    if type(text) is not str or type(of_its_kind) is str and text == of_its_kind:
        return None                 # Python's own, about static methods for example
    return text


def _own(source, thing):
    """Whether it is a function or class that the library wrote itself: SciPy and JAX also show some of NumPy's."""
    try:
        if inspect.ismodule(thing) or not callable(thing):
            return False
        module = getattr(thing, "__module__", None)
    except Exception:               # what cannot even be asked is left out
        return False
    return not isinstance(module, str) or module.split(".")[0] in (source, source + "lib")      # jaxlib


def clean(docstring):
    """Text as the tokenizer gets it, or "" when there is none.

    - Anything but a string counts as no text: `__doc__` can be any object.
    - What is very long is cut: a docstring can be megabytes.
    - Lone surrogates and control characters, which no reader sees, become spaces.
    - Addresses in memory lose their digits: they differ in every process.
    - Sets of names are sorted: Python writes them out in another order in every process.
    - White space becomes single spaces: Python 3.13 removes indentation, 3.11 keeps it.
    """
    if type(docstring) is not str:
        return ""
    text = re.sub("[\ud800-\udfff]", " ", docstring[:LONGEST])
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)
    text = re.sub(r"\b0x[0-9a-fA-F]{6,}", "0x", " ".join(text.split()))
    return re.sub(r"(?<=\{)'[^{}']*'(?:, '[^{}']*')+(?=\})", lambda x: ", ".join(sorted(x[0].split(", "))), text)


def split(documents):
    """`{"train", "document", "library"}`: the held-out library, a tenth of the other documents, and the rest.

    A document's own hash decides, so a document stays on its side when others come or go.
    """
    parts = {"train": [], "document": [], "library": []}
    for document in documents:
        tenth = int(document.sha256[:8], 16) % 10 == 0
        parts["library" if document.source == HELD_LIBRARY else "document" if tenth else "train"].append(document)
    hashes = [{document.sha256 for document in part} for part in parts.values()]
    if sum(map(len, hashes)) != len(set().union(*hashes)):
        raise ValueError("a document stands on two sides of the split")
    return parts


def shared_windows(held, train, n=12):
    """For each sequence of `held`: how many of its n-item windows `train` holds too, and how many it has.

    Args:
        held, train: lists of sequences of words or token IDs.

    Returns:
        `(shared, windows)`, two int64 arrays `[sequence]`.
    """
    numbers = {}

    def hashes(sequence):
        ids = np.array([numbers.setdefault(item, len(numbers)) for item in sequence], np.uint64)
        total = np.zeros(max(len(ids) - n + 1, 0), np.uint64)
        for i in range(n if len(total) else 0):             # a polynomial modulo 2**64
            total = total * np.uint64(0x9E3779B97F4A7C15) + ids[i:i + len(total)]
        return total
    known = np.concatenate([np.zeros(0, np.uint64), *map(hashes, train)])
    asked = [hashes(sequence) for sequence in held]
    windows = np.array([len(a) for a in asked], int)
    found = np.isin(np.concatenate([np.zeros(0, np.uint64), *asked]), known)
    return np.bincount(np.repeat(np.arange(len(asked)), windows), found, len(asked)).astype(int), windows


def overlap(held, train, n=12):
    """Share of the n-item windows of `held` that `train` holds too, each occurrence counted."""
    shared, windows = shared_windows(held, train, n)
    if not windows.sum():
        raise ValueError(f"held has no sequence of {n} items; wanted at least one")
    return float(shared.sum() / windows.sum())


def train_tokenizer(documents):
    """A WordPiece tokenizer from the training part only; lower case, every digit and punctuation mark by itself."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(),
                                                       pre_tokenizers.Digits(individual_digits=True)])
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    # Which tokens come out is certain, which IDs the single characters get is not: put them in order.
    learned = sorted(tokenizer.get_vocab().keys() - set(SPECIAL))
    vocab = {token: number for number, token in enumerate(SPECIAL + learned)}
    tokenizer.model = models.WordPiece(vocab, unk_token="[UNK]")
    return tokenizer


def load_tokenizer():
    """The frozen tokenizer; its special tokens have IDs 0 to 4, in the order of `SPECIAL`."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    ids = [tokenizer.token_to_id(token) for token in SPECIAL]
    if ids != [PAD, UNK, CLS, SEP, MASK]:
        raise ValueError(f"{TOKENIZER.name} gives {SPECIAL} the IDs {ids}; wanted 0 to 4")
    return tokenizer


def rows(tokenizer, documents):
    """Documents cut into rows of `[CLS] tokens [SEP]`, padded on the right.

    Returns:
        `(tokens, document)`: `[row, LENGTH]` int64, and `[row]`, the index of its document.
    """
    tokens, owner, inside = [], [], LENGTH - 2
    before, tokenizer.encode_special_tokens = tokenizer.encode_special_tokens, True     # "[PAD]" in a text is text
    for first in range(0, len(documents), 256):             # an encoding takes much more memory than its IDs
        texts = [document.text for document in documents[first:first + 256]]
        for index, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False), first):
            ids = np.array(encoding.ids, np.int64)
            for start in range(0, len(ids), inside):
                part = ids[start:start + inside]
                row = np.full(LENGTH, PAD, np.int64)
                row[0], row[1:len(part) + 1], row[len(part) + 1] = CLS, part, SEP
                tokens.append(row)
                owner.append(index)
    tokenizer.encode_special_tokens = before
    return np.array(tokens, np.int64).reshape(-1, LENGTH), np.array(owner, np.int64)


def record(documents):
    """What identifies a corpus: versions, counts, and each document's name, source, hash and part."""
    parts = split(documents)
    part_of = {document.sha256: part for part, inside in parts.items() for document in inside}
    return {"versions": {source: _version(source) for source in LIBRARIES},
            "counts": {part: {"documents": len(inside), "characters": sum(len(d.text) for d in inside)}
                       for part, inside in parts.items()},
            "documents": [[d.name, d.source, d.sha256, part_of[d.sha256]] for d in documents]}


def differences(documents, recorded=None):
    """What changed against the recorded corpus: a list of sentences, empty when nothing did."""
    if recorded is None:
        recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    new, words = record(documents), []
    old_hashes, new_hashes = ({sha: source for _, source, sha, _ in r["documents"]} for r in (recorded, new))
    gone, come = (Counter(a[sha] for sha in a.keys() - b.keys())
                  for a, b in ((old_hashes, new_hashes), (new_hashes, old_hashes)))
    of = Counter(old_hashes.values())
    for source in LIBRARIES:
        old, now = recorded["versions"].get(source), new["versions"][source]
        if old != now or gone[source] or come[source]:
            words.append(f"{source} {now or 'is missing'} (recorded with {old}): of {of[source]:,} documents "
                         f"{gone[source]:,} changed or went, {come[source]:,} are new")
    return words


def _version(source):
    try:
        return version(source).split("+")[0]
    except PackageNotFoundError:
        return None


def main():
    documents, missing = collect()
    if missing:
        raise SystemExit("\n".join(missing))
    body = record(documents)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in body.pop("documents"))
    RECORD.write_text(json.dumps(body, indent=1)[:-2] + f',\n "documents": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    train_tokenizer(split(documents)["train"]).save(str(TOKENIZER))
    print(f"{RECORD.name}: {body['counts']}; {TOKENIZER.name} trained on the training part")


if __name__ == "__main__":
    main()
