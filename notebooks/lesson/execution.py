"""A notebook executed from a fresh kernel, and cleaned of what depends on the moment or the machine."""
import asyncio
import atexit
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

LONGEST_CELL = 600              # seconds
AGAIN = 10                      # seconds after which a run that was stopped, and still goes on, is stopped again
METADATA = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"}}        # no versions: every Python records the same bytes
NOISE = ("ExecuteTime", "collapsed", "execution", "lines_to_next_cell", "scrolled", "trusted")   # left by editors


async def execute(path, out, on_cell=lambda cell: None):
    """The notebook at `path`, run from a fresh kernel; its exports go to the folder `out`.

    The kernel is the running interpreter's, whatever kernels are installed for the user.
    `on_cell` is called with each code cell before it runs.
    """
    nb = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=own_kernel(scratch))
        client = NotebookClient(nb, km=manager, resources={"metadata": {"path": str(path.parent)}}, record_timing=False,
                                timeout=LONGEST_CELL, on_cell_execute=lambda cell, cell_index: on_cell(cell))
        # A profile of the user's own (start-up files, settings) would change what is recorded.
        env = {**quick(), **os.environ, "MLM_OUT": str(out), "IPYTHONDIR": scratch}
        try:
            await client.async_execute(cleanup_kc=True, env=env, stderr=subprocess.DEVNULL)     # the kernel's own log
        except DeadKernelError:         # nbclient says so when it is cancelled, too
            if asyncio.current_task().cancelling():
                raise asyncio.CancelledError from None
            raise
        finally:                        # nbclient leaves these behind when it is cancelled while the kernel starts
            atexit.unregister(client._cleanup_kernel)
            if client.kc is not None:
                client.kc.stop_channels()
            if manager.has_kernel:
                await manager.shutdown_kernel(now=True)
    return tidy(nb)


def quick():
    """Environment variables that save time and change no result.

    One thread for PyTorch: beside another process its threads wait for a core at every tiny softmax. What JAX compiles
    is kept in the virtual environment, for compiling is most of the time; the programs are run all the same.
    """
    variables = {"OMP_NUM_THREADS": "1"}
    if sys.prefix != sys.base_prefix:
        variables |= {"JAX_COMPILATION_CACHE_DIR": str(Path(sys.prefix, "jax-cache")),
                      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                      "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                      "TF_CPP_MIN_LOG_LEVEL": "2",      # XLA would warn at each program that it finds there
                      # Two processes may meet at one file while it is written; JAX then compiles.
                      "PYTHONWARNINGS": "ignore:Error reading persistent,ignore:Error writing persistent"}
    return variables


def own_kernel(scratch):
    """Kernel specifications in the folder `scratch`: the running interpreter's, and no other."""
    write_kernel_spec(Path(scratch, "kernels", "python3"))
    return KernelSpecManager(kernel_dirs=[str(Path(scratch, "kernels"))], ensure_native_kernel=False)


def tidy(nb):
    """Take out what depends on the moment or the machine; `nb` is changed and returned."""
    nb.metadata = nbformat.from_dict(METADATA)
    for cell in nb.cells:
        for key in NOISE:
            cell.metadata.pop(key, None)
        merged = []             # how a stream is cut into pieces is chance
        for output in cell.get("outputs", ()):
            if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
                continue        # a progress bar: a random name for what is gone when the kernel is
            if output.output_type == "error":       # a full traceback holds paths of this machine
                output.traceback = [f"{output.ename}: {output.evalue}"]
            if merged and output.output_type == merged[-1].output_type == "stream" and output.name == merged[-1].name:
                merged[-1].text += output.text
            else:
                merged.append(output)
        if cell.cell_type == "code":
            cell.outputs = merged
    return nb


def wait_for(*steps):
    """Results of the coroutines, two of them at a time: more kernels would only share the same two cores."""
    async def wait():
        two = asyncio.Semaphore(2)

        async def one(step):
            async with two:
                task = asyncio.ensure_future(step)
                try:
                    return await asyncio.shield(task)
                except asyncio.CancelledError:
                    while not task.done():              # once is seldom lost, inside a library that was about to answer
                        task.cancel()
                        await asyncio.wait([task], timeout=AGAIN)
                    raise
        async with asyncio.TaskGroup() as group:        # when one fails, the other kernels are shut down
            tasks = [group.create_task(one(step)) for step in steps]
        return [task.result() for task in tasks]
    try:
        with asyncio.Runner(loop_factory=Loop) as runner:
            return runner.run(wait())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


class Loop(asyncio.SelectorEventLoop):
    """Leaves Ctrl-C to asyncio, which lets kernels be shut down; nbclient would take it over."""

    def add_signal_handler(self, *_):
        raise NotImplementedError

    def default_exception_handler(self, context):
        """Our own tasks are all waited for; what nbclient's leave behind when stopped helps nobody."""
