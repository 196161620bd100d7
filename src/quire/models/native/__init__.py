"""The C++ kernels for CPUs, one shared library for all instruction sets, called by ctypes."""

from quire.models.native.library import Library as Library
from quire.models.native.library import library as library
