"""What single lessons show of a profile: each a figure or a table, with its words."""
