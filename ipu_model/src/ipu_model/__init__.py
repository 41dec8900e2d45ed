"""The IPU Model's engine: one captured graph, read by the numerics and by the performance model."""
