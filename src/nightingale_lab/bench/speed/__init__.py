"""What `nightingale bench` measures: how soon, how fast, how steadily, at what cost."""
