"""What a `Profile` looks like: text, one HTML page, figures, a trace for Perfetto, a comparison of two.

Only `report.figures` needs matplotlib, and nothing here needs torch.
"""
