"""Tokens per second of the course's training step and of a BertForMaskedLM of the same size, in one run.

    .venv/bin/python -m pip install transformers
    PYTHONPATH=notebooks .venv/bin/python benchmarks/encoder_against_bert.py

Both train on the same rows and masks, length 64, width 64, 2 layers, 4 heads, batch 64, 2,048 tokens, on two threads;
the rounds alternate, and the ratio of each pair is printed. BERT has more to do: its head scores every position and
has a layer of its own. It is the code that people start from.
"""
import statistics
import sys
import time

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from lesson import corpus, training
from mlm import initial_encoder

ROUNDS, UPDATES = 7, 15


def main(threads=2):
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    targets = torch.from_numpy(rng.integers(5, corpus.VOCAB, (training.BATCH, corpus.LENGTH)))
    targets[:, 0], targets[:, -1] = corpus.CLS, corpus.SEP
    corrupted, selected, _ = training.masks(targets, np.arange(training.BATCH), 0, 0)

    params = {name: x.requires_grad_() for name, x in initial_encoder(0, corpus.VOCAB).items()}
    ours = torch.optim.AdamW(params.values(), lr=1e-3, fused=True)

    def our_step():
        ours.zero_grad()
        total, count = training.selected_nll(params, targets, corrupted, selected)
        (total / count).backward()
        ours.step()
        return float(total.detach() / count)

    torch.manual_seed(0)
    bert = BertForMaskedLM(BertConfig(
        vocab_size=corpus.VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=corpus.LENGTH, hidden_dropout_prob=0, attention_probs_dropout_prob=0)).train()
    theirs = torch.optim.AdamW(bert.parameters(), lr=1e-3, fused=True)
    labels, attention = torch.where(selected, targets, -100), (targets != corpus.PAD).long()

    def bert_step():
        theirs.zero_grad()
        loss = bert(input_ids=corrupted, attention_mask=attention, labels=labels).loss
        loss.backward()
        theirs.step()
        return float(loss.detach())

    def seconds(step):
        start = time.perf_counter()
        for _ in range(UPDATES):
            step()
        return (time.perf_counter() - start) / UPDATES

    print(f"first losses: {our_step():.2f} and {bert_step():.2f} nats; log V = {np.log(corpus.VOCAB):.2f}")
    pairs = [(seconds(our_step), seconds(bert_step)) for _ in range(ROUNDS)]
    tokens = targets.numel()
    for name, column in zip(("ours", "BERT"), zip(*pairs, strict=True), strict=True):
        print(f"{name}: {1000 * statistics.median(column):.0f} ms an update, "
              f"{tokens / statistics.median(column):,.0f} tokens a second (median of {ROUNDS})")
    ratios = sorted(theirs / ours for ours, theirs in pairs)
    print(f"ratio: median {statistics.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
