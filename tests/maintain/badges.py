"""The README's badges: one picture, true without a network."""

import re
from pathlib import Path
from xml.sax.saxutils import escape

from sglang_perf_patches import __version__
from sglang_perf_patches.model import releases

PICTURE = "examples/badges.svg"
_HEIGHT, _CHARACTER, _GAP = 20, 7, 6


def badges(root: Path) -> dict[str, str]:
    """Name → value, from what the package declares."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    project = dict(re.findall(r'^([\w-]+) = "(.*)"$', text, re.MULTILINE))
    return {
        "version": __version__,
        "Python": project["requires-python"],
        "sglang": f"{releases.KNOWN[0]}{releases.TO}{releases.KNOWN[-1]}",
        "licence": project["license"],
    }


def picture(root: Path) -> str:
    """The badges as SVG, side by side."""
    parts, x = [], 0
    for name, value in badges(root).items():
        for text, colour in ((name, "#444c56"), (value, "#0072b2")):
            width = _CHARACTER * len(text) + 12
            parts.append(f'<rect x="{x}" width="{width}" height="{_HEIGHT}" fill="{colour}"/>')
            parts.append(f'<text x="{x + width / 2:g}" y="14">{escape(text)}</text>')
            x += width
        x += _GAP
    label = "; ".join(f"{name} {value}" for name, value in badges(root).items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - _GAP}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">'
        "<style>text{font:11px system-ui,sans-serif;fill:#fff;text-anchor:middle}</style>"
        f"{''.join(parts)}</svg>\n"
    )
