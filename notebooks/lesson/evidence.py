"""The evidence of one learner as a bundle, and what becomes of it: `python -m lesson.evidence`.

make writes build/evidence.zip, verify checks a bundle, report turns one into a page.
"""
import argparse
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from .figures import PROJECT, output_folder


def find(name):
    """A file of the course as it stands: what this process exported, if anything, else the project's."""
    return next((path for path in (output_folder() / name, PROJECT / name) if path.is_file()), None)


def make(path=None):
    """Gather all evidence and write it as one zip; gives `(path, names of what is not there yet)`."""
    from . import verify
    from .container import pack, write
    from .recompute import full_precision

    path = Path(path) if path else output_folder() / "build" / "evidence.zip"
    with full_precision():
        files, stated = measured()
    files |= answers(stated)
    wanted = verify.about()
    for name in wanted.keys() - files.keys() - {"claims.json", "record.json"}:
        if found := find(name):
            files[name] = gathered(found)
    files["claims.json"] = text({name: {"statement": entry["statement"], "stated": stated.get(name),
                                        **{key: entry[key] for key in ("unit", "tolerance", "files")}}
                                 for name, entry in verify.TABLE.items() if not verify.is_absent(name, files)})
    files["record.json"] = text(record(files))
    files["manifest.json"] = text({"format": verify.FORMAT, "files": {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "claims": wanted[name]}
        for name, content in sorted(files.items())}})
    write(path, pack(files))
    return path, sorted(wanted.keys() - files.keys())


def hand_in():
    """Write the bundle to `build/evidence.zip`, and say what is not in it yet."""
    path, missing = make()
    print(f"written: build/{path.name}; not in it yet: {', '.join(missing) or 'nothing'}")


