"""A bundle as one page that needs no network: the claims with their verdicts, figures, the learner's words, the record.

Everything in the bundle is a stranger's: text is escaped, and only pictures that show what the course's own show are
embedded.
"""
import base64
import hashlib
import html

from . import handed_in, verify
from .claims import Verdict
from .container import Malformed, pack, read_json
from .recorded import own_json

STYLE = """
:root { color-scheme: light }
* { box-sizing: border-box }
body { background: #fff; color: #222; font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem }
body { padding: 1rem }
h1 { font-size: 1.6rem; line-height: 1.2 } h2 { font-size: 1.25rem; margin-top: 2.5rem } h3 { font-size: 1rem }
p, h3, td, figcaption, .words { overflow-wrap: anywhere }
code { font-size: .9em } .small { color: #555; font-size: .85rem }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
caption { text-align: left; font-weight: 600; padding: .8rem 0 .3rem }
th, td { border-bottom: 1px solid #ddd; padding: .35rem .5rem; text-align: left; vertical-align: top }
th { white-space: nowrap } th + th { width: 9.5% } th:nth-child(2), th:nth-child(3) { width: 11.5% }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap }
.verdict { font-weight: 600; white-space: nowrap }
.holds { color: #00654a } .fails { color: #a03c00 } .unverifiable { color: #8a3b6b } .not { color: #555 }
.sum { border: 1px solid #ccc; border-left: .5rem solid #0072B2; padding: .6rem 1rem }
.words { border-left: 3px solid #ccc; margin: .4rem 0 1rem; padding: .2rem .8rem; white-space: pre-wrap }
figure { margin: 1.5rem 0 } img { max-width: min(100%, 50rem); height: auto } figcaption { font-size: .85rem }
@media (max-width: 44rem) {
  thead { display: none } tr { display: block; border-bottom: 1px solid #bbb; padding: .4rem 0 }
  td { display: inline-block; border: 0; padding: .1rem .8rem .1rem 0 } td:first-child { display: block }
  td:empty { display: none }
  td.n:not(:empty)::before { content: attr(data-l) " "; color: #555 }
}
@media print {
  body { max-width: none; font-size: 10pt } table { font-size: 8.5pt } tr, figure, .words { break-inside: avoid }
  thead { display: table-header-group } h2 { break-after: avoid } img { max-height: 11cm }
}
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
TITLES = {"integrity": "The file", "fixture": "The fixture", "hidden": "Hidden places", "objective": "The objective",
          "gradient": "Gradients", "golden": "Draws", "corpus": "The corpus", "questions": "The learner",
          "exercises": "The learner", "notes": "The learner", "record": "The record", "numbers": "Numbers of figures",
          "picture": "Figures", "notebook": "Notebooks"}


def make(path):
    """`(page, rows)`: the page as HTML, and the verifier's rows that it shows."""
    bundle, rows = verify.open_and_verify(path)
    parts = [heading(bundle, rows), claims(rows)]
    if bundle:
        verdicts = {row["claim"]: row for row in rows}
        parts += [words(bundle, verdicts), answers(bundle, verdicts), figures(bundle, verdicts), record(bundle)]
    body = "\n".join(parts)
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Evidence, checked</title>\n'
            f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"), rows


def safe(text, longest=handed_in.LONGEST_TEXT):
    """A stranger's text for the page: escaped, without control characters but line breaks."""
    text = str(text)[:longest]
    return html.escape("".join(c if c.isprintable() or c == "\n" else "?" for c in text))


def heading(bundle, rows):
    status = {0: "All that was checked holds.", 1: "Something fails.", 3: "Nothing fails, but not all can be checked."}
    digest = hashlib.sha256(pack(bundle)).hexdigest() if bundle else "not taken"     # pack gives the file back
    return (f'<h1>Masked language modeling: evidence, checked</h1>\n<p class="sum"><strong>'
            f"{status[verify.status(rows)]}</strong> Of {len(rows)} claims: {safe(verify.counts(rows))}. What can "
            f"be computed was computed again by the course; nothing in the bundle was taken on trust.</p>\n"
            f'<p class="small">SHA-256 of the bundle: {digest}</p>')


