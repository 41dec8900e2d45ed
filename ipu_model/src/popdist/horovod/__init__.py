"""The modules of the stand-in for Horovod, which is `horovod.py` beside `popdist`."""
