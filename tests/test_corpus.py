"""The corpus and what is done with it: documents, splits, tokenizer, training, baselines, two processes."""
import collections
import hashlib
import itertools
import json
import math
import re
import sys
import types
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from tokenizers import Tokenizer

from lesson import baselines, corpus, figures, training
from lesson.corpus import CLS, MASK, PAD, SEP, SPECIAL, UNK, VOCAB, Document, clean, collect, overlap, rows, split
from lesson.ranks import two_processes
from mlm import masked_nll
from mlm.schedule import EVALUATION, mask_examples
from mlm.transformer import encode, initial_encoder

STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=60)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def documents():
    found, missing = collect()
    assert missing == []
    return found


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def document(text, name="a.b", source="torch"):
    return Document(name, source, sha256(text), text)


def close(got, wanted, tolerance=1e-5):
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


# --- reported once ---

def test_a_docstring_that_is_no_string_or_cannot_be_read():
    class Odd:
        __module__ = "fake"
        __doc__ = np.array([1, 2])              # comparing it gives an array, which has no truth value

        def __call__(self):
            pass

    class Hidden:
        def __getattribute__(self, name):
            raise RuntimeError(name)

        def __call__(self):
            pass
    module = types.ModuleType("fake", "words")
    module.odd, module.Odd, module.hidden = Odd(), Odd, Hidden()
    module.__dict__[7] = "no name"
    assert dict(corpus.public_docstrings("fake", "fake", module))["fake"] == "words"


def test_addresses_and_sets_in_any_spelling():
    assert clean("<f at 0x000001F2A3B4C5D0>") == "<f at 0x>"
    assert clean("{'b',\n    'a'}") == clean("{'b', 'a'}") == "{'a', 'b'}"
    assert clean(clean("x {'b',\n 'a'}")) == clean("x {'b',\n 'a'}")


def test_too_few_rows_are_refused_and_a_short_training_rises():
    with pytest.raises(ValueError, match="63 rows of tokens; wanted at least one batch of 64"):
        next(training.epochs(63, np.random.default_rng(0)))
    for updates in (1, 3, 100, 101, 900):
        rates = [training.learning_rate(u, updates) for u in range(updates)]
        assert 0 < min(rates) and max(rates) <= training.RATE, updates


def test_windows_of_each_sequence():
    shared, windows = corpus.shared_windows(["abcd", "xy", "abxd"], ["zabc"], n=3)
    assert shared.tolist() == [1, 0, 0] and windows.tolist() == [2, 0, 2]


# --- cleaning -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("docstring", [None, 5, 0.5, b"bytes", ["text"], property(), object, np.array([1, 2]),
                                       types.SimpleNamespace(), "", " \n\t ", "\x00\x1b\u200b\ufeff", "\ud800\udfff"],
                         ids=lambda x: f"{type(x).__name__} {ascii(x)[:20] if isinstance(x, str) else ''}")
def test_no_text(docstring):
    assert clean(docstring) == ""


@pytest.mark.parametrize(("docstring", "text"), [
    ("  Two\n    lines\t and\r\na\u00a0half.\n", "Two lines and a half."),
    ("a\x00b\x07c\x1b[31md\x7fe\x85f", "a b c [31md e f"),
    ("zero\u200bwidth, \u202eturned\u202c, \ufeffmark, soft\xadhyphen", "zero width, turned , mark, soft hyphen"),
    ("lone \ud800 and \udfff, a pair \ud83d\ude00", "lone and , a pair"),
    ("a real \U0001f600, \u4e2d\u6587, \u00e9, e\u0301", "a real \U0001f600, \u4e2d\u6587, \u00e9, e\u0301"),
    ("<function f at 0x7f00aabbccdd> or 0x55d0c0ffee00.", "<function f at 0x> or 0x."),
    ("0xff and 0x12345 are numbers, so is 1a0x7f00aabbccdd", "0xff and 0x12345 are numbers, so is 1a0x7f00aabbccdd"),
    ("one of {'c', 'a', 'b'}, {'z', 'y'}", "one of {'a', 'b', 'c'}, {'y', 'z'}"),
    ("frozenset({'b', 'a'}), {'only'}, {}", "frozenset({'a', 'b'}), {'only'}, {}"),
    ("a dictionary {'b': 1, 'a': 2}, a list ['b', 'a']", "a dictionary {'b': 1, 'a': 2}, a list ['b', 'a']"),
    ("__import__('os').system('false') {x} %s <b>", "__import__('os').system('false') {x} %s <b>"),
], ids=lambda x: ascii(x)[:30])
def test_clean(docstring, text):
    assert clean(docstring) == text
    assert clean(text) == text or "0x" in text
    text.encode()


def test_megabytes_are_cut():
    assert clean("x" * 10**7) == "x" * 100_000
    assert clean(" " * 100_000 + "x") == ""
    assert len(clean("word " * 10**6)) < 100_000
    assert clean("{'" * 10**5) and clean("0x" * 10**5)             # no pattern takes longer than a moment


