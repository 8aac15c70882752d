"""The stages of the pipeline, each compared with upstream's in a file of its own."""
