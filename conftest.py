"""For every call of pytest in this project: what notebooks export goes to a folder that is thrown away."""
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from lesson.execution import quick

# This file lies at the root so that `pytest notebooks/01_understand.ipynb` alone finds it too.
# The other processes of `-n 3` inherit the first one's folder, and so do all kernels.
FIRST = "PYTEST_XDIST_WORKER" not in os.environ
if FIRST:
    os.environ["MLM_OUT"] = tempfile.mkdtemp(prefix="mlm-test-")
    os.environ["IPYTHONDIR"] = os.environ["MLM_OUT"] + "/ipython"       # not the user's start-up files
for name, value in quick().items():
    os.environ.setdefault(name, value)
EXPORTS = Path(os.environ["MLM_OUT"])


def pytest_collection_modifyitems(items):
    """Notebooks first: the numbers that they export are compared afterwards."""
    items.sort(key=lambda item: item.path.suffix != ".ipynb")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    try:
        return (yield)
    finally:
        if item.path.suffix == ".ipynb" and (nextitem is None or nextitem.path != item.path):
            (EXPORTS / f"{item.path.stem}.done").touch()


@pytest.fixture(scope="module")
def one_thread():
    # On busy cores PyTorch's threads wait for each other: training takes 2 s instead of 0.1 s.
    from lesson import training
    with training.threads(1):
        yield


@pytest.fixture(scope="session")
def exports(request):
    """The folder with what all notebooks export when re-run. Those that this call of pytest left out run here."""
    from lesson import execution, run

    ran = {item.path for item in request.session.items}
    execution.wait_for(*(execution.execute(path, EXPORTS) for path in run.choose([]) if path not in ran))
    for path in run.choose([]):
        while path in ran and not (EXPORTS / f"{path.stem}.done").exists():     # it still runs in the other process
            time.sleep(0.1)
    return EXPORTS


def pytest_unconfigure():
    if FIRST:
        shutil.rmtree(EXPORTS, ignore_errors=True)
