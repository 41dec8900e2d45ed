"""The checks of the lessons' exercises, one file a lesson."""
