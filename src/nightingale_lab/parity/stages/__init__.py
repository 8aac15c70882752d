"""The stages of the pipeline. Each module runs both sides of one stage and compares them.

Upstream's packages are imported inside the functions that run upstream's side, so that our side can be tested
without them (tests/lab/parity).
"""
