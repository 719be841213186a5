"""Small data sets that the examples and tests use, shipped with the package."""

from ._glass import Glass, load_glass

__all__ = ["Glass", "load_glass"]
