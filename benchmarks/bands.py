"""How much the corpus results vary: three seeds, one and two threads. About ten minutes on one core.

    PYTHONPATH=notebooks .venv/bin/python benchmarks/bands.py

Writes `data/corpus_bands.json`: perplexities of each run, and the band that holds them all.
"""
import json
import time

import numpy as np
import torch

from lesson import corpus, training
from lesson.figures import PROJECT
from mlm import perplexity


def main():
    parts = corpus.split(corpus.collect()[0])
    tokenizer = corpus.load_tokenizer()
    rows = {name: torch.from_numpy(corpus.rows(tokenizer, inside)[0]) for name, inside in parts.items()}
    by_chance = torch.from_numpy(np.random.default_rng(0).random(len(rows["train"])) < 0.05)     # as in notebook 3
    train_rows = rows["train"][~by_chance]
    held = {"rows": rows["train"][by_chance], "documents": rows["document"], "library": rows["library"]}
    frozen, first = {}, len(train_rows)
    for name, tokens in held.items():
        frozen[name] = training.frozen(tokens, np.arange(first, first + len(tokens)))
        first += len(tokens)
    runs = []
    for threads in (1, 2):
        for seed in (0, 1, 2):
            start = time.monotonic()
            with training.threads(threads):
                params, _, skipped = training.train(train_rows, seed=seed, label=f"seed {seed}, {threads} threads")
                run = {"seed": seed, "threads": threads, "skipped": skipped}
            for name, (targets, corrupted, selected, branch) in frozen.items():
                nll = training.position_nll(params, targets, corrupted, selected)
                run[name] = {part: round(perplexity(*sums), 3)
                             for part, sums in training.by_branch(nll, selected, branch).items()}
            runs.append(run)
            print(run, f"{time.monotonic() - start:.0f} s", flush=True)
    bands = {name: {part: [least([r[name][part] for r in runs]) for least in (min, max)] for part in runs[0][name]}
             for name in frozen}
    body = {"source": "benchmarks/bands.py", "unit": "perplexity", "runs": runs, "bands": bands}
    (PROJECT / "data" / "corpus_bands.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