@STEADY
@given(st.text(st.characters(), max_size=60))
def test_cleaned_text_is_plain(docstring):
    text = clean(docstring)
    assert text == " ".join(text.split()) and text.encode().decode() == text
    assert not {"Cc", "Cf", "Cs"} & set(map(unicodedata.category, text))


# --- looking into modules -----------------------------------------------------------------------------------------

def explode(*_):
    raise RuntimeError("this must not run")


def module(name="fake", **members):
    made = types.ModuleType(name, "About the module. " * 30)
    vars(made).update(members)
    return made


def thing(doc, module="fake", **members):
    made = type("Thing", (), {"__doc__": None, "__module__": module, "__call__": explode} | members)
    made.__doc__ = doc                          # type() would refuse lone surrogates
    return made


def found(made):
    return dict(corpus.public_docstrings("fake", "fake", made))


def test_public_functions_classes_and_members():
    def function():
        """A function."""

    class Public:
        """A class."""
        def method(self):
            """A method."""
        static = staticmethod(method)
        kind = classmethod(method)
        stated = property(explode, doc="A property.")
        silent = property(explode)
        number = 5
        _hidden = property(explode, doc="Hidden.")

        class Inner:
            """Inside."""
    function.__module__ = Public.__module__ = "fake.inside"
    inner = type("Callable", (types.ModuleType,), {"__call__": explode, "__module__": "fake"})("inner", "A module.")
    made = module(function=function, Public=Public, _private=function, number=7, text="text", inner=inner)
    assert found(made) == {
        "fake": made.__doc__, "fake.Public": "A class.", "fake.Public.method": "A method.",
        "fake.Public.static": "A method.", "fake.Public.kind": "A method.", "fake.Public.stated": "A property.",
        "fake.Public.silent": None, "fake.Public.Inner": "Inside.", "fake.function": "A function."}
    assert list(found(made)) == sorted(found(made))


@pytest.mark.parametrize(("name", "own"), [("fake", True), ("fake.deep.inside", True), ("fakelib.xla", True),
                                           ("other", False), ("fakes", False), ("other.fake", False), (5, True),
                                           (None, True)])
def test_only_what_the_library_wrote_itself(name, own):
    assert ("fake.it" in found(module(it=thing("Text.", name)))) == own


def test_python_s_own_words_are_not_the_librarys():
    made = module(instance=thing("About the class.")(), Thing=thing("About the class."))
    assert found(made)["fake.instance"] is None and found(made)["fake.Thing"] == "About the class."


def test_nothing_is_executed():
    class Hostile(type):
        def __call__(cls):
            explode()
    members = dict(getter=property(explode, doc="Text."), method=explode, __init__=explode, __getattr__=explode,
                   __repr__=explode, __len__=explode, __bool__=explode, __eq__=explode, __hash__=None)
    made = module(__getattr__=explode, explode=explode, Thing=Hostile("Thing", (thing("x"),), members | {
        "__module__": "fake", "__doc__": "Text."}), instance=object.__new__(thing("x", **members)))
    assert found(made)["fake.Thing.getter"] == found(made)["fake.Thing"] == "Text."


@pytest.mark.parametrize("doc", [None, 5, b"bytes", property(explode), property(lambda self: 1 / 0), ["a", "list"],
                                 "lone \ud800 " * 100, "x" * 10**6],
                         ids=["none", "int", "bytes", "explodes", "divides", "list", "surrogates", "megabyte"])
def test_hostile_docstrings_do_no_harm(doc, monkeypatch):
    Thing = thing(doc, member=property(explode, doc="Text of the member. " * 30), late=classmethod(explode))
    monkeypatch.setitem(sys.modules, "fake", module(Thing=Thing, it=Thing(), method=Thing().__call__))
    documents, missing = collect({"fake": ["fake"]})
    texts = {d.name: d.text for d in documents}
    assert missing == [] and texts["fake"].startswith("About the module.")
    assert texts["fake.Thing.member"].startswith("Text of the member.")
    assert "fake.it" not in texts and ("fake.Thing" in texts) == (isinstance(doc, str))


def test_a_missing_library_is_said_in_words_and_the_rest_is_found(monkeypatch, tmp_path):
    (tmp_path / "fake_broken.py").write_text("raise RuntimeError('half installed')")
    (tmp_path / "fake_warns.py").write_text("'''" + "text " * 100 + "'''\nimport warnings\nwarnings.warn('old')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("fake_broken", "fake_warns"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    documents, missing = collect({"absent": ["no_such_library", "no_such_library.inside"], "broken": ["fake_broken"],
                                  "fake_warns": ["fake_warns"]})
    assert [d.name for d in documents] == ["fake_warns"]
    assert len(missing) == 3 and all("Install the packages of requirements-cpu.txt." in x for x in missing)
    for words, name, why in zip(missing, ("no_such_library", "no_such_library.inside", "fake_broken"), (
            "No module named 'no_such_library'", "No module named 'no_such_library'", "RuntimeError: half installed"),
            strict=True):
        assert words.startswith(f"{name} cannot be imported (") and why in words
    assert collect({}) == ([], [])


