"""The version of Quire."""

__version__ = "0.2.0"
