"""Run the fixture and the masking on the devices of this machine and compare: `python -m lesson.receipt`.

Draws have to be the reference run's to the last bit, on every device. Trained numbers have to be near: matrix products
are asked for in full float32, because an accelerator would round their factors otherwise.
"""
import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import time

import numpy as np

from .figures import PROJECT, output_folder

PACKAGES = re.compile(r"jax|libtpu|torch|numpy|nvidia|rocm|triton")
# Shape, vocabulary and seed of draws whose every bit is compared.
SHAPES = [((4, 6), 50, 7), ((16, 32), 50, 0), ((3, 128), 30_522, 123), ((1, 1), 1, 2**31)]
DRAWS = {"jax": "96b7fad5c91c9fb227568dc5eb2c301229382b39d59920d9ef223c0d6dfe727d",             # of the reference run
         "torch": "8263cb1b2d25e884871878cafcd89e7b9ac0524615cf51edfb35cd8a77b0403c"}
TOLERANCE = {"first loss against log 3, nats": 1e-6, "100 losses, nats": 1e-5, "trained parameters": 1e-4,
             "final probabilities": 1e-5, "moved mask, nats": 1e-5, "golden draws, wrong entries": 0,
             "draws of four shapes, other bits": 0}


def runs():
    """`[(framework, device in words, how many, context in which to run there)]` of what both frameworks find."""
    import jax
    import torch

    found = []
    for platform in dict.fromkeys([jax.devices()[0].platform, "cpu"]):
        try:
            devices = jax.devices(platform)
        except RuntimeError:            # JAX_PLATFORMS may leave out the CPU
            continue
        found.append(("jax", f"{platform}: {devices[0].device_kind}", len(devices), jax.default_device(devices[0])))
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        name = torch.cuda.get_device_name() if kind == "cuda" else kind
        found.append(("torch", f"{kind}: {name}", torch.accelerator.device_count(), torch.device(kind)))
    return [*found, ("torch", "cpu: cpu", 1, torch.device("cpu"))]


def results(framework):
    """`(numbers, arrays)` of the fixture and the masking, on the device that is the default."""
    import jax.numpy as jnp
    import torch

    import mlm
    from mlm.masking import draws_jax, draws_torch

    softmax, array = (torch.softmax, torch.tensor) if framework == "torch" else (_jax_softmax, jnp.array)
    targets, selected, corrupted = mlm.fixture_batch(framework)
    params, history = mlm.train_fixture(framework)
    moved = array([[False, False, True, False]] * 3)
    moved_loss = mlm.masked_ce(mlm.mlm_logits(params, mlm.corrupt_tokens(targets, moved, 3)), targets, moved)
    values = {"loss before each update, nats": history, "moved mask, nats": moved_loss,
              "final probability [row, class]": softmax(mlm.mlm_logits(params, corrupted), -1)[:, 1],
              "trained embedding": params["embedding"], "trained head": params["head"]}
    masked = [mlm.apply_bert_masking(array(case["tokens"]), **{key: case[key] for key in (
        "vocab_size", "mask_token_id", "seed", "mask_prob")}) for case in golden()]
    draw = {"jax": draws_jax, "torch": draws_torch}[framework]
    bits = hashlib.sha256()
    for shape in SHAPES:
        for x in draw(*shape):
            bits.update(np.ascontiguousarray(host(x)).astype("<f4" if host(x).dtype.kind == "f" else "<i4").tobytes())
    return {name: host(x).astype(float) for name, x in values.items()}, [host(x) for x in masked], bits.hexdigest()


def _jax_softmax(x, axis):
    import jax
    return jax.nn.softmax(x, axis)


def host(x):
    """A result as a NumPy array, from whatever device it lies on."""
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def golden():
    return json.loads((PROJECT / "data" / "golden_masking.json").read_text(encoding="utf-8"))["cases"]


def compared(framework, values, masked, digest):
    """`{what: difference from the reference run}`, which data/fixture.json holds to six digits."""
    own = json.loads((PROJECT / "data" / "fixture.json").read_text(encoding="utf-8"))["numbers"]
    apart = {name: float(np.abs(values[name] - np.array(own[name])).max()) for name in values}
    wanted = [np.stack([case[framework]["corrupted"], case[framework]["selected"]], -1) for case in golden()]
    wrong = sum(int((one != another).sum()) for one, another in zip(masked, wanted, strict=True))
    return {"first loss against log 3, nats": abs(float(values["loss before each update, nats"][0]) - float(np.log(3))),
            "100 losses, nats": apart["loss before each update, nats"],
            "trained parameters": float(np.max([apart["trained embedding"], apart["trained head"]])),
            "final probabilities": apart["final probability [row, class]"],
            "moved mask, nats": apart["moved mask, nats"], "golden draws, wrong entries": wrong,
            "draws of four shapes, other bits": int(digest != DRAWS[framework])}


def collect():
    """The receipt of this machine: devices, versions, results, differences, and whether all of them are allowed."""
    import jax

    from .run import execution_record

    record, rows = json.loads(execution_record({})), []
    for framework, device, count, context in runs():
        start = time.monotonic()
        with context, jax.default_matmul_precision("highest") if framework == "jax" else contextlib.nullcontext():
            values, masked, digest = results(framework)
        history = values["loss before each update, nats"]
        differences = {what: {"difference": float(f"{apart:.3g}") if np.isfinite(apart) else "not finite",
                              "allowed": TOLERANCE[what], "met": apart <= TOLERANCE[what]}
                       for what, apart in compared(framework, values, masked, digest).items()}
        rows.append({"framework": framework, "device": device, "count": count,
                     "seconds": round(time.monotonic() - start, 1),
                     "results": {"first loss, nats": float(history[0]), "last recorded loss, nats": float(history[-1]),
                                 "moved mask, nats": float(values["moved mask, nats"]), "draws, SHA-256": digest},
                     "differences": differences})
    packages = {package.name.lower(): package.version for package in importlib.metadata.distributions()}
    return {"about": "fixture and masking on one machine, against data/fixture.json and data/golden_masking.json",
            **{key: record[key] for key in ("utc", "python", "platform", "processor")},
            "packages": {name: packages[name] for name in sorted(packages) if PACKAGES.match(name)},
            "matrix products": "JAX: precision highest; PyTorch: as it comes, float32",
            "runs": rows, "holds": all(entry["met"] for row in rows for entry in row["differences"].values())}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lesson.receipt", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--keep", metavar="NAME", help="write data/receipts/NAME.json instead of build/receipt.json")
    asked = parser.parse_args(arguments)
    if asked.keep and not re.fullmatch(r"[a-z0-9_-]{1,40}", asked.keep):
        parser.error(f"the name is {asked.keep!r}; wanted small letters, digits, - and _, for example tpu-v5e")
    from .container import write
    from .execution import quick

    for name, value in quick().items():         # before JAX and PyTorch are imported
        os.environ.setdefault(name, value)
    receipt = collect()
    name = f"data/receipts/{asked.keep}.json" if asked.keep else "build/receipt.json"
    path = (PROJECT if asked.keep else output_folder()) / name
    write(path, (json.dumps(receipt, indent=1) + "\n").encode())
    for row in receipt["runs"]:
        print(f"{row['framework']} on {row['device']}, {row['count']} of them, {row['seconds']} s")
        for what, entry in row["differences"].items():
            print(f"  {what:34s} {entry['difference']:<10} allowed {entry['allowed']:<7.3g} "
                  f"{'met' if entry['met'] else 'MISSED'}")
    print(f"written: {path}")
    return 0 if receipt["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