def test_short_texts_and_aliases_are_left_out(monkeypatch):
    long, spaced = "word " * 60, "\n  word" * 60
    made = module(a=thing(long), b=thing(spaced), c=thing("x" * 299), d=thing("y" * 300), e=thing("z " * 150))
    monkeypatch.setitem(sys.modules, "fake", made)
    documents, _ = collect({"fake": ["fake"], "again": ["fake"]})
    assert [d.name for d in documents] == ["fake", "fake.d"]        # 299 characters when the last space has gone
    made.__doc__ = None
    vars(made).update(a=thing(long + "end"), b=thing(spaced + " end"))
    documents, _ = collect({"fake": ["fake"], "again": ["fake"]})
    assert [d.name for d in documents] == ["fake.a", "fake.d"]
    assert documents[0] == ("fake.a", "fake", sha256(long + "end"), long + "end")


# --- the corpus as recorded ---------------------------------------------------------------------------------------

def test_documents_are_distinct_and_clean(documents):
    assert len(documents) > 4000 and len({d.sha256 for d in documents}) == len({d.text for d in documents})
    assert len({d.sha256 for d in documents}) == len(documents)
    for d in documents:
        assert d.sha256 == sha256(d.text) and d.source in corpus.LIBRARIES and d.name.startswith(d.source)
        assert 300 <= len(d.text) <= 100_000 and d.text == " ".join(d.text.split())
    assert "at 0x7" not in " ".join(d.text for d in documents)


def test_the_record_is_what_is_found_here(documents):
    assert corpus.differences(documents) == []
    recorded = json.loads(corpus.RECORD.read_text())
    assert recorded == corpus.record(documents)
    parts = split(documents)
    assert {part: (c["documents"], c["characters"]) for part, c in recorded["counts"].items()} == {
        part: (len(inside), sum(len(d.text) for d in inside)) for part, inside in parts.items()}
    for part, inside in parts.items():
        assert [x[2] for x in recorded["documents"] if x[3] == part] == [d.sha256 for d in inside]


def test_no_text_is_stored():
    recorded = json.loads(corpus.RECORD.read_text())
    assert recorded.keys() == {"versions", "counts", "documents"}
    for name, source, sha, part in recorded["documents"]:
        assert re.fullmatch(r"[\w.]{1,100}", name) and source in corpus.LIBRARIES
        assert re.fullmatch("[0-9a-f]{64}", sha) and part in ("train", "document", "library")
    assert not re.search(r"\w+ \w+ \w+", corpus.RECORD.read_text())


def test_differences_are_said_in_words(documents):
    some = documents[::50]
    recorded = corpus.record(some)
    assert corpus.differences(some, recorded) == [] == corpus.differences(some[::-1], recorded)
    torches = [d for d in some if d.source == "torch"]
    without = [d for d in some if d is not torches[0]]
    assert corpus.differences(without, recorded) == [
        f"torch {recorded['versions']['torch']} (recorded with {recorded['versions']['torch']}): "
        f"of {len(torches)} documents 1 changed or went, 0 are new"]
    words, = corpus.differences([*without, document("another text")], recorded)
    assert f"of {len(torches)} documents 1 changed or went, 1 are new" in words
    words, = corpus.differences(some, recorded | {"versions": recorded["versions"] | {"jax": "0.1"}})
    assert words.startswith(f"jax {recorded['versions']['jax']} (recorded with 0.1): of ")
    assert words.endswith("0 changed or went, 0 are new")
    assert len(corpus.differences([], recorded)) == len(corpus.LIBRARIES)


def test_a_missing_library_is_a_difference(documents, monkeypatch):
    recorded = corpus.record(documents[::50])
    real = corpus.version
    monkeypatch.setattr(corpus, "version", lambda name: real("no-such-package" if name == "scipy" else name))
    words, = corpus.differences([d for d in documents[::50] if d.source != "scipy"], recorded)
    assert re.fullmatch(r"scipy is missing \(recorded with [\d.]+\): of (\d+) documents \1 changed or went, 0 are new",
                        words)


def test_versions_without_their_build(monkeypatch):
    monkeypatch.setattr(corpus, "version", lambda name: "2.13.0+cpu")
    assert set(corpus.record([])["versions"].values()) == {"2.13.0"}


