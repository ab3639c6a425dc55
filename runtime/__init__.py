"""How a graph becomes a running kernel: one module per stage."""
