"""Guards: the notebooks are recorded honestly, and a reader finds everything that they name.

nbval compares outputs, but it passes cells that were never run, tracebacks, images and
metadata. What it does not look at is looked at here, without running anything.
"""
import ast
import base64
import json
import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
STAGES = ["01_understand", "02_build", "03_experiment", "04_exercise", "05_evidence"]
NOTEBOOKS = {path.stem: nbformat.v4.reads(path.read_text(encoding="utf-8"))         # as it is: read() would mend it
             for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
TAGS = {"figure", "scaffold", "check", "solution", "script", "hide", "raises-exception", "nbval-ignore-output"}
CODE_LINES, PROSE_WORDS, ALT_CHARACTERS = 25, 130, 20

each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def code(name):
    """`(number, cell)` of every code cell, as JupyterLab counts after running all."""
    return enumerate((cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"), start=1)


def tagged(name, tag):
    return [(n, cell) for n, cell in code(name) if tag in cell.metadata.get("tags", [])]


def texts(output):
    """Everything in an output that a person reads."""
    yield from (output.get("text", ""), output.get("evalue", ""), *output.get("traceback", []))
    for kind, value in output.get("data", {}).items():
        if not kind.startswith("image/") or kind == "image/svg+xml":
            yield value if isinstance(value, str) else json.dumps(value)


def without(patterns, text):
    for pattern in patterns:
        text = re.sub(pattern, "", text, flags=re.M | re.S)
    return text


FENCES = [r"^ *(```|~~~).*?^ *\1"]


# Recorded honestly

def test_there_are_exactly_the_five_stages():
    assert list(NOTEBOOKS) == STAGES


@each_notebook
def test_format_is_valid_and_cell_ids_are_unique(name):
    ids = [cell.id for cell in NOTEBOOKS[name].cells]
    twice = {i for i in ids if ids.count(i) > 1}
    assert not twice, f"{name}: cell ids used twice: {twice}"
    nbformat.validate(NOTEBOOKS[name])


@each_notebook
def test_every_cell_was_run_once_and_in_order(name):
    counts = [cell.execution_count for _, cell in code(name)]
    assert counts == list(range(1, len(counts) + 1)), f"{name}: execution counts {counts}; record it with make run"


@each_notebook
def test_errors_stand_only_where_they_are_announced(name):
    for n, cell in code(name):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        announced = "raises-exception" in cell.metadata.get("tags", [])
        assert announced or not errors, f"{name}, cell {n}: {errors[0].ename}, but no tag raises-exception"
        assert errors or not announced, f"{name}, cell {n}: tagged raises-exception, but nothing was raised"


@each_notebook
def test_nothing_was_written_to_stderr(name):
    for n, cell in code(name):
        said = [output.text for output in cell.outputs if output.get("name") == "stderr"]
        assert not said, f"{name}, cell {n} has stderr output, which differs between machines: {said[0][:200]}"


@each_notebook
def test_metadata_is_the_same_on_every_machine(name):
    nb = NOTEBOOKS[name]
    assert nb.metadata == {"language_info": {"name": "python"}, "kernelspec": {
        "display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}, f"{name}: make run mends it"
    for cell in nb.cells:
        extra = set(cell.metadata) - {"tags", "jupyter"}
        assert not extra, f"{name}, cell id {cell.id}: metadata {extra} of an editor; make run takes most of it out"
        for output in cell.get("outputs", []):
            extra = set(output.get("metadata", {})) - {"image/png"}
            assert not extra, f"{name}, cell id {cell.id}: output metadata {extra}"


@each_notebook
def test_tags_are_known_and_no_comment_switches_the_comparison_off(name):
    for cell in NOTEBOOKS[name].cells:
        unknown = set(cell.metadata.get("tags", [])) - TAGS
        assert not unknown, f"{name}, cell id {cell.id}: unknown tags {unknown}"
        assert "NBVAL_" not in cell.source, f"{name}, cell id {cell.id}: use a tag, which a reader can see"
    for n, cell in tagged(name, "nbval-ignore-output"):
        assert "assert" in cell.source, f"{name}, cell {n}: its output is not compared, so let it assert something"


@each_notebook
def test_outputs_hold_no_path_no_address_and_no_time_of_day(name):
    machine = re.compile(r"(?<![\w.:/~-])(/(home|root|Users|tmp|var|usr|opt|mnt|private|work)/|~/|[A-Za-z]:\\\w)"
                         r"|\b0x[0-9a-fA-F]{6,}|\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d|" + re.escape(str(ROOT)))
    for n, cell in code(name):
        for text in (text for output in cell.outputs for text in texts(output)):
            found = machine.search(text)
            assert not found, f"{name}, cell {n}: output of one machine or moment: {text[found.start():][:80]!r}"


# Figures

def figures_of(name):
    """Names of the figures that a notebook shows or mentions."""
    sources = "\n".join(cell.source for cell in NOTEBOOKS[name].cells)
    outputs = "\n".join(text for _, cell in code(name) for output in cell.outputs for text in texts(output))
    return set(re.findall(r"\bshow\(\w+, *[\"']([\w-]+)[\"']", sources)
               + re.findall(r"figures/([\w-]+)\.png", sources + outputs))


@each_notebook
def test_every_figure_is_exported_with_its_numbers(name):
    for figure in figures_of(name):
        for file in (f"figures/{figure}.png", f"data/figures/{figure}.json"):
            assert (ROOT / file).is_file(), f"{name} names a figure {figure}, but there is no {file}"


def test_every_exported_figure_belongs_to_a_notebook():
    named = set().union(*map(figures_of, NOTEBOOKS))
    for file in [*ROOT.glob("figures/*"), *ROOT.glob("data/figures/*")]:
        assert file.stem in named, f"{file.relative_to(ROOT)}: no notebook shows it; delete it"


@each_notebook
def test_recorded_images_are_the_exported_ones_and_have_alternative_text(name):
    for n, cell in code(name):
        for output in (output for output in cell.outputs if "image/png" in output.get("data", {})):
            alt = output.metadata.get("image/png", {}).get("alt", "")
            assert len(alt) >= ALT_CHARACTERS, f"{name}, cell {n}: alternative text {alt!r} is too short"
            figure = re.match(r"figures/[\w-]+\.png", output.data.get("text/plain", ""))
            assert figure, f"{name}, cell {n}: an image that was not exported; use lesson.figures.show"
            file = ROOT / figure[0]
            same = file.is_file() and file.read_bytes() == base64.b64decode(output.data["image/png"])
            assert same, f"{name}, cell {n}: the recorded image is not {figure[0]}; make run records both"


@each_notebook
def test_every_figure_is_read_after_it_was_predicted(name):
    predicted, waiting = False, None
    for cell in NOTEBOOKS[name].cells:
        if cell.cell_type == "code":
            assert waiting is None, f"{name}, cell {waiting}: a figure, and no text below it"
            if "figure" in cell.metadata.get("tags", []):
                assert predicted, f"{name}, cell {cell.execution_count}: a figure without **Predict** in its section"
                waiting = cell.execution_count
            else:
                shown = [output for output in cell.outputs if "image/png" in output.get("data", {})]
                assert not shown, f"{name}, cell {cell.execution_count}: shows a figure, so tag it figure"
            continue
        if waiting is not None:
            text = " ".join(cell.source.split())
            for words in ("Look at", "It shows", "It does not show"):
                assert f"**{words}**" in text, f"{name}, cell {waiting}: the text below the figure lacks **{words}**"
            waiting = None
        last = re.split(r"^#+ ", cell.source, flags=re.M)
        predicted = "**Predict" in last[-1] or (predicted and len(last) == 1)


# Exercises

@each_notebook
def test_scaffolds_parse_and_run_unsolved(name):
    for n, cell in tagged(name, "scaffold"):
        ast.parse(cell.source)          # what a learner finds must be valid Python
        assert not any(output.output_type == "error" for output in cell.outputs), f"{name}, cell {n}: fails unsolved"


@each_notebook
def test_every_exercise_has_scaffold_check_and_folded_solution(name):
    kinds = [(n, cell, kind) for n, cell in code(name) for kind in ("scaffold", "check", "solution")
             if kind in cell.metadata.get("tags", []) and "figure" not in cell.metadata["tags"]]     # of a solution
    wanted = ["scaffold", "check", "solution"] * (len(kinds) // 3 + 1)
    for (n, cell, kind), want in zip(kinds, wanted, strict=False):
        assert kind == want, f"{name}, cell {n}: found the {kind}, wanted the {want} of an exercise"
        if kind == "solution":
            folded = cell.metadata.get("jupyter", {})
            assert folded.get("source_hidden") is folded.get("outputs_hidden") is True, f"{name}, cell {n}: not folded"
            assert cell.source.startswith("#"), f"{name}, cell {n}: its first line stays visible: begin with a comment"
    assert len(kinds) % 3 == 0, f"{name}: the last exercise has no {wanted[len(kinds)]}"


# Prose

@each_notebook
def test_cells_and_prose_are_short(name):
    for n, cell in code(name):
        lines = len(cell.source.splitlines())
        assert lines <= CODE_LINES, f"{name}, cell {n} has {lines} lines; at most {CODE_LINES}"
    prose = "\n\n".join("\0" if cell.cell_type == "code" else cell.source for cell in NOTEBOOKS[name].cells)
    # Tables, formulas, questions and what is folded away are taken one by one, not read in one go.
    prose = without([*FENCES, r"<details.*?</details>", r"^\|[^\n]*$", r"\$\$.*?\$\$",
                     r"^\*\*Q\d.*?(?=\n\n|\Z|\0)"], prose)
    for part in re.split(r"\0|^#+ ", prose, flags=re.M):
        words = re.findall(r"\S*\w\S*", part)
        start = " ".join(words[:12])
        assert len(words) <= PROSE_WORDS, f"{name}: {len(words)} words on end, at most {PROSE_WORDS}: {start} ..."


@each_notebook
def test_nothing_is_left_to_do_and_there_are_no_emojis(name):
    for cell in NOTEBOOKS[name].cells:
        if "scaffold" not in cell.metadata.get("tags", []):
            found = re.search(r"\b(TODO|FIXME|XXX)\b", cell.source)
            assert not found, f"{name}, cell id {cell.id}: {found[0]} outside a scaffold"
        found = re.search("[\U0001F000-\U0001FAFF\u2705\u274C\u2B50\uFE0F]", cell.source)
        assert not found, f"{name}, cell id {cell.id}: emoji {found[0]!r}"


# Links and images

PAGES = [*(ROOT / "notebooks" / f"{name}.ipynb" for name in NOTEBOOKS), ROOT / "README.md"]
each_page = pytest.mark.parametrize("file", PAGES, ids=[file.stem for file in PAGES])


def page_texts(file):
    """The Markdown and HTML that a reader of `file` sees, outputs included, without what is quoted as code."""
    texts = [file.read_text(encoding="utf-8")] if file.suffix == ".md" else []
    for cell in NOTEBOOKS[file.stem].cells if file.suffix == ".ipynb" else []:
        shown = [output.get("data", {}) for output in cell.get("outputs", [])]
        texts += [cell.source] if cell.cell_type == "markdown" else [
            data[kind] for data in shown for kind in ("text/markdown", "text/html") if kind in data]
    return [without([*FENCES, r"`[^`\n]*`"], text) for text in texts]


def anchors(file):
    """What a #fragment may name: JupyterLab's rule for notebooks, GitHub's for Markdown."""
    notebook = file.suffix == ".ipynb"
    sources = ([cell.source for cell in NOTEBOOKS[file.stem].cells if cell.cell_type == "markdown"]
               if notebook else [file.read_text(encoding="utf-8")])
    for heading in re.findall(r"^#{1,6} +(.+?)[ #]*$", without(FENCES, "\n\n".join(sources)), re.M):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        yield text.replace(" ", "-") if notebook else re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@each_page
def test_every_link_leads_somewhere(file):
    for text in page_texts(file):
        for link in re.findall(r"\]\(<?((?:[^()\s]|\([^()\s]*\))+)|(?:href|src)=\"([^\"]+)\"", text):
            link = link[0] or link[1]
            if re.match(r"https?:|mailto:", link):
                continue
            target, _, fragment = link.partition("#")
            target = (file.parent / unquote(target)).resolve() if target else file
            where = f"{file.name}: link {link!r}"
            assert target.exists() and target.is_relative_to(ROOT), f"{where}: there is no such file in the project"
            if fragment:
                there = set(anchors(target)) if target.suffix in (".ipynb", ".md") else set()
                assert unquote(fragment) in there, f"{where}: {target.name} has no such heading"


@each_page
def test_every_image_in_the_text_has_alternative_text(file):
    for text in page_texts(file):
        for alt in re.findall(r"!\[([^\]]*)\]\(", text) + [
                "".join(re.findall(r"\balt=\"([^\"]*)\"", tag)) for tag in re.findall(r"<img\b[^>]*>", text)]:
            assert len(alt) >= ALT_CHARACTERS, f"{file.name}: an image with alternative text {alt!r}: too short"
