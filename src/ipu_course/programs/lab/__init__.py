"""The learner's own copy of the notebooks, and the JupyterLab that opens it."""
