"""The version of Quire."""

__version__ = "0.1.0"