@pytest.fixture(scope="module")
def renewed(documents, tmp_path_factory):
    """What `python -m lesson.corpus` writes now, in another folder."""
    folder = tmp_path_factory.mktemp("renewed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "collect", lambda: (documents, []))
        patch.setattr(corpus, "RECORD", folder / "corpus.json")
        patch.setattr(corpus, "TOKENIZER", folder / "tokenizer.json")
        corpus.main()
    return folder


@pytest.mark.parametrize("file", [corpus.RECORD, corpus.TOKENIZER], ids=lambda path: path.name)
def test_renewing_gives_the_same_bytes(renewed, file):
    # So the tokenizer is trained on the training part and on nothing else.
    assert (renewed / file.name).read_bytes() == file.read_bytes()


def test_it_is_not_renewed_from_half_a_corpus(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "RECORD", tmp_path / "corpus.json")
    monkeypatch.setattr(corpus, "TOKENIZER", tmp_path / "tokenizer.json")
    monkeypatch.setattr(corpus, "collect", lambda: ([], ["numpy cannot be imported", "nor can torch"]))
    with refuses(SystemExit, "numpy cannot be imported\nnor can torch"):
        corpus.main()
    assert not list(tmp_path.iterdir())


# --- the split ----------------------------------------------------------------------------------------------------

def test_the_split_is_disjoint_and_complete(documents):
    parts = split(documents)
    assert list(parts) == ["train", "document", "library"]
    hashes = [{d.sha256 for d in part} for part in parts.values()]
    assert not any(a & b for a, b in itertools.combinations(hashes, 2))
    assert sorted(itertools.chain(*parts.values())) == sorted(documents)
    assert {d.source for d in parts["library"]} == {corpus.HELD_LIBRARY} == {"numpy"}
    assert [d for d in documents if d.source == "numpy"] == parts["library"]
    assert {d.source for d in parts["train"]} == {d.source for d in parts["document"]} == {
        "torch", "jax", "matplotlib", "scipy"}
    seen = len(parts["train"]) + len(parts["document"])
    assert abs(len(parts["document"]) - seen / 10) < 5 * (seen * 0.09) ** 0.5
    assert all(int(d.sha256[:8], 16) % 10 == 0 for d in parts["document"])


def test_a_document_stays_on_its_side(documents):
    where = {d.sha256: part for part, inside in split(documents).items() for d in inside}
    for some in (documents[::7], documents[::-1], documents[:50] + [document(f"new {i}") for i in range(50)]):
        now = {d.sha256: part for part, inside in split(some).items() for d in inside}
        assert all(now[sha] == where[sha] for sha in now.keys() & where)
        assert sum(map(len, split(some).values())) == len(some)
    assert split([]) == {"train": [], "document": [], "library": []}


def test_a_document_on_two_sides_is_noticed():
    with pytest.raises(ValueError, match="two sides"):
        split([document("text"), document("text", source=corpus.HELD_LIBRARY)])


def brute_force(held, train, n):
    def windows(xs):
        return [tuple(x[i:i + n]) for x in xs for i in range(len(x) - n + 1)]
    known = set(windows(train))
    return np.mean([window in known for window in windows(held)])


WORDS = st.lists(st.lists(st.sampled_from("abc"), max_size=12), max_size=5)


@STEADY
@given(WORDS, WORDS, st.integers(1, 5))
def test_overlap_against_sets(held, train, n):
    if max(map(len, held), default=0) < n:
        with refuses(ValueError, f"held has no sequence of {n} items", "at least one"):
            overlap(held, train, n)
    else:
        assert overlap(held, train, n) == brute_force(held, train, n)


@pytest.mark.parametrize(("held", "train", "n", "wanted"), [
    (["abcd"], ["abcd"], 3, 1), (["abcd"], ["dcba"], 3, 0), (["abcd"], ["xabcx"], 3, 0.5), (["aaaa"], ["aaa"], 3, 1),
    (["abc", "xyz"], ["abc"], 3, 0.5), (["abcabc"], ["abc"], 3, 0.5), (["ab", "abc"], ["abc"], 3, 1),
    (["abc"], ["ab", "c"], 3, 0),                           # a sequence does not run on into the next one
    (["ab", "c", "xyz"], ["abc"], 3, 0), (["abc"], [], 3, 0), ([range(12)], [range(20)], 12, 1),
    ([np.array([0, 0, 1])], [np.array([0, 1])], 2, 0.5), ([[0, 0, 0]], [[0, 0]], 3, 0),
    ([["a b", "c"]], [["a", "b c"]], 2, 0)])
def test_overlap_of_known_cases(held, train, n, wanted):
    assert overlap(held, train, n) == wanted


def test_sequences_of_twelve_words(documents):
    parts = {part: [d.text.split() for d in inside[::20]] for part, inside in split(documents).items()}
    for part in ("document", "library"):
        got = overlap(parts[part], parts["train"])
        assert got == brute_force(parts[part], parts["train"], 12) < 0.6


# --- tokenizer and rows -------------------------------------------------------------------------------------------

@pytest.fixture
def tokenizer():
    return corpus.load_tokenizer()              # a new one each time: rows() sets a switch in it


def test_special_tokens_come_first(tokenizer):
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [PAD, UNK, CLS, SEP, MASK] == [0, 1, 2, 3, 4]
    assert SPECIAL == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and tokenizer.get_vocab_size() == VOCAB == 2048
    learned = [tokenizer.id_to_token(i) for i in range(5, VOCAB)]
    assert learned == sorted(learned) and len(set(learned)) == VOCAB - 5


def test_other_special_ids_are_refused(tokenizer, monkeypatch, tmp_path):
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"] |= {"[PAD]": 1, "[UNK]": 0}
    state["added_tokens"][0]["content"], state["added_tokens"][1]["content"] = "[UNK]", "[PAD]"
    monkeypatch.setattr(corpus, "TOKENIZER", tmp_path / "other.json")
    (tmp_path / "other.json").write_text(Tokenizer.from_str(json.dumps(state)).to_str())
    with refuses(ValueError, "other.json gives", "[1, 0, 2, 3, 4]", "wanted 0 to 4"):
        corpus.load_tokenizer()


def test_case_digits_and_punctuation(tokenizer):
    encoding = tokenizer.encode("Array ARRAY 2048 x[0]")
    assert encoding.tokens == ["array", "array", "2", "0", "4", "8", "x", "[", "0", "]"]


def test_rows_hold_each_documents_tokens(tokenizer, documents):
    some = [document("short " * 3), *documents[::200], document(""), document("array " * 62), document("array " * 63)]
    plain = corpus.load_tokenizer()
    plain.encode_special_tokens = True
    tokens, owner = rows(tokenizer, some)
    assert tokens.dtype == owner.dtype == np.int64 and tokens.shape == (len(owner), 64) and corpus.LENGTH == 64
    assert (np.diff(owner) >= 0).all() and 0 <= tokens.min() and tokens.max() < VOCAB
    lengths = (tokens != PAD).sum(1)
    assert (tokens[:, 0] == CLS).all() and (tokens[range(len(tokens)), lengths - 1] == SEP).all()
    assert ((tokens != PAD) == (np.arange(64) < lengths[:, None])).all()            # padding on the right only
    assert ((tokens == CLS).sum(1) == 1).all() and ((tokens == SEP).sum(1) == 1).all() and (lengths > 2).all()
    for index, d in enumerate(some):
        own = tokens[owner == index]
        inside = [row[1:length - 1] for row, length in zip(own, lengths[owner == index], strict=True)]
        assert all(len(x) == 62 for x in inside[:-1])                                      # only the last is short
        ids = np.concatenate([[], *inside]).astype(int).tolist()
        assert ids == plain.encode(d.text, add_special_tokens=False).ids and (UNK in ids or len(ids) < 9 or (
            re.sub(r"\W", "", tokenizer.decode(ids)) == re.sub(r"\W", "", tokenizer.normalizer.normalize_str(d.text))))
    assert collections.Counter(owner.tolist())[len(some) - 1] == 2 and (owner != len(some) - 3).all()


@pytest.mark.parametrize("text", ["[PAD]", "[MASK] and [PAD] and [CLS]", "a[SEP]b", "[mask] [Unk]", *SPECIAL])
def test_a_text_that_names_special_tokens_gets_none(tokenizer, text):
    tokens, _ = rows(tokenizer, [document(text)])
    inside = tokens[0, 1:(tokens[0] != PAD).sum() - 1]
    assert (inside >= len(SPECIAL)).all() and len(inside) >= 3
    assert tokenizer.decode(inside.tolist()).replace(" ", "") == text.lower().replace(" ", "")


def test_no_documents_give_no_rows(tokenizer):
    for documents in ([], [document("")]):
        tokens, owner = rows(tokenizer, documents)
        assert tokens.shape == (0, corpus.LENGTH) and owner.shape == (0,) and tokens.dtype == owner.dtype == np.int64


# --- training -----------------------------------------------------------------------------------------------------

def toy_rows(number, length=12, vocab=VOCAB, seed=0):
    """`[CLS] tokens [SEP]`, every third row short."""
    tokens = np.random.default_rng(seed).integers(5, vocab, (number, length))
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    tokens[::3, -4:] = SEP, PAD, PAD, PAD
    return torch.tensor(tokens)


def small_steps(monkeypatch, batch=4, warm_up=2):
    monkeypatch.setattr(training, "BATCH", batch)
    monkeypatch.setattr(training, "WARM_UP", warm_up)
    monkeypatch.setattr(training, "tqdm", lambda x, **_: x)


def test_masks_of_this_corpus():
    tokens = toy_rows(50)
    got = training.masks(tokens, range(50), 7, 3)
    wanted = mask_examples(tokens, range(50), seed=7, epoch=3, eligible=tokens >= 5, mask_id=4,
                           ordinary_ids=range(5, 2048))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)) and got[1].any()
    targets, *frozen = training.frozen(tokens, range(50))
    wanted = training.masks(tokens, range(50), 0, EVALUATION)
    assert targets is tokens and all(torch.equal(a, b) for a, b in zip(frozen, wanted, strict=True))
    assert not torch.equal(frozen[1], training.frozen(tokens, range(50), seed=1)[2])


