"""Masked language modeling in three short files: masking, objective, encoder.

Every function takes JAX arrays or PyTorch tensors and answers in kind.
"""
from .encoder import fixture_batch, initial_params, mlm_logits, train_fixture
from .masking import apply_bert_masking, corrupt_tokens, validate_mask
from .objective import masked_ce, masked_nll, perplexity

__all__ = [
    "apply_bert_masking", "corrupt_tokens", "validate_mask",       # what the encoder reads
    "masked_nll", "masked_ce", "perplexity",                       # what is scored
    "mlm_logits",                                                  # what predicts
    "fixture_batch", "initial_params", "train_fixture",            # the lesson's tiny experiment
]
