"""The lessons, a folder each: text, checks, explorer, figures, right and wrong answers, notes for teaching, tests."""
