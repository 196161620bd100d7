"""An empty Triton kernel, to see what launching takes."""

import triton


@triton.jit(do_not_specialize=["nothing"])
def empty(nothing):
    """Do nothing, with one argument."""
    return
