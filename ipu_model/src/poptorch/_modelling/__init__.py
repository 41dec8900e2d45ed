"""What `poptorch` tells the performance model (a compiled program as an `ipu_model.program.Program`), and its answers.

Rooms of the engine are imported when a model is compiled, so that `import poptorch` stays quick.
"""
