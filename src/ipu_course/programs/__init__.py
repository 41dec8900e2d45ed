"""The course's command-line programs: train, mnist and bench."""
