"""Known faults: what the data may say, what counts as having one, and where it is said."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest

from sglang_perf_patches import faults, sets
from sglang_perf_patches.cli.ask import resolver
from sglang_perf_patches.cli.verbs import asking, doctoring
from sglang_perf_patches.faults import known
from sglang_perf_patches.faults.fault import Fault
from sglang_perf_patches.live import published
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.feature import MISSING
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.telemetry import ready

PATCHES = by_id(sets.load())
WORDS = {each.name for each in FEATURES.all} | {each.name for each in FEATURES.uses}


class Served:
    """A server's arguments; one whose value is an error can't be read."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = {"device": "cuda", **arguments}

    def read(self, name: str) -> Any:
        value = self.arguments.get(name, MISSING)
        if isinstance(value, Exception):
            raise value
        return value

    def unlike_default(self) -> Mapping[str, Any]:
        return {}


def fault(**fields: Any) -> Fault:
    return Fault(**{"name": "one", "symptom": "it dies", "releases": "0.5.9 … 0.5.11", **fields})


HYBRID = {"model.has_states": True, "disable_radix_cache": False}


@pytest.mark.parametrize("one", known.FAULTS, ids=lambda one: one.name)
def test_the_data_names_what_there_is(one: Fault) -> None:
    words = re.findall(r"[a-z][a-z0-9-]*", one.on)
    assert set(words) <= WORDS
    assert one.on
    assert releases.from_spans(one.releases)
    assert one.patch in {"", *PATCHES}
    assert one.threads or one.patch or one.help
    for value in (value for values in one.reads.values() for value in values):
        assert value is True or value is False or value == value.lower()
    assert not one.symptom.endswith(".")


def test_each_patch_that_prevents_a_fault_is_one_of_the_data() -> None:
    """By rule ``b`` a patch is on because it prevents a fault of stock."""
    preventing = {patch.id for patch in PATCHES.values() if patch.worth and patch.worth.rule == "b"}
    assert preventing <= {one.patch for one in known.FAULTS}


def test_names_differ() -> None:
    names = [one.name for one in known.FAULTS]
    assert len(names) == len({*names}) > 20


def test_a_condition_holds_fails_or_cant_be_read() -> None:
    both = fault(on="states prefix-cache")
    assert both.is_on(Served(**HYBRID)) is True
    assert both.is_on(Served(**{**HYBRID, "disable_radix_cache": True})) is False
    assert both.is_on(Served(**{**HYBRID, "model.has_states": ValueError("no")})) is None
    assert both.is_on(Served(**{**HYBRID, "model.has_states": MISSING})) is None
    unread = {"disable_radix_cache": True, "model.has_states": ValueError("no")}
    assert both.is_on(Served(**unread)) is False

    either = fault(on="eagle|ngram")
    assert either.is_on(Served(speculative_algorithm="NGRAM")) is True
    assert either.is_on(Served(speculative_algorithm="DFLASH")) is False
    without = fault(on="-eagle")
    assert without.is_on(Served(speculative_algorithm=None)) is True
    assert without.is_on(Served(speculative_algorithm="EAGLE")) is False
    assert without.is_on(Served(speculative_algorithm=ValueError("no"))) is None

    of_value = fault(reads={"attention_backend": ("fa3",)})
    assert of_value.is_on(Served(attention_backend="FA3")) is True
    assert of_value.is_on(Served(attention_backend="triton")) is False
    assert of_value.is_on(Served()) is None
    assert fault(unlike={"limit": (None,)}).is_on(Served(limit=4)) is True
    assert fault(unlike={"limit": (None,)}).is_on(Served(limit=None)) is False
    assert fault(is_sure=False).is_on(Served()) is None


def test_a_live_patch_or_another_release_ends_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    real = {"window-tail-mapping": True}
    assert [each.name for each, _ in faults.found("0.5.12", real)] == [*real]
    assert not faults.found("0.5.12", real, {"swa.tail-prealloc"})
    one = fault(on="states", patch="mamba.slot-exhaustion", help="drop it")
    monkeypatch.setattr(known, "FAULTS", (one,))
    held = faults.conditions(Served(**HYBRID))
    assert held == {"one": True}
    ((found, is_sure),) = faults.found("0.5.10.post1", held)
    assert found.text(is_sure=is_sure) == (
        "it dies. What helps: upgrade to 0.5.12, or drop it; "
        "our mamba.slot-exhaustion prevents it where it is live"
    )
    assert faults.found("0.5.10.post1", held, {"mamba.slot-exhaustion"}) == []
    assert faults.found("0.5.12", held) == []
    assert faults.found("0.5.10.dev3", held) == []
    assert faults.conditions(Served(**{"model.has_states": False})) == {}
    ((perhaps, is_sure),) = faults.found("0.5.9", faults.conditions(Served()))
    assert perhaps.text(is_sure=is_sure).startswith("perhaps it dies. What helps: ")
    assert perhaps.data(is_sure=is_sure)["is_sure"] is False


