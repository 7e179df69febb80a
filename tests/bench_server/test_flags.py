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
    ("kind", "names"),
    [
        ("number", "--tp-size --tensor-parallel-size --max-total-tokens --mem-fraction-static"),
        ("number", "--cuda-graph-bs --graph-sizes --num-prompts --tp --graph-s"),
        ("name", "--attention-backend --dtype --kind"),
        ("switch", "--trust-remote-code --skip-tokenizer-init --skip-tok"),
        ("text", "--host --api-key --lora-paths --extra-headers --json-model-override-args"),
        ("text", "--extra"),  # two, both of them texts
        ("text", "--sp"),  # several, of several kinds
        ("text", "--served-model-name"),  # a number in one file, a text in the other
        (None, "--not-a-flag --acme --tokens --ap1 --t --s -t api-key"),
    ],
)
def test_what_a_flag_takes(known: Flags, kind: str | None, names: str) -> None:
    assert {name: known.kind(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(
    ("name", "shown", "hidden"),
    [
        ("--tp-size", "8 -1 0.5 1,2,4 inf", "1e400 secret 12345678901 8x \u0661 auto"),
        ("--attention-backend", "triton fa3 half", "Triton secret 8"),
        ("--speculative-algorithm", "EAGLE eagle3 NEXTN ngram", "secret triton"),
        ("--disaggregation-mode", "decode", "secret"),
        ("--api-key", "", "12345 triton half"),
        ("--host", "", "auto 1"),
        ("--trust-remote-code", "", "triton 1"),
        ("--acme", "", "triton 1"),
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
