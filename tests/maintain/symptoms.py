"""The table of ``help symptoms`` that is made from the known faults."""

import re

from sglang_perf_patches.faults.fault import Fault
from sglang_perf_patches.faults.known import FAULTS
from sglang_perf_patches.model.patch import room_of

from . import pages

PAGE = "src/sglang_perf_patches/pages/symptoms.md"

_PATCH = re.compile(r"(?<!`)(`?)\b((?:mlx|mla|mamba|swa)\.[a-z][a-z0-9-]*)\1")
_NUMBER = re.compile(r"#(\d+)")
_THREAD = "https://github.com/sgl-project/sglang/issues/"


def page(text: str) -> str:
    """The page with its table of faults as the data has them."""
    rows = [["what you see", "releases", "what helps"], *map(_row, FAULTS)]
    linked = [[*map(_linked, row)] for row in rows]
    return pages.replace_block(text, "faults", pages.markdown(linked))


def _row(fault: Fault) -> list[str]:
    fixed = f", fixed in {fault.fixed_in}" if fault.fixed_in else ""
    threads = f" ({fault.numbers})" if fault.threads else ""
    prevents = f"our {fault.patch}" if fault.patch else ""
    helps = ", or ".join(filter(None, (prevents, fault.help))) or ("" if fixed else "nothing")
    return [fault.symptom, f"{fault.releases}{fixed}{threads}", helps]


def _linked(cell: str) -> str:
    """A cell with links to the patches and threads that it names."""
    cell = _PATCH.sub(
        lambda found: f"[`{found[2]}`](../sets/{room_of(found[2]).replace('.', '/')}/README.md)",
        cell,
    )
    return _NUMBER.sub(lambda found: f"[#{found[1]}]({_THREAD}{found[1]})", cell)
