"""T3's step in machine code of our own: written here in Python, made by LLVM when a model is loaded."""
