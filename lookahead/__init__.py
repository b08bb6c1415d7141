"""Exact, drafter-free faster decoding for Hugging Face causal language models."""
