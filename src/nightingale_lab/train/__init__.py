"""How wren is made: data, targets and one training stage per network. Never imported by the product."""
