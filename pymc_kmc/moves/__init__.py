"""Moves of a chain, one file each: a move proposes, and learns from its proposals' outcomes."""
