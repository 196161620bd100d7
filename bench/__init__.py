"""Measure Quire against a peer server on the same machine, in the same minutes."""
