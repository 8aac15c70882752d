"""`python -m nightingale` is the `nightingale` command."""

from __future__ import annotations

from nightingale.cli.main import main

if __name__ == "__main__":
    main()
