"""A program as it is and as it could be: profiles, what-ifs, sweeps and advice, over one table of options."""