def test_a_message_that_a_symptom_quotes_finds_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    one = fault(symptom="it dies with `a rather long message` at boot, on `short`")
    monkeypatch.setattr(known, "FAULTS", (one,))
    message = "ValueError: a rather long message!"
    assert resolver.fault_of("0.5.9", message, {one.name}) is one
    assert resolver.fault_of("0.5.9", message, {"another"}) is None
    assert resolver.fault_of("0.5.9", "ValueError: short", {one.name}) is None
    assert resolver.fault_of("0.5.12", message, {one.name}) is None


@pytest.mark.parametrize(
    ("arguments", "live", "warned"),
    [
        (HYBRID, [], ["known fault of sglang 0.5.9: it dies"]),
        (HYBRID, ["mamba.slot-exhaustion"], []),
        ({"model.has_states": False}, [], []),
        ({"device": MISSING}, [], []),
    ],
)
def test_a_server_that_is_ready_warns_of_its_faults(
    arguments: dict[str, Any],
    live: list[str],
    warned: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(known, "FAULTS", (fault(on="states", patch="mamba.slot-exhaustion"),))
    monkeypatch.setattr(published, "published", lambda: Served(**arguments))
    monkeypatch.setattr(ready, "_is_ready", lambda _: True)
    states = [{"id": name, "state": "live", "reason": ""} for name in live]
    process = {"pid": 1, "role": "launcher", "sglang": "0.5.9", "patches": states}
    with caplog.at_level(logging.WARNING, "sglang_perf_patches"):
        startup_log = ready.StartupLog()
        startup_log.check([process])
        startup_log.check([process])
    found = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2].partition(". What helps: ")[0] for line in found] == warned


def test_an_upgrade_says_what_it_fixes_and_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    old = fault()
    new = fault(name="two", symptom="it hangs", releases="0.5.12 … 0.5.23")
    monkeypatch.setattr(known, "FAULTS", (old, new))
    said = doctoring.faults_of_upgrade("0.5.11", "0.5.12")
    fixed = (
        "that 0.5.12 fixes, if your server has them:\n  - it dies. What helps: upgrade to 0.5.12"
    )
    assert fixed in said
    assert "Known faults that 0.5.12 brings:\n  - it hangs" in said
    assert "sglang 0.5.12 has 1 known fault" in said
    assert "brings" not in doctoring.faults_of_upgrade(None, "0.5.12")
    assert doctoring.faults_of_upgrade("0.5.12", "0.5.12") == doctoring.faults_in_short("0.5.12")
    assert doctoring.faults_in_short("0.5.12.dev1") == ""


@pytest.mark.parametrize(
    ("state", "would", "remedy"),
    [
        ("gated", "", "; our mamba.slot-exhaustion prevents it without what turns it off"),
        ("live", "", "; our mamba.slot-exhaustion prevents it once it is loaded"),
        ("off", "live", "; our mamba.slot-exhaustion prevents it once it is on"),
        ("off", "not needed", ""),
        ("not needed", "", ""),
        ("absent", "", ""),
    ],
)
def test_what_helps_is_what_can_help_in_this_server(state: str, would: str, remedy: str) -> None:
    one = fault(patch="mamba.slot-exhaustion", help="`--a` from 0.5.12 on, or drop `--b`")
    states = {"mamba.slot-exhaustion": asking.Outlook("mamba.slot-exhaustion", state, "", would)}
    listed = asking.remaining_faults("0.5.11", [(one, True)], states)
    words = " ".join(listed.split())
    title = "Known faults of sglang 0.5.11 that remain in this server: -"
    assert words == f"{title} it dies. What helps: upgrade to 0.5.12, or drop `--b`{remedy}"
    assert asking.remaining_faults("0.5.11", [], states) == ""
    assert "or `--a`, or drop" in one.text("0.5.13")
    assert "`--a` from 0.5.12 on" in one.text()


@pytest.mark.parametrize(
    ("could", "kept", "end"),
    [
        (0, 0, "none can occur in this set-up."),
        (1, 0, "1 can occur in this set-up; a patch prevents it."),
        (2, 0, "2 can occur in this set-up; patches prevent all of them."),
        (2, 1, "2 can occur in this set-up; patches prevent 1 of them."),
        (2, 2, "2 can occur in this set-up."),
    ],
)
def test_an_answer_counts_the_faults_that_patches_prevent(could: int, kept: int, end: str) -> None:
    count = len(faults.of_release("0.5.23"))
    said = asking.counted_faults("0.5.23", could, kept)
    assert said == f"Of the {count} known faults of sglang 0.5.23, {end}"
    assert asking.counted_faults("1.0", could, kept) == "We know no fault of sglang 1.0."
