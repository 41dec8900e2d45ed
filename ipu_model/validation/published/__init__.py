"""Measurements on hardware that were published, and what the model says about them.

`published.toml` has the rows, `convolutional` and `transformers` rebuild their programs, `predictions` says how to
compute the modelled value of each row, and `record.json` has the errors of the last time.
"""
