"""`make image-check`: the Dockerfile is built and its image run, without a registry of images."""
