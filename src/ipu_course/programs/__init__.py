"""The programs of ``python -m ipu_course``: a folder each, with what a learner or a teacher starts in ``command``."""
