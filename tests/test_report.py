"""The page: nothing from outside, nothing of a stranger's that a browser would run, every verdict."""
import base64
import re
from html.parser import HTMLParser

import pytest
from bundles import edit_json, honest, sealed

from lesson import evidence, handed_in, report, verify

SCRIPT = "<script>alert(1)</script> small loss, three rows"
EVIL = ('"><img src=x onerror=alert(1)><style>*{display:none}</style><a href="//evil.example">x</a>&lt;b\u202e\x1b[2J'
        "<!-- <svg/onload=alert(1)> ]]> javascript:alert(1)")


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += [(tag, *attribute) for attribute in attributes]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def page(tmp_path):
    def make(files=None, raw=None):
        path = tmp_path / "evidence.zip"
        path.write_bytes(raw if raw is not None else sealed(files))
        return report.make(path)
    return make


def evil():
    files = honest()
    edit_json(files, "notes.json", lambda notes: {EVIL[:30]: {"kind": "prediction", "text": EVIL}, **notes})
    edit_json(files, "exercises.json", lambda table: table["4.1"].update(words=EVIL))
    edit_json(files, "record.json", lambda record: record.update(processor=EVIL, seconds={EVIL: EVIL}))
    edit_json(files, "claims.json", lambda table: {**table, EVIL: EVIL, "fixture.count": {
        **table["fixture.count"], "unit": EVIL}, "notes": {**table["notes"], "stated": 3}})
    edit_json(files, "data/figures/02_training.json", lambda body: body.update(alt=EVIL, source=EVIL))
    return files


ALLOWED = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "strong", "span", "code", "br",
           "table", "caption", "thead", "tbody", "tr", "th", "td", "div", "figure", "img", "figcaption"}


@pytest.mark.parametrize("files", [honest, evil])
def test_no_script_and_nothing_from_outside(page, files):
    text, _ = page(files())
    seen = Page(text)
    assert seen.tags <= ALLOWED, seen.tags - ALLOWED
    assert {name for _, name, _ in seen.attributes} <= {"lang", "charset", "http-equiv", "content", "name", "class",
                                                        "alt", "src", "data-l"}
    sources = [value for _, name, value in seen.attributes if name == "src"]
    assert len(sources) == 18 and all(value.startswith("data:image/png;base64,") for value in sources)
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.S))
    assert text.count("<style>") == 1 and "url(" not in style and "@import" not in style
    assert "default-src 'none'" in text and text.index("Content-Security-Policy") < text.index("<style>")
    assert text.isascii() or all(c.isprintable() or c == "\n" for c in text)


def test_a_strangers_text_is_text(page):
    text, rows = page(evil())
    shown = "".join(Page(text).text)
    assert EVIL.replace("\u202e", "?").replace("\x1b", "?") in shown and SCRIPT in shown
    assert "<script" not in text and "<img src=x" not in text and "evil.example\"" not in text
    assert {row["claim"] for row in rows if row["verdict"] == "fails"} >= {"fixture.count", "numbers.02_training"}


def test_every_claim_stands_there_with_its_verdict(page):
    text, rows = page(honest())
    for row in rows:
        assert f'<code class="small">{row["claim"]}</code>' in text
    for verdict in verify.VERDICTS[:1] + verify.VERDICTS[3:]:
        assert text.count(f">{verdict}</td></tr>") == sum(row["verdict"] == verdict for row in rows)
    shown = "".join(Page(text).text)
    for words in ("All that was checked holds.", "the loss will not move", "3.1, prediction",
                  "4.1 Hide the first position", "1.098612", "jax_threefry_partitionable", "Its numbers: holds"):
        assert words in shown, words
    assert base64.b64encode(honest()["figures/05_claims.png"]).decode() in text


def test_a_picture_that_is_not_the_courses_is_not_shown(page):
    files = honest()
    files["figures/03_branch_loss.png"] = files["figures/03_hidden_count.png"]
    text, _ = page(files)
    assert "Something fails." in text and "03_branch_loss</code>: not shown" in text
    assert sum(name == "src" for _, name, _ in Page(text).attributes) == 17


@pytest.mark.parametrize("raw", [b"", b"PK\3\4 no zip", b"<script>alert(1)</script>"])
def test_a_file_that_is_no_bundle_gives_a_short_page(page, raw):
    text, rows = page(raw=raw)
    assert len(rows) == 1 and "Something fails." in text and len(text) < 10_000 and "<script" not in text


def test_wrong_forms_are_left_out(page):
    files = honest()
    files["notes.json"], files["exercises.json"], files["questions.json"] = b"[7]", b"{", b'{"Q1.1": 7}'
    edit_json(files, "record.json", lambda record: {"utc": EVIL})
    text, _ = page(files)
    assert "None were written." in text and text.count("<p>None.</p>") == 2 and "record.json does not hold" in text


def test_the_command_writes_the_page(tmp_path, capsys):
    (tmp_path / "evidence.zip").write_bytes(sealed(honest()))
    assert evidence.main(["report", str(tmp_path / "evidence.zip"), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert f"{len(verify.TABLE) - 2} holds, 3 not checked" in capsys.readouterr().out


def test_texts_are_ordered_by_their_numbers():
    notes = dict.fromkeys(["3.10", "3.9", "x", "1.2", "my explanation", "9" * 5000])
    assert [number[:5] for number, _ in sorted(notes.items(), key=report.order)] == [
        "99999", "my ex", "x", "1.2", "3.9", "3.10"]
    assert handed_in.LONGEST_TEXT == 20_000
