"""What each example says is live in its server is what ``doctor -- COMMAND`` says of it."""

import re
from pathlib import Path

import pytest

import released
from sglang_perf_patches import downloads, sets
from sglang_perf_patches.cli import verbs
from sglang_perf_patches.cli.verbs import asking
from sglang_perf_patches.compat import source
from sglang_perf_patches.model import selection
from sglang_perf_patches.model.feature import Setup
from sglang_perf_patches.model.patch import by_id
from tests.releases.recipes.outcomes import RELEASE, resolved, write_models

EXAMPLES = Path(__file__).parents[2] / "examples"

SERVERS = {
    "kubernetes.yaml": ("qwen3.5-35b", ""),
    "compose.yaml": ("gpt-oss-20b", ""),
    "pd_decode_swa.sh": ("gpt-oss-20b", ""),
    "eagle_mla.sh": ("deepseek-v3", "--tp 8"),
    "eagle_mla.sh and DP attention": ("deepseek-v3", "--tp 8 --dp 8 --enable-dp-attention"),
    "eagle_mla.sh with mixed chunks": ("deepseek-v3", "--tp 8 --enable-mixed-chunk"),
}
"""Example → its model, and the flags that its reader adds."""


def text_of(example: str) -> str:
    return (EXAMPLES / example.partition(" ")[0]).read_text(encoding="utf-8")


def flags_of(example: str) -> list[str]:
    """The flags of the example's server without its model; of two servers, the decode server's."""
    text = text_of(example)
    if example.startswith("kubernetes"):
        return [flag for flag in re.findall(r"^ +- (--\S+)$", text, re.M) if "model" not in flag]
    if example.startswith("compose"):
        (found,) = re.findall(r"--port 30001(.*?)\n +healthcheck", text, re.DOTALL)
    else:
        (found,) = re.findall(r"^exec .*sglang\.launch_server(.*?)\"\$@\"", text, re.M | re.DOTALL)
    return str(found).replace("\\\n", " ").split()


def live_in_readme(example: str) -> set[str]:
    (line,) = (
        line
        for line in text_of("README.md").splitlines()
        if f"[`{example.partition(' ')[0]}`]" in line
    )
    plain, _, with_more = line.rpartition(" | ")[2].partition("; with ")
    words = with_more if " and " in example else plain
    return set(re.findall(r"`([a-z]+\.[a-z0-9-]+)`", words))


@pytest.mark.whole_matrix
def test_what_examples_say_is_live_is_live(tmp_path: Path) -> None:
    write_models(tmp_path)
    servers = [
        ("H100", ["--model-path", tmp_path / model, *flags_of(example), *more.split()])
        for example, (model, more) in SERVERS.items()
    ]
    lines = resolved(released.tree(RELEASE), servers)
    verdicts = verbs.judged(source.at(downloads.tree(RELEASE)))
    for example, line in zip(SERVERS, lines, strict=True):
        on, lacking, having = line["setup"]
        named = re.search(r"SGLANG_PERF_PATCHES(?:=|: |, value: \")([\w.,-]+)", text_of(example))
        assert named
        chosen = selection.parse(named[1], by_id(sets.load()))
        setup = Setup(on, lacking, frozenset(having))
        states = {one.patch: one.state for one in asking.outlooks(chosen, verdicts, setup)}
        live = {name for name, state in states.items() if state == asking.LIVE}
        lost = {name for name, state in states.items() if chosen.is_unavailable(name, state)}
        if " with " in example:
            assert lost == {"mla.page-table-bound"}  # with STRICT the server exits
            continue
        assert live == live_in_readme(example), example
        assert not lost, example
