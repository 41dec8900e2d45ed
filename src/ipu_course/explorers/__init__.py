"""Explorers: controls to move, and a figure that follows them."""
