"""Networks only: tensors in, tensors out. They hold weights; whatever changes is passed in."""
