"""The checks of `bench.gpu_acceptance`: what they find on a GPU, and in small on a CPU."""
