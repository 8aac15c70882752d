"""The `nightingale` command."""
