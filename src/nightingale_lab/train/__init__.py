"""Training of wren: data, distillation targets and one stage per network. The product never imports it."""
