"""What `bench/run.py` measures, one subject a file."""
