"""`python -m poptorch`: what of PopTorch works here, as a page of Markdown."""

from poptorch._backend.support import as_markdown

if __name__ == "__main__":
    print(as_markdown())
