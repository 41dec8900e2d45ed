"""Profiles, what-ifs, sweeps and advice, based on one table of options."""