def test_learning_rate():
    rate = [training.learning_rate(update, 1000) for update in range(1000)]
    assert max(rate) == rate[99] == rate[100] == training.RATE == 1e-2 and rate[0] == 1e-4
    close(np.diff(rate[:100]), np.full(99, 1e-4), 1e-12)
    close(np.diff(rate[100:]), np.full(899, -1e-2 / 900), 1e-12)
    assert min(rate) == rate[-1] > 0 == training.learning_rate(1000, 1000)
    assert training.learning_rate(49, 1000, highest=3) == 1.5 and training.learning_rate(2, 4) == 1e-2


@pytest.mark.parametrize("rows", [4, 8, 10, 11])
def test_epochs_show_every_row_at_most_once(monkeypatch, rows):
    small_steps(monkeypatch)
    per_epoch = rows // 4
    seen = list(itertools.islice(training.epochs(rows, np.random.default_rng(0)), 30 * per_epoch))
    assert [epoch for epoch, _ in seen] == [i for i in range(30) for _ in range(per_epoch)]
    together = [np.concatenate([batch for i, batch in seen if i == epoch]) for epoch in range(30)]
    for shown in together:
        assert len(shown) == len(set(shown.tolist())) == per_epoch * 4 and set(shown.tolist()) <= set(range(rows))
    assert len({tuple(x) for x in map(np.ndarray.tolist, together)}) > 15           # in a new order each time
    assert set(np.concatenate(together).tolist()) == set(range(rows))               # nobody is left out for good


