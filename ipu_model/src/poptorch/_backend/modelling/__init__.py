"""What `poptorch` tells the performance model, a compiled program as a `Program`, and what that answers."""
