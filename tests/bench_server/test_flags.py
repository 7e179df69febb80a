"""The flags of a release, and which of their values may be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import few_flags
from sglang_perf_patches.bench_server.flags import Flags, of
from sglang_perf_patches.compat.source import Tree


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Flags:
    return few_flags.of(tmp_path_factory.mktemp("tree") / "sglang")


@pytest.mark.parametrize(
    "name",
    [
        *("--tp-size", "--tensor-parallel-size", "--tp", "--max-total-tokens", "--cuda-graph-bs"),
        *("--graph-sizes", "--graph-s", "--attention-backend", "--dtype", "--kind"),
        *("--trust-remote-code", "--skip-tokenizer-init", "--skip-tok", "--sp"),
        *("--host", "--api-key", "--lora-paths", "--extra-headers", "--json-model-override-args"),
        *("--num-prompts", "--served-model-name"),
    ],
)
def test_a_flag_is_known(known: Flags, name: str) -> None:
    assert known.meant(name)
    assert name in known.meant(name) or len(name) < 11


@pytest.mark.parametrize(
    "name", ["--not-a-flag", "--acme", "--tokens", "--ap1", "--t", "--s", "-t", "api-key"]
)
def test_another_word_is_no_flag(known: Flags, name: str) -> None:
    assert not known.meant(name)


@pytest.mark.parametrize(
    ("name", "shown", "hidden"),
    [
        ("--tp-size", "8 -1 0.5 1,2,4 inf auto", "1e400 secret 12345678901 8x \u0661"),
        ("--attention-backend", "triton fa3 half", "Fa3 secret"),
        ("--speculative-algorithm", "EAGLE eagle3 NEXTN ngram", "secret"),
        ("--disaggregation-mode", "decode", "secret"),
        ("--api-key", "", "12345 triton half"),
        ("--api", "", "12345 triton half"),
        ("--admin", "", "12345 triton half"),
        ("--host", "auto", "gpu-17 10.1.2.3 secret.acme"),
        ("SGLANG_API_KEY", "true", "12345 triton"),
        ("SGLANG_TOKENIZERS", "4", "secret"),
    ],
)
def test_which_values_may_be_shown(known: Flags, name: str, shown: str, hidden: str) -> None:
    for word in shown.split():
        assert known.may_show(name, word), word
    for word in hidden.split():
        assert not known.may_show(name, word), word


def test_a_tree_without_these_files_or_with_broken_ones_has_no_flags(tmp_path: Path) -> None:
    assert of(Tree(tmp_path)) == Flags()
    (tmp_path / "bench_serving.py").write_text("def (")
    assert of(Tree(tmp_path)) == Flags()
