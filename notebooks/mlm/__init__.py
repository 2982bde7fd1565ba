"""Masked language modeling in five short files: masking, objective, encoder; schedule and transformer for a corpus.

Every function takes JAX arrays or PyTorch tensors and answers in kind.
"""
from .encoder import fixture_batch, initial_params, mlm_logits, train_fixture
from .masking import apply_bert_masking, corrupt_tokens, validate_mask
from .objective import masked_ce, masked_nll, perplexity
from .schedule import eligible_positions, mask_examples
from .transformer import encode, encoder_logits, initial_encoder

__all__ = [
    "apply_bert_masking", "corrupt_tokens", "validate_mask",       # what the encoder reads
    "masked_nll", "masked_ce", "perplexity",                       # what is scored
    "mlm_logits",                                                  # what predicts
    "fixture_batch", "initial_params", "train_fixture",            # the lesson's tiny experiment
    "eligible_positions", "mask_examples",                         # masks for a corpus
    "initial_encoder", "encode", "encoder_logits",                 # the encoder for a corpus
]
