"""What a `Profile` looks like; only `report.figures` needs matplotlib, and nothing here needs torch."""
