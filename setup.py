"""The description for a package index: the README without what only a checkout can show."""

from __future__ import annotations

import re
from pathlib import Path

_IMAGE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def description(readme: str) -> str:
    """A README whose links all work without the files beside it: others become plain text."""
    return _LINK.sub(r"\1", _IMAGE.sub("", readme))


if __name__ == "__main__":
    from setuptools import setup

    _readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(
        long_description=description(_readme),
        long_description_content_type="text/markdown",
    )
