"""The version: a file of its own, so that what the package's own names lead to can read it."""

__version__ = "0.2.0"
