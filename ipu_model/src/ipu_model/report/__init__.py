"""What a `Profile` looks like; nothing here needs torch."""
