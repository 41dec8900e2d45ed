"""The learner's own report: what was answered so far, as one page that loads nothing and sends nothing."""
