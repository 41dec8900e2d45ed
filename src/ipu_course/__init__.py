"""The course's helper package: data and programs that the notebooks share."""
