"""Measurements of speed, acceptance and attention, installed as ``lookahead.bench``."""
