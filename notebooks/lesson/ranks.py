"""One training step on two processes: numerators and counts travel, or means do. See notebook 3, section 3.21."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SECONDS = 120


def two_processes(params, targets, corrupted, selected, cuts):
    """The gradient of one batch, from two processes that hold unequal parts of it.

    Args:
        params: `{name: tensor}`.
        targets, corrupted, selected: `[row, seq]` tensors.
        cuts: rows of each process, for example `[slice(0, 3), slice(3, 16)]`.

    Returns:
        `{"added": (loss, {name: gradient}), "averaged": (loss, {name: gradient}), "counts": [tokens of each]}`:
        with sums and counts added before the division, and with the means of the processes averaged.

    Raises:
        RuntimeError: if a process fails, with its last words.
    """
    with tempfile.TemporaryDirectory() as scratch:
        np.savez(Path(scratch, "params.npz"), **{name: x.numpy() for name, x in params.items()})
        for rank, cut in enumerate(cuts):
            np.savez(Path(scratch, f"rows{rank}.npz"), targets=targets[cut].numpy(), corrupted=corrupted[cut].numpy(),
                     selected=selected[cut].numpy())
        # Both meet in a file; the loopback device is enough, and works without a network.
        env = os.environ | {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0", "OMP_NUM_THREADS": "1"}
        if sys.platform == "win32":
            del env["GLOO_SOCKET_IFNAME"]
        started = [subprocess.Popen([sys.executable, "-m", "lesson.ranks", scratch, str(rank), str(len(cuts))], env=env,
                                    cwd=Path(__file__).resolve().parents[1], stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True) for rank in range(len(cuts))]
        try:
            words = [process.communicate(timeout=SECONDS)[1] for process in started]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the processes did not finish within {SECONDS} s") from None
        finally:
            for process in started:
                process.kill()
                process.wait()
        failed = [f"process {rank}: {(said.strip() or 'no words').splitlines()[-1]}"
                  for rank, (process, said) in enumerate(zip(started, words, strict=True)) if process.returncode]
        if failed:                      # one that fails takes the others with it, so all are named
            raise RuntimeError("failed: " + "; ".join(failed))
        answer = json.loads(Path(scratch, "answer.json").read_text())
        with np.load(Path(scratch, "gradients.npz")) as arrays:
            gradients = {way: {name: arrays[f"{way} {name}"] for name in params} for way in ("added", "averaged")}
    return {way: (answer[way], gradients[way]) for way in gradients} | {"counts": answer["counts"]}


def one_process(scratch, rank, size):
    """What each process does; on a cluster `torchrun` and its environment replace the file in which they meet."""
    import torch
    import torch.distributed as dist

    from .training import selected_nll
    dist.init_process_group("gloo", init_method=f"file:///{Path(scratch, 'meeting').as_posix().lstrip('/')}",
                            rank=rank, world_size=size)
    with np.load(Path(scratch, "params.npz")) as arrays:
        params = {name: torch.from_numpy(arrays[name]).requires_grad_() for name in arrays}
    with np.load(Path(scratch, f"rows{rank}.npz")) as arrays:
        rows = [torch.from_numpy(arrays[name]) for name in ("targets", "corrupted", "selected")]
    total, count = selected_nll(params, *rows)
    total.backward()                                                    # the gradient of the sum, not of the mean
    own = {name: x.grad for name, x in params.items()}

    counts = [torch.zeros_like(count) for _ in range(size)]
    dist.all_gather(counts, count)
    all_total, all_count = total.detach().clone(), count.clone()
    dist.all_reduce(all_total)
    dist.all_reduce(all_count)
    loss = {"added": (all_total / all_count).item(), "counts": [int(c) for c in counts]}
    added = {name: _sum(g.clone()) / all_count for name, g in own.items()}      # divide once, after adding

    mean = _sum((total / count).detach().clone()) / size                # what averaging the processes does instead
    averaged = {name: _sum(g / count) / size for name, g in own.items()}
    loss["averaged"] = mean.item()
    if rank == 0:
        np.savez(Path(scratch, "gradients.npz"), **{f"added {name}": g.numpy() for name, g in added.items()},
                 **{f"averaged {name}": g.numpy() for name, g in averaged.items()})
        Path(scratch, "answer.json").write_text(json.dumps(loss))
    dist.barrier()
    dist.destroy_process_group()


def _sum(x):
    import torch.distributed as dist
    dist.all_reduce(x)
    return x


if __name__ == "__main__":
    one_process(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
