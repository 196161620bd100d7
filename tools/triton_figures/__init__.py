"""Tells what Triton kernels take of a GPU, by compiling them, which needs none."""