def full_loss(params, targets, corrupted, selected):
    """The head at every position, then the selected ones."""
    logits = encode(params, corrupted, corrupted == PAD) @ params["token"].T + params["bias"]
    return masked_nll(logits, targets, selected)


def test_selected_nll_is_masked_nll_of_all_logits():
    tokens, params = toy_rows(6, vocab=60), initial_encoder(1, 60, width=16)
    corrupted, selected, _ = mask_examples(tokens, range(6), seed=0, epoch=0, eligible=tokens >= 5, mask_id=MASK,
                                           ordinary_ids=range(5, 60), mask_prob=0.4)
    for chosen in (selected, tokens == 7, torch.zeros_like(selected)):
        got, wanted = (loss(params, tokens, corrupted, chosen) for loss in (training.selected_nll, full_loss))
        close(got[0], wanted[0])
        assert got[1] == wanted[1] == chosen.sum()


def test_training_is_the_plain_loop(monkeypatch):
    small_steps(monkeypatch)
    tokens, calls = toy_rows(10), []
    before = torch.get_rng_state()
    params, history, skipped = training.train(tokens, seed=3, updates=5, after_update=lambda *x: calls.append(x[0]))
    assert torch.equal(torch.get_rng_state(), before) and calls == [1, 2, 3, 4, 5] and skipped == 0

    plain = {name: x.requires_grad_() for name, x in initial_encoder(3, VOCAB).items()}
    optimizer = torch.optim.AdamW(plain.values(), betas=(0.9, 0.98), weight_decay=0.01)
    order, losses = np.random.default_rng(3), []
    shuffles = [order.permutation(10) for _ in range(3)]
    for update, rate in enumerate((0.5, 1, 1, 2 / 3, 1 / 3)):
        chosen = shuffles[update // 2][update % 2 * 4:][:4]
        corrupted, selected, _ = training.masks(tokens[chosen], chosen, 3, update // 2)
        total, count = full_loss(plain, tokens[chosen], corrupted, selected)
        losses.append((total / count).item())
        optimizer.param_groups[0]["lr"] = 1e-2 * rate
        gradients = torch.autograd.grad(total / count, plain.values())
        length = math.sqrt(sum((g.double() ** 2).sum() for g in gradients))
        for x, g in zip(plain.values(), gradients, strict=True):
            x.grad = g * min(1, 1 / length)
        optimizer.step()
    close(history, losses, 1e-4)
    for name, x in params.items():
        assert not x.requires_grad and x.dtype == torch.float32
        assert (x - plain[name]).norm() < 1e-3 * (plain[name] - initial_encoder(3, VOCAB)[name]).norm(), name


def test_training_twice_gives_the_same_bits(monkeypatch):
    small_steps(monkeypatch)
    tokens = toy_rows(10)
    (first, losses, _), (again, losses_again, _), (_, other, _) = (
        training.train(tokens, seed=seed, updates=3) for seed in (3, 3, 4))
    assert losses.tolist() == losses_again.tolist() != other.tolist() and losses.shape == (3,)
    assert all(torch.equal(x, again[name]) for name, x in first.items())


@pytest.mark.parametrize("static", [True, False])
def test_static_masks_are_the_same_in_each_epoch(monkeypatch, static):
    small_steps(monkeypatch)
    seen, masks = collections.defaultdict(list), training.masks

    def watched(tokens, examples, seed, epoch):
        out = masks(tokens, examples, seed, epoch)
        for example, selected in zip(examples.tolist(), out[1].tolist(), strict=True):
            seen[example].append(selected)
        return out
    monkeypatch.setattr(training, "masks", watched)
    training.train(toy_rows(8, 40), updates=6, static=static)
    assert len(seen) == 8
    for selections in seen.values():
        assert len(selections) == 3 and len({tuple(x) for x in selections}) == (1 if static else 3)


def test_a_batch_with_nothing_selected_is_skipped_and_counted(monkeypatch):
    small_steps(monkeypatch, batch=1)
    tokens, calls = toy_rows(4, 40), []
    tokens[1:3, 1:], tokens[1:3, 1] = PAD, SEP
    params, history, skipped = training.train(tokens, updates=8, after_update=lambda *x: calls.append(x))
    assert skipped == 4 == 8 - len(history) == 8 - len(calls) and np.isfinite(history).all()
    assert all(x.isfinite().all() for x in params.values())
    params, history, skipped = training.train(tokens[1:3], updates=3)
    assert skipped == 3 and history.shape == (0,)
    assert all(torch.equal(x, params[name]) for name, x in initial_encoder(0, VOCAB).items())


def test_losses_by_position_and_by_branch():
    tokens, params = toy_rows(9, vocab=60), initial_encoder(1, 60, width=16)
    corrupted, selected, branch = mask_examples(tokens, range(9), seed=0, epoch=0, eligible=tokens >= 5, mask_id=MASK,
                                                ordinary_ids=range(5, 60), mask_prob=0.5, shares=(0.4, 0.3, 0.3))
    logits = (encode(params, corrupted, corrupted == PAD) @ params["token"].T + params["bias"]).double().numpy()
    wanted = [np.log(np.exp(logits[at]).sum()) - logits[at][tokens[at]] for at in np.argwhere(selected.numpy()).tolist()
              for at in [tuple(at)]]
    for at_once in (256, 9, 4, 1):
        nll = training.position_nll(params, tokens, corrupted, selected, at_once)
        assert nll.dtype == np.float64
        close(nll, wanted)
    assert not np.isclose(nll.sum(), 0)
    by = training.by_branch(nll, selected, branch)
    assert list(by) == ["all", "masked", "random", "kept"]
    for i, name in enumerate(by):
        losses = [x for x, b in zip(wanted, branch[selected].tolist(), strict=True) if b == i or not i]
        assert by[name][1] == len(losses) > 3
        close(by[name][0], sum(losses))


def test_a_branch_without_tokens_has_no_nats():
    selected = torch.tensor([[False, True]])
    by = training.by_branch(np.array([2.0]), selected, torch.tensor([[0, 3]]))
    assert by == {"all": (2, 1), "masked": (0, 0), "random": (0, 0), "kept": (2, 1)}


def test_threads_are_as_before_even_after_an_error():
    before = torch.get_num_threads()
    with training.threads(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), training.threads(3):
        raise KeyError
    assert torch.get_num_threads() == before


# --- baselines ----------------------------------------------------------------------------------------------------

SMALL = 9                                       # five special tokens and four ordinary ones


def plain_model(tokens):
    """The five shares of a target between two neighbours, from counting in loops, and four sets of weights for them."""
    counted = [row for i, row in enumerate(tokens) if i % 20]
    share = collections.Counter(t for row in counted for t in row)
    share = [share[t] + 1 if t >= 5 else 0 for t in range(SMALL)]
    after, before, between = (collections.defaultdict(collections.Counter) for _ in range(3))
    for row in counted:
        for a, b, c in zip(row, row[1:], row[2:], strict=False):
            after[a][b] += 1
            before[c][b] += 1
            between[a, c][b] += 1

    def five(target, left, right):
        def given(counts, context):
            n = sum(counts[context].values())
            return counts[context][target] / n if n else base
        base = share[target] / sum(share)
        return [1 / (SMALL - 5), base, given(after, left), given(before, right), given(between, (left, right))]
    rows = torch.tensor(tokens[::20])
    read, selected, _ = mask_examples(rows, range(0, len(tokens), 20), seed=0, epoch=EVALUATION, eligible=rows >= 5,
                                      mask_id=MASK, ordinary_ids=range(5, SMALL))
    weights = {}
    for pattern in itertools.product((False, True), repeat=2):
        places = [five(tokens[20 * r][c], int(read[r, c - 1]), int(read[r, c + 1]))
                  for r, c in selected.nonzero().tolist()
                  if (read[r, c - 1] == MASK, read[r, c + 1] == MASK) == pattern]
        w = [0.2] * 5
        for _ in range(50 if places else 0):
            w = [sum(w[i] * p[i] / sum(map(float.__mul__, w, p)) for p in places) / len(places) for i in range(5)]
        weights[pattern] = w
    return five, weights


@pytest.fixture
def small(monkeypatch):
    for module in (baselines, training):                # the second makes the masks
        monkeypatch.setattr(module, "VOCAB", SMALL)
    rng = np.random.default_rng(0)
    tokens = np.minimum(rng.integers(5, 9, (601, 10)), rng.integers(6, 12, (601, 10)))
    tokens[:, 1:] = np.where(rng.random((601, 9)) < 0.4, tokens[:, :-1], tokens[:, 1:])      # neighbours say something
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    return tokens


def test_unigram(small):
    share = baselines.unigram(small)
    counts = [(small == t).sum() + 1 if t >= 5 else 0 for t in range(SMALL)]
    close(share, np.array(counts) / sum(counts), 1e-15)
    assert (baselines.unigram(torch.full((2, 3), 5).numpy()) == np.array([0] * 5 + [7, 1, 1, 1]) / 10).all()


@pytest.mark.parametrize("kind", ["full", "padded", "the last token is never counted"])
def test_neighbours_against_counting(small, kind):
    if kind == "padded":
        small[::2, -3:] = SEP, PAD, PAD
    elif kind != "full":
        small[small == 8] = 7
    five, weights = plain_model(small.tolist())
    assert all(min(w) >= 0 and abs(sum(w) - 1) < 1e-12 for w in weights.values())
    assert len({tuple(w) for w in weights.values()}) == 4
    targets = small[:7].copy()
    corrupted, selected = targets.copy(), np.zeros(targets.shape, bool)
    selected[:, 2:7:2] = selected[0, 3] = True
    corrupted[selected] = MASK
    corrupted[3, 4], corrupted[4, 1] = 8, MASK                  # a random one, and a context that was never seen
    targets[5, 2] = targets[6, 4] = 8
    got = baselines.neighbours(small)(targets, corrupted, selected)
    wanted = []
    for r, c in np.argwhere(selected):
        left, right = int(corrupted[r, c - 1]), int(corrupted[r, c + 1])
        wanted.append(-math.log(np.dot(weights[left == MASK, right == MASK], five(int(targets[r, c]), left, right))))
    close(got, wanted, 1e-9)


def test_neighbours_give_a_distribution(small):
    nll = baselines.neighbours(small)
    ordinary = np.arange(5, SMALL)
    for left, right in itertools.product((CLS, SEP, MASK, 5, 6, 8), repeat=2):
        corrupted = np.tile([CLS, left, MASK, right, SEP], (len(ordinary), 1))
        targets = corrupted.copy()
        targets[:, 2] = ordinary
        p = np.exp(-nll(targets, corrupted, corrupted * 0 + np.arange(5) == 2))
        assert (p > 0).all() and abs(p.sum() - 1) < 1e-9


# --- two processes --------------------------------------------------------------------------------------------------

def test_two_processes_give_the_gradient_of_one():
    tokens, params = toy_rows(8, vocab=60), initial_encoder(1, 60, width=16)
    corrupted, selected, _ = mask_examples(tokens, range(8), seed=0, epoch=0, eligible=tokens >= 5, mask_id=MASK,
                                           ordinary_ids=range(5, 60), mask_prob=0.4)
    cuts = [slice(0, 2), slice(2, 8)]
    got = two_processes(params, tokens, corrupted, selected, cuts)
    assert got["counts"] == [int(selected[cut].sum()) for cut in cuts] and got["counts"][1] > 2 * got["counts"][0] > 0

    def gradient(part):
        leaves = {name: x.clone().requires_grad_() for name, x in params.items()}
        total, count = full_loss(leaves, tokens[part], corrupted[part], selected[part])
        return (total / count).item(), torch.autograd.grad(total / count, leaves.values())
    whole, parts = gradient(slice(8)), [gradient(cut) for cut in cuts]
    close(got["added"][0], whole[0], 1e-6)
    close(got["averaged"][0], (parts[0][0] + parts[1][0]) / 2, 1e-6)
    for name, g, a, b in zip(params, whole[1], parts[0][1], parts[1][1], strict=True):
        close(got["added"][1][name], g, 1e-6)
        close(got["averaged"][1][name], (a + b) / 2, 1e-6)
    added, averaged = (np.concatenate([g.ravel() for g in got[way][1].values()]) for way in ("added", "averaged"))
    assert np.linalg.norm(averaged - added) > 0.01 * np.linalg.norm(added)
    assert abs(got["averaged"][0] - got["added"][0]) > 1e-3


def test_a_process_that_fails_says_why():
    tokens, params = toy_rows(2, vocab=60), initial_encoder(1, 60, width=16)
    tokens[0, 1] = 60
    with refuses(RuntimeError, "failed: process 0: ", "ValueError", "60", "[0, 60)"):
        two_processes(params, tokens, tokens, tokens >= 5, [slice(0, 2)])


# --- what was recorded --------------------------------------------------------------------------------------------

def recorded(name):
    return json.loads((figures.PROJECT / "data" / name).read_text(encoding="utf-8"))


def test_the_recorded_results_keep_what_is_promised_over_seeds_and_threads():
    record, evaluation = recorded("corpus_bands.json"), recorded("corpus_evaluation.json")["numbers"]
    runs, bands = record["runs"], record["bands"]
    assert [(r["seed"], r["threads"], r["skipped"]) for r in runs] == [(s, t, 0) for t in (1, 2) for s in (0, 1, 2)]
    assert bands == {part: {branch: [f(r[part][branch] for r in runs) for f in (min, max)]
                            for branch in ("all", "masked", "random", "kept")}
                     for part in ("rows", "documents", "library")}
    for part, branches in bands.items():                    # the first of them is the training of notebook 03
        for branch in branches:
            stated = evaluation[part][f"encoder, {branch}"]
            assert abs(runs[0][part][branch] - np.exp(stated["nats"] / stated["tokens"])) < 2e-3, (part, branch)
        low, high = branches["all"]
        assert high / low < 1.1
    unigram = evaluation["library"]["unigram, all"]
    assert bands["library"]["all"][1] < min(20, 0.12 * np.exp(unigram["nats"] / unigram["tokens"]))
