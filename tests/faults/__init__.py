"""What goes wrong around a run: each trial brings one fault about and says whether all held.

`python -m tests.faults` runs many and prints a table; `tests/faults/test_faults.py` runs a few.
"""
