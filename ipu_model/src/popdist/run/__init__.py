"""`poprun`: starts the instances of a run on this machine and on others, with torch's elastic launcher."""
