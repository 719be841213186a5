"""Moves of a chain, one file for each: a move proposes, and learns from its proposals' outcomes."""