def claims(rows):
    parts, group = ["<h2>Claims</h2>"], None
    for row in rows:
        title = TITLES.get(row["claim"].partition(".")[0], "Claims that this course does not make")
        if title != group:
            parts += ["</tbody></table>"] * (group is not None)
            parts.append(f"<table><caption>{title}</caption>\n<thead><tr><th>claim<th>stated<th>recomputed"
                         "<th>difference<th>allowed<th>verdict</tr></thead>\n<tbody>")
            group = title
        stated, recomputed, difference = map(safe, verify.shown(row))
        unit, is_number = row["unit"] if row["unit"] != "1" else "", not isinstance(row["tolerance"], str)
        allowed = f"{row['tolerance']:g} {unit}" if is_number and row["difference"] is not None else ""
        why = f'<br><span class="small">{safe(row["reason"])}</span>' if row["reason"] else ""
        cells = "".join(f'<td class="n" data-l="{label}">{value}</td>' for label, value in (
            ("stated", stated), ("recomputed", recomputed), ("difference", difference), ("allowed", safe(allowed))))
        parts.append(f'<tr><td>{safe(row["statement"])}<br><code class="small">{safe(row["claim"])}</code>{why}</td>'
                     f'{cells}<td class="verdict {row["verdict"].partition(" ")[0]}">{row["verdict"]}</td></tr>')
    return "\n".join([*parts, "</tbody></table>"])


def table_of(bundle, name, claim, verdicts):
    """A table in a file, empty unless its claim's form was found right."""
    if verdicts[claim]["verdict"] == "fails":
        return {}
    return read_json(bundle[name], name)


def words(bundle, verdicts):
    notes, parts = table_of(bundle, "notes.json", "notes", verdicts), ["<h2>Predictions and explanations</h2>"]
    for number, entry in sorted(notes.items(), key=order):
        parts.append(f'<h3>{safe(number)}, {safe(entry["kind"])}</h3>\n<div class="words">{safe(entry["text"])}</div>')
    return "\n".join(parts if notes else [*parts, "<p>None were written.</p>"])


def order(item):
    """Numbers such as 3.10 after 3.9."""
    return [int(part) if part.isdecimal() and len(part) < 9 else 0 for part in item[0].split(".")], item[0]


def answers(bundle, verdicts):
    parts = ["<h2>Exercises and questions</h2>"]
    for name, said in (("exercises", "What the checks said on the learner's machine"),
                       ("questions", "Answers, judged again")):
        found = table_of(bundle, f"{name}.json", name, verdicts)
        lines = [f'<tr><td>{safe(number)} {safe(entry.get("title", ""))}</td><td class="n">{safe(entry["state"])}</td>'
                 f'<td class="small">{safe(entry["words"], 400)}</td></tr>' for number, entry in sorted(
                     found.items(), key=order)]
        parts.append(f'<table><caption>{said} ({safe(verdicts[name]["verdict"])})</caption><tbody>{"".join(lines)}'
                     f'</tbody></table>{"" if lines else "<p>None.</p>"}')
    return "\n".join(parts)


def figures(bundle, verdicts):
    parts = ["<h2>Figures</h2>"]
    for name in sorted(name for name in verdicts if name.startswith("picture.")):
        stem, row = name.partition(".")[2], verdicts[name]
        if row["verdict"] != "holds":
            parts.append(f'<p><code>{stem}</code>: not shown, {safe(row["reason"])}</p>')
            continue
        own, numbers = own_json(f"data/figures/{stem}.json"), verdicts.get(f"numbers.{stem}", row)["verdict"]
        picture = base64.b64encode(bundle[f"figures/{stem}.png"]).decode()
        parts.append(f'<figure><img alt="{safe(own["alt"])}" src="data:image/png;base64,{picture}">\n<figcaption>'
                     f'<code>{stem}</code>. {safe(own["source"])}. Its numbers: {numbers}.</figcaption></figure>')
    return "\n".join(parts)


def record(bundle):
    try:
        found = handed_in.record(bundle)
    except (Verdict, Malformed) as error:
        return f"<h2>Execution record</h2>\n<p>{safe(error)}</p>"

    def flat(value):
        return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
    lines = [f"<tr><td>{safe(key)}</td><td>{safe(flat(found[key]), 6000)}</td></tr>" for key in handed_in.RECORD
             if key != "files"]
    return (f'<h2>Execution record</h2>\n<p>As that machine reported it; nobody can compute it again.</p>\n'
            f'<table><tbody>{"".join(lines)}</tbody></table>')
