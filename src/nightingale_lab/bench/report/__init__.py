"""The page behind `nightingale report`: stored results as one HTML file that needs nothing else."""
