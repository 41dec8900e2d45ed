"""The model against published measurements: every row, modelled value and signed error."""
