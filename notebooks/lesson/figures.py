"""One look for all figures, and one way to export them with the numbers that they draw."""
import io
import json
import math
import os
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GREY, INK = "#767676", "#222222"
PROJECT = Path(__file__).resolve().parents[2]


def use_style():
    """Apply the course's look to all figures that follow."""
    plt.style.use(Path(__file__).with_name("course.mplstyle"))


def show(fig, name, *, alt, numbers, source, rtol=1e-4, atol=1e-6):
    """Show a figure in the notebook and export it with its numbers.

    Writes `figures/NAME.png` and `data/figures/NAME.json`, under the project or under
    the folder that the environment variable MLM_OUT names.

    Args:
        fig: a matplotlib figure; it is closed.
        name: file name without ending, beginning with the notebook's number.
        alt: what the figure shows, in words, for those who cannot see it.
        numbers: `{name with unit: scalar or array}`, everything that is drawn.
        source: where the numbers come from: notebook section, seeds, settings.
        rtol, atol: how far a re-run on another machine may differ, as in
            `numpy.testing.assert_allclose`; integers and text must be equal.
    """
    png = io.BytesIO()
    fig.savefig(png, format="png", metadata={"Software": None})    # no version inside: same bytes next time
    width = round(fig.get_figwidth() * 100)
    plt.close(fig)
    path = output_folder() / "figures" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png.getvalue())
    record(f"figures/{name}", numbers, source=source, alt=alt, rtol=rtol, atol=atol)
    display({"image/png": png.getvalue(), "text/plain": f"figures/{name}.png: {alt}"}, raw=True,
            metadata={"image/png": {"alt": alt, "width": width}})


def record(name, numbers, *, source, rtol=1e-4, atol=1e-6, **more):
    """Write `data/NAME.json`: numbers, where they come from, and how exact they are.

    Floats keep six significant digits. NaN and infinity are refused.
    """
    body = {"source": source, **more, "tolerance": {"rtol": rtol, "atol": atol},
            "packages": {p: version(p).split("+")[0] for p in ("jax", "torch", "numpy", "matplotlib")},
            "numbers": {key: _plain(value) for key, value in numbers.items()}}
    # One line for each entry, so that a difference is read at a glance.
    lines = [f" {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in body.items() if k != "numbers"]
    rows = [f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in body["numbers"].items()]
    text = "{\n" + ",\n".join(lines) + ',\n "numbers": {\n' + ",\n".join(rows) + "\n }\n}\n"
    path = output_folder() / "data" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def output_folder():
    """Where exports go: the project, or what MLM_OUT names."""
    return Path(os.environ.get("MLM_OUT") or PROJECT)


def _plain(value):
    """JSON's own types, floats rounded to six significant digits."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (str, bool, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    value = np.asarray(value).tolist()
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be recorded; wanted a finite number")
        return float(f"{value:.6g}") + 0.0      # + 0.0 turns -0.0 into 0.0
    return value
