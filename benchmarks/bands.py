"""How much the corpus results vary: three seeds, one and two threads. About ten minutes on one core.

    PYTHONPATH=notebooks .venv/bin/python benchmarks/bands.py

Writes `data/corpus_bands.json`: perplexities of each run, and the band that holds them all.
"""
import json
import time

from lesson import corpus, training
from lesson.figures import PROJECT
from mlm import perplexity


def main():
    train_rows, frozen = training.held_out(corpus.split(corpus.collect()[0]), corpus.load_tokenizer())
    runs = []
    for threads in (1, 2):
        for seed in (0, 1, 2):
            start = time.monotonic()
            with training.threads(threads):
                params, _, skipped = training.train(train_rows, seed=seed)
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
