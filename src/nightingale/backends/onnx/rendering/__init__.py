"""The flow and the vocoder of wren-like models, block by block."""
