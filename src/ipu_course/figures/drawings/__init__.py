"""The concept drawings, one file each: simple, few words, one point."""
