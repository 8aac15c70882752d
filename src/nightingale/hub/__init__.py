"""Model names to files on this machine: the table of official models, the hub cache and downloads."""
