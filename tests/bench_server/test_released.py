"""Each release's bench_serving has the options and figures that ``bench server`` uses."""

import re
from pathlib import Path

import pytest

from sglang_perf_patches import downloads
from sglang_perf_patches.bench_server import load
from sglang_perf_patches.compat import source
from sglang_perf_patches.model import releases

_OPTIONS = ("--base-url", "--output-file", "--output-details", "--tokenizer")


@pytest.mark.parametrize("release", releases.KNOWN)
def test_bench_serving_of_a_release(release: str) -> None:
    tree = source.Tree(source.find(downloads.tree(release)))
    sent = load.of(tree, ["--seed", "2"])
    assert sent.options.count("--seed") == 1
    path = tree.path(sent.module)
    assert path is not None
    text = Path(path).read_text(encoding="utf-8")
    named = {word for word in sent.options if word.startswith("--")}
    for option in {*named, *_OPTIONS}:
        assert f'"{option}"' in text, option
    for key in (*load.FIGURES.values(), "completed", "errors"):
        assert f'"{key}"' in text, key


@pytest.mark.parametrize("release", releases.KNOWN)
def test_the_server_of_a_release_answers_what_is_asked(release: str) -> None:
    folder = source.find(downloads.tree(release))
    text = (folder / "srt" / "entrypoints" / "http_server.py").read_text(encoding="utf-8")
    for path in ("/health", "/generate", "/model_info", "/server_info"):
        assert re.search(rf'@app\.(get|post|api_route)\(\s*"{path}"', text), path
    manager = folder / "srt" / "managers" / "tokenizer_manager.py"
    assert '"output_ids"' in manager.read_text(encoding="utf-8")
