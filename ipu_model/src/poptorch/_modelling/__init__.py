"""What `poptorch` tells the performance model: a compiled program as an `ipu_model.program.Program`, and the answers back.

Nothing here is imported before a model is compiled, except for the engine options.
"""
