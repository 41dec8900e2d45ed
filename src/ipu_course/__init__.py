"""The course's helper package: data and programs that the notebooks share."""

# pyproject.toml reads this line, too.
__version__ = "1.0.0"
