"""The lessons' explorers: knobs to turn, and a picture that follows. One file a lesson."""