def text(value):
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def measured():
    """`({name: bytes}, {claim: value})` of everything that is computed here, with the helper in both frameworks."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    import mlm

    from . import recompute
    from .container import pack_arrays

    fixture, stated, params = {}, {}, {}
    targets, selected, corrupted = mlm.fixture_batch()
    for framework in ("jax", "torch"):
        params[framework], history = mlm.train_fixture(framework)
        fixture[f"{framework}_history"] = np.array(history)
        for when, values in (("initial", mlm.initial_params(framework)), ("trained", params[framework])):
            fixture |= {f"{framework}_{when}_{part}": np.asarray(value) for part, value in values.items()}
    trained = params["jax"]
    logits = mlm.mlm_logits(trained, corrupted)
    fixture |= {"targets": targets, "selected": selected, "corrupted": corrupted,
                "final_probability": jax.nn.softmax(logits, axis=-1)[:, 1],
                "output_gradient": jax.grad(mlm.masked_ce)(logits, targets, selected)}

    masks = np.array([np.tile([place in places for place in range(4)], (3, 1)) for places in recompute.ORDER])
    inputs = np.array([mlm.corrupt_tokens(targets, mask, recompute.MASK_ID) for mask in masks])
    losses = np.array([float(mlm.masked_ce(mlm.mlm_logits(trained, read), targets, mask))
                       for read, mask in zip(inputs, masks, strict=True)])
    hidden = {"selected": masks, "corrupted": inputs, "loss": losses, "moved_selected": masks[2],
              "moved_corrupted": inputs[2]}

    batch = recompute.objective_batch()
    scores, ids, picked = np.log(batch["probability"]), batch["targets"], batch["selected"]
    leaf = torch.tensor(scores, requires_grad=True)
    mlm.masked_ce(leaf, torch.tensor(ids), torch.tensor(picked)).backward()
    objective = {**batch, "jax_gradient": jax.grad(mlm.masked_ce)(jnp.asarray(scores, jnp.float32), ids, picked),
                 "torch_gradient": leaf.grad.numpy()}
    rows = [float(mlm.masked_ce(*(x[row:row + 1] for x in (scores, ids, picked)))) for row in range(2)]

    golden = recompute.masked()
    stated |= {"fixture.count": int(selected.sum()), "fixture.baseline": float(np.log(recompute.MASK_ID)),
               "fixture.first_loss": float(fixture["jax_history"][0]),
               "fixture.last_loss": float(fixture["jax_history"][-1]),
               "fixture.final_loss": float(mlm.masked_ce(logits, targets, selected)),
               "fixture.frameworks": float(np.abs(fixture["jax_history"] - fixture["torch_history"]).max()),
               "hidden.moved_mask": losses[2],
               **{f"hidden.{n}": float(np.mean([loss for loss, places in zip(losses, recompute.ORDER, strict=True)
                                                if len(places) == n])) for n in (1, 2, 3, 4)},
               "objective.token_mean": float(mlm.masked_ce(scores, ids, picked)), "objective.row_mean": sum(rows) / 2,
               "golden.counts": [int(golden[f"{stream}_{i}"][..., 1].sum()) for stream in ("jax", "torch")
                                 for i in range(len(recompute.golden_cases()))]}
    files = {}
    for file, made in ((recompute.FIXTURE, fixture), (recompute.HIDE, hidden), (recompute.OBJECTIVE, objective),
                       (recompute.GOLDEN, golden)):
        files[file] = pack_arrays({name: np.asarray(made[name]).astype(dtype)
                                   for name, (dtype, _) in recompute.layout()[file].items()})
    return files, stated


def answers(stated):
    """What the learner answered and wrote, as files; enters the counts in `stated`."""
    from . import progress

    kept = progress.load()
    questions, exercises, notes = (kept.get(part, {}) for part in ("questions", "exercises", "notes"))
    for part, entries in (("questions", questions), ("exercises", exercises)):
        stated[part] = [sum(entry.get("state") == state for entry in entries.values()) for state in ("right", "wrong")]
    notes = {number: {"kind": entry.get("kind", "explanation"), "text": str(entry.get("text", ""))}
             for number, entry in notes.items()}
    stated["notes"] = len(notes)
    return {"questions.json": text(questions), "exercises.json": text(exercises), "notes.json": text(notes)}


def gathered(path):
    """The bytes of a file, such that they depend on what it says only.

    A notebook comes without what depends on the moment, and without this machine's folders in its outputs.
    """
    if path.suffix == ".npz":
        import numpy as np

        from .container import pack_arrays
        with np.load(path, allow_pickle=False) as arrays:
            return pack_arrays(dict(arrays))
    if path.suffix != ".ipynb":
        return path.read_bytes()
    import nbformat

    from .execution import tidy

    nb = tidy(nbformat.read(path, as_version=4))
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs = [nbformat.from_dict(without_paths(output)) for output in cell.outputs]
    return (nbformat.writes(nb).rstrip("\n") + "\n").encode()


def without_paths(value):
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    if isinstance(value, str):
        for folder, name in ((str(PROJECT), "<course>"), (sys.prefix, "<environment>"), (str(Path.home()), "<home>")):
            if len(folder) > 1:
                value = value.replace(folder, name)
    return value


def record(files):
    """When and on what this was made. No name of a person or a machine, no path, no environment variable."""
    import jax
    import torch

    from .run import execution_record

    ran = next((path for name in ("build/execution.json", "data/reference_run.json") if (path := find(name))), None)
    seconds = json.loads(ran.read_text(encoding="utf-8"))["seconds"] if ran else {}
    cuda = torch.cuda.is_available()
    helper = {f"notebooks/{part}/{path.name}": path.read_bytes() for part in ("mlm", "lesson")
              for path in (PROJECT / "notebooks" / part).glob("*.py")}
    notebooks = {name: content for name, content in files.items() if name.endswith(".ipynb")}
    return json.loads(execution_record(seconds)) | {
        "seconds_from": f"{ran.parent.name}/{ran.name}" if ran else "no run",
        "packages": {package.name.lower(): package.version for package in importlib.metadata.distributions()},
        "torch_devices": {"kind": torch.cuda.get_device_name() if cuda else "cpu",
                          "count": torch.cuda.device_count() if cuda else 1},
        "jax_flags": {"jax_enable_x64": jax.config.jax_enable_x64,
                      "jax_threefry_partitionable": jax.config.jax_threefry_partitionable,
                      "jax_default_prng_impl": jax.config.jax_default_prng_impl,
                      "jax_default_matmul_precision": jax.config.jax_default_matmul_precision},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in (helper | notebooks).items()},
        "commit": commit()}


def commit():
    """The commit of the course, None where there is none."""
    if not (PROJECT / ".git").exists():
        return None
    try:
        said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() or None


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lesson.evidence", description=__doc__.partition(":")[0] + ".")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("make", help="gather all evidence in one zip")
    command.add_argument("--out", type=Path, help="where to (default: build/evidence.zip)")
    command = commands.add_parser("verify", help="compute the claims of a bundle again")
    command.add_argument("path", type=Path)
    command.add_argument("--run", action="store_true", help="also run the learner's answers: their code, your rights")
    command.add_argument("--json", type=Path, help="also write the table as JSON")
    command = commands.add_parser("report", help="turn a bundle into one page that needs no network")
    command.add_argument("path", type=Path)
    command.add_argument("--out", type=Path, help="where to (default: build/report.html)")
    asked = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")       # before PyTorch is imported; its threads would wait for a core
    if asked.command == "make":
        from .execution import quick
        for name, value in quick().items():
            os.environ.setdefault(name, value)
        path, missing = make(asked.out)
        print(f"written: {path}, {path.stat().st_size:,} bytes")
        for name in missing:
            print(f"not in it: {name}, which is not there yet (run the notebooks, or `make run`)")
        return 0
    from . import verify
    from .container import write
    if asked.command == "report":
        from . import report
        path = asked.out or PROJECT / "build" / "report.html"
        page, rows = report.make(asked.path)
        write(path, page.encode())
        print(f"written: {path}; {verify.counts(rows)}")
        return 0
    rows = verify.verify(asked.path, asked.run)
    print(*verify.table(rows), sep="\n")
    if asked.json:
        write(asked.json, verify.as_json(rows).encode())
    return verify.status(rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"{error.filename} cannot be written: {error.strerror}")
