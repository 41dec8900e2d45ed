"""Write what depends on the project's public address into marked blocks of files; without one, say how to do without.

A block stands between two comments, in Markdown `<!-- address: NAME -->` and `<!-- end of address: NAME -->`, in YAML
and in the Dockerfile `# address: NAME` and `# end of address: NAME`. `make docs` writes all of them anew, so after the
address is set in pyproject.toml nothing is typed twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from project_address import project_address

ROOT = Path(__file__).resolve().parents[1]
FIRST_LESSON = "lab/tree/notebooks/00_start_here.ipynb"
BINDER_HOSTS = {"github.com": "gh", "gitlab.com": "gl"}


@dataclass(frozen=True)
class Block:
    """A marked place of a file, and the text that belongs there for an address (empty if there is none)."""

    file: str
    name: str
    text: Callable[[str], str]


def is_on_github(address: str) -> bool:
    """Tell whether the workflows in .github run there."""
    return urlsplit(address).hostname == "github.com"


def binder_link(address: str) -> str:
    """Return the address at which Binder starts JupyterLab with lesson 00."""
    parts = urlsplit(address)
    provider = BINDER_HOSTS.get(parts.hostname or "")
    repository = f"{provider}/{parts.path.strip('/')}" if provider else f"git/{quote(address, safe='')}"
    return f"https://mybinder.org/v2/{repository}/HEAD?urlpath={quote(FIRST_LESSON, safe='')}"


def badges(address: str) -> str:
    """Return the badges below the README's title."""
    if not address:
        return ""
    shown = [f"[![Run it on Binder](https://mybinder.org/badge_logo.svg)]({binder_link(address)})"]
    if is_on_github(address):
        tests = f"{address}/actions/workflows/tests.yml"
        shown.insert(0, f"[![Tests]({tests}/badge.svg)]({tests})")
    return "\n".join(shown)


def citation(address: str) -> str:
    """Return the lines of CITATION.cff that name the repository."""
    return f'repository-code: "{address}"\nurl: "{address}"' if address else ""


def where_to_report(address: str) -> str:
    """Return the address at which a vulnerability can be reported without the public seeing it, if the host has one."""
    return f"{address}/security/advisories/new" if is_on_github(address) else address


def security_contact(address: str) -> str:
    """Return the paragraph of SECURITY.md that says whom to tell."""
    if not address:
        return (
            "The project has no public address yet. Until it has one, please report a vulnerability in private to the\n"
            "person who gave you the project. When the project gets an address, the maintainers set it as `address`\n"
            "in the table `[tool.project]` of `pyproject.toml`, and `make docs` puts it here."
        )
    if is_on_github(address):
        return f"Report it in private at <{where_to_report(address)}>."
    return (
        f"Ask the maintainers at <{address}> for a private way to report, without the details. Send the details in\n"
        "private."
    )


def conduct_contact(address: str) -> str:
    """Return the paragraph of the code of conduct that says how to reach those who enforce it."""
    if not address:
        return (
            "The project has no public address yet. Until it has one, please contact the person\n"
            "who runs the course that you attend, or the person who gave you the project."
        )
    return (
        f"The project is at <{address}>; its maintainers are the community leaders.\n"
        "In a course, you can also contact the person who runs it."
    )


def issue_links(address: str) -> str:
    """Return the links that the page for new issues shows beside the forms."""
    if not address:
        return ""
    return (
        "contact_links:\n"
        "  - name: A vulnerability\n"
        f"    url: {where_to_report(address)}\n"
        "    about: Do not open an issue for it. SECURITY.md says what counts as one."
    )


def version_links(address: str) -> str:
    """Return the links of the versions in the changelog."""
    return f"[1.0.0]: {address}/releases/tag/v1.0.0" if is_on_github(address) else ""


def image_labels(address: str) -> str:
    """Return the labels of the container images that name the repository."""
    if not address:
        return ""
    return f'LABEL org.opencontainers.image.source="{address}" \\\n      org.opencontainers.image.url="{address}"'


BLOCKS = (
    Block("README.md", "badges", badges),
    Block("CITATION.cff", "repository", citation),
    Block("SECURITY.md", "contact", security_contact),
    Block("CODE_OF_CONDUCT.md", "contact", conduct_contact),
    Block("CHANGELOG.md", "versions", version_links),
    Block(".github/ISSUE_TEMPLATE/config.yml", "links", issue_links),
    Block("Dockerfile", "labels", image_labels),
)


def filled(text: str, block: Block, address: str) -> str:
    """Return the text of a file with one of its blocks written for an address.

    Raises ValueError if the file has no such block, or several.
    """
    begin, end = (rf"(?:<!--|#) {word}address: {re.escape(block.name)}(?: -->)?\n" for word in ("", "end of "))
    marked = re.compile(rf"^(?P<begin>{begin})(?:.*\n)*?(?P<end>{end})", re.MULTILINE)
    if len(marked.findall(text)) != 1:
        raise ValueError(f"{block.file} needs one block 'address: {block.name}'")
    lines = block.text(address)
    return marked.sub(lambda found: f"{found['begin']}{lines}{chr(10) if lines else ''}{found['end']}", text)


def written(address: str, root: Path = ROOT) -> dict[str, str]:
    """Return the text of every file that has a block, by its name, as it reads with an address."""
    texts = {block.file: (root / block.file).read_text(encoding="utf-8") for block in BLOCKS}
    for block in BLOCKS:
        texts[block.file] = filled(texts[block.file], block, address)
    return texts


def main() -> None:
    """Write all of them for the address that is set."""
    for file, text in written(project_address()).items():
        (ROOT / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
