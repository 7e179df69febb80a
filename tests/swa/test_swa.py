"""The swa patches on every group of releases that share the code they touch."""

from collections.abc import Sequence
from typing import Any

import pytest
from groups import EXACT, GROUPS

import tiers
from matrix import applying, before

PAGED = {"window": 4096, "page_size": 64, "swa_tokens": 262_144, "full_tokens": 4_194_304}
UNPAGED = {"window": 128, "page_size": 1, "swa_tokens": 65_536, "full_tokens": 1_048_576}
SMALL = {"window": 128, "page_size": 64, "swa_tokens": 4096, "full_tokens": 1_048_576}
SMALL_HOST = {"swa_tokens": 10_000, "prompt": 1000, "new": 4000, "full_tokens": 80_000}
"""More is retracted than a pool of the host that is as large as the device's holds."""
FEW = {"running": 8}
PRESSED = {"window": 16, "page_size": 1, "swa_tokens": 160}

PROMPTS = (8192, 32_768, 131_072)

EPISODES = {"episodes": 30, "shrink": False}
TRANSFERS = ((1, 300, False), (1, 540, True), (64, 512, False), (64, 1024, True))
"""Page size, sliding-window pool, and whether an idle server of that pool is served."""
RANKS = "swa.page-size-1"
"""Played with several ranks; it brings swa.tail-prealloc."""
LAYOUTS = ("stages", "replicas", "attention")
"""Of `Shape.layout`: those of several ranks."""
NOT_WHEN_IDLE = f"{EXACT},-swa.idle-admission"
BROKEN: dict[str, tuple[tuple[list[str], str, dict[str, Any]], ...]] = {
    "0.5.11": (
        (["clear_before_tail"], "stale_slots_are_unmapped", {}),
        (["clear_before_tail"], "stale_slots_are_unmapped", {"page_size": 1}),
        (["unmap_pages"], "freed_pages_are_unmapped", {}),
        (["clear_before_tail", "unmap_pages"], "play", EPISODES),
        (["unmap_pages"], "play", EPISODES),
    ),
    "0.5.12": (
        (["clear_before_tail"], "stale_slots_are_unmapped", {}),
        (["clear_before_tail", "unmap_pages"], "play", EPISODES),
        ([], "play", EPISODES),
    ),
    "0.5.17": ((["clear_before_tail"], "stale_slots_are_unmapped", {"page_size": 1}),),
    "0.5.18": ((["in_tensors"], "none_fails_for_the_host", SMALL_HOST),),
    "0.5.23": (
        (["can_end"], "idle_is_served", {}),
        (["clear_before_tail"], "stale_slots_are_unmapped", {"page_size": 1}),
        (["record_evicted"], "play", EPISODES),
        (["in_tensors"], "none_fails_for_the_host", {}),
        (["serve_by_window"], "the_rule_stays_with_its_queue", {"page_size": 1}),
    ),
}
"""Which functions of the patches to disable on a release, and the job that notices.

With none of them there is stock alone, which on 0.5.12 lets two requests own a slot
(sgl-project/sglang#25805).
"""


Plan = list[tuple[str, str, dict[str, Any]]]
"""``(key, job, arguments)`` of everything that one process does for a release."""


def plan_of_proof(release: str, patches: Sequence[str], whole: bool) -> Plan:
    """The cases of ``verify`` for these patches; if `whole`, also what is broken on purpose."""
    jobs: Plan = [("prove", "prove", {"patches": patches})]
    for names, job, arguments in BROKEN.get(release, ()) if whole else ():
        key = f"broken: {', '.join(names)}: {job} {arguments}"
        live = EXACT if names else "none"
        given = {"names": names, "selection": live, "job": job, "arguments": arguments}
        jobs.append((key, "broken", given))
    return jobs


def plan_of_leaving(release: str) -> Plan:
    """Patches are taken off in the middle of things; each wait costs a second."""
    host = not before(release, "0.5.18")
    jobs: Plan = [
        (
            f"leaves {page}",
            "the_rule_stays_with_its_queue",
            {"page_size": page, "backup": "default" if host else "cpu_tensor"},
        )
        for page in ((1, 16) if before(release, "0.5.12") else (1,))
    ]
    return [*jobs, ("left: select", "select", {"text": "none"})]


def plan_in_depth(release: str, episodes: int, whole: bool) -> Plan:
    """Every check of a release; if `whole`, every one of the host's pool."""
    jobs: Plan = []

    def add(key: str, job: str, /, **arguments: Any) -> None:
        jobs.append((key, job, arguments))

    old = before(release, "0.5.12")
    for text, name in (("none", "stock"), (EXACT, "exact")):
        add(f"{name}: select", "select", text=text)
        for page in (1, 64) if name == "stock" else ():
            add(f"stock: plenty {page}", "history", window=100, page_size=page)
        for prompt in PROMPTS:
            if old:
                add(f"{name}: paged {prompt}", "admitted", **PAGED, prompt=prompt)
            if release in {"0.5.9", "0.5.12.post1", "0.5.17", "0.5.20", "0.5.23"}:
                add(f"{name}: unpaged {prompt}", "admitted", **UNPAGED, prompt=prompt)
        for page in (1, 64):
            add(f"{name}: short {page}", "admitted", **{**SMALL, "page_size": page}, prompt=100)
        add(f"{name}: greedy", "admitted", **SMALL, **FEW, prompt=1000, max_new_tokens=4096)
    for page in (1, 64):
        add(f"never fits {page}", "refuses_what_never_fits", page_size=page)
        add(f"gates {page}", "gates", page_size=page)
        if before(release, "0.5.18"):  # whose cache refuses to be made without a window
            add(f"no window {page}", "without_a_window_is_stock", page_size=page)
    add("stale 1", "stale_slots_are_unmapped", page_size=1)
    add("stale 16", "stale_slots_are_unmapped", page_size=16)
    if before(release, "0.5.18"):
        add("freed", "freed_pages_are_unmapped")
    if before(release, "0.5.14"):
        add("prefix", "a_prefix_falls_back")
    if old:
        add("copies", "copies_hold_what_is_mapped")
        add("copies whole", "copies_hold_what_is_mapped", page_size=1, chunk=1000)
        add("not when idle: select", "select", text=NOT_WHEN_IDLE)
        add("blocked", "refuses_what_would_block_for_ever")
        add("exact beside idle: select", "select", text=EXACT)
        add("resumed", "resumes_what_fits_in_pages")
    if not before(release, "0.5.18"):
        for page in (1, 64):
            add(f"host backup {page}", "the_host_backs_the_window_up", page_size=page)
    for page in (1, 64):
        add(f"idle {page}", "idle_is_served", page_size=page)
    add("idle speculating", "idle_is_served", page_size=1, over_allocation=3)
    add("idle rank", "an_idle_rank_is_served")
    add("idle, no eviction", "idle_is_served_where_stock_never_evicts")
    for page, tokens, served in TRANSFERS:
        load = {"page_size": page, "swa_tokens": tokens, "served": served}
        add(f"idle, transfers {load}", "idle_is_served_beside_long_transfers", **load)
    add("states idle", "states")
    if not before(release, "0.5.21"):
        for page in (1, 64):
            add(f"by tokens {page}", "by_tokens_too", page_size=page)
            for requests in (1, 8, 300):
                load = {"page_size": page, "requests": requests}
                add(f"hint {load}", "the_hint_is_what_the_patch_does", **load)
        add("left to stock", "left_to_stock")
    add("exact once more: select", "select", text=EXACT)  # forgets what earlier jobs gated
    if not before(release, "0.5.18"):
        add("host full, small pools", "none_fails_for_the_host", **SMALL_HOST)
    if not before(release, "0.5.19"):
        add("host full", "none_fails_for_the_host")
        if whole:
            add("host full, longer", "none_fails_for_the_host", swa_tokens=8192, new=2000)
    add("exact: pressed", "pressed", **PRESSED)
    add("drafts: pressed", "pressed", **PRESSED, over_allocation=3)
    for page in (1, 64):
        add(f"exact: plenty {page}", "history", window=100, page_size=page)
        add(f"bound with drafts {page}", "the_bound_holds_with_drafts", page_size=page)
    for page in (1, 64):
        add(f"bound {page}", "the_bound_holds", page_size=page)
    for page in (1, 4):
        add(f"retracted {page}", "goes_on_after_a_retraction", page_size=page)
    add("play exact", "play", episodes=episodes)
    add("states exact", "states")
    add("ranks: select", "select", text=RANKS)
    layouts = ("attention",) if old else LAYOUTS  # up to 0.5.11 stock serves the others
    add("play ranks", "play", episodes=(episodes + 1) // 2, layouts=layouts)
    add("states ranks", "states")
    add("pipeline: select", "select", text=EXACT)
    add("play pipeline", "play", episodes=1, layouts=("stages",))
    add("states pipeline", "states")
    newer = {"weights": "0.5.18", "attn-dp-size": "0.5.22"}
    spelled = (layout for layout, first in newer.items() if not before(release, first))
    for layout in ("one", *LAYOUTS, *spelled):
        add(f"gates {layout}", "gates_by_layout", layout=layout)
    return jobs + plan_of_leaving(release)


@pytest.fixture(scope="module", params=GROUPS)
def answers(request: pytest.FixtureRequest, run_jobs: Any, shown: Any) -> dict[str, Any]:
    """Everything one release answers; a failed job is its traceback, as text."""
    whole = tiers.is_whole(request.config)
    episodes = request.config.getoption("--swa-episodes") or (30 if whole else 8)
    in_depth = whole or request.param in tiers.in_depth("swa", GROUPS)
    jobs = plan_in_depth(request.param, episodes, whole) if in_depth else []
    jobs += plan_of_proof(request.param, _proved(shown, request.param), whole)
    given = run_jobs(request.param, [(job, arguments) for _, job, arguments in jobs])
    by_key = {key: answer for (key, _, _), answer in zip(jobs, given, strict=True)}
    return {"release": request.param, **by_key}


def _proved(shown: Any, release: str) -> tuple[str, ...]:
    return shown("swa", release, applying("swa", release), GROUPS)


def value(answers: dict[str, Any], key: str) -> Any:
    answer = answers[key]
    assert "error" not in answer, f"{answers['release']}, {key}:\n{answer['error']}"
    return answer["value"]


def test_every_check_passes(answers: dict[str, Any]) -> None:
    failed = [
        f"{key}:\n{answer['error']}"
        for key, answer in answers.items()
        if isinstance(answer, dict) and "error" in answer and key != "stock: short 64"
    ]
    assert not failed, f"{answers['release']}\n" + "\n".join(failed)


@pytest.mark.newest
def test_patches_are_live_and_ran(answers: dict[str, Any]) -> None:
    states = value(answers, "states exact")
    assert states["swa.page-size-1"][1], f"swa.page-size-1 did not run: {states}"
    assert value(answers, "states idle")["swa.idle-admission"][1], "swa.idle-admission did not run"
    tail = states["swa.tail-prealloc"]
    if before(answers["release"], "0.5.18"):
        assert tail[1], f"swa.tail-prealloc did not run: {tail}"
    else:
        assert tail[0] == "built-in"


@pytest.mark.newest
def test_servers_are_gated_but_for_what_was_played(answers: dict[str, Any]) -> None:
    tails = {"swa.tail-prealloc", "swa.page-size-1"}
    old = before(answers["release"], "0.5.12")  # where stock's own code serves pipelines
    gated = {
        "states ranks": set(),
        "states pipeline": {"swa.idle-admission", *(tails if old else ())},
        "states exact": set(),
    }
    for key, expected in gated.items():
        found = {id for id, (state, _) in value(answers, key).items() if state == "gated"}
        assert found - {"swa.prefill-graph"} == expected, key  # no prompt is computed here
    for key in ("states ranks", "states exact"):
        assert value(answers, key)["swa.page-size-1"] == ["live", True]
        if before(answers["release"], "0.5.18"):
            assert value(answers, key)["swa.tail-prealloc"] == ["live", True]


@pytest.mark.newest
def test_nothing_changes_where_memory_does_not_bind(answers: dict[str, Any]) -> None:
    for page in (1, 64):
        stock = value(answers, f"stock: plenty {page}")
        assert len(stock["order"]) == 9
        assert value(answers, f"exact: plenty {page}") == stock


@pytest.mark.newest
def test_prompts_in_the_window_are_admitted_as_in_stock_or_more(answers: dict[str, Any]) -> None:
    for page in (1, 64):
        exact = value(answers, f"exact: short {page}")["admitted"]
        if page == 64 and answers["release"] in {"0.5.14", "0.5.15.post1", "0.5.16", "0.5.17"}:
            # Priced in tokens and allocated in pages, stock ends the scheduler here.
            assert "KV cache is full" in answers["stock: short 64"]["error"]
            assert exact == 31
        else:
            # What is reserved for decoding no longer comes out of both pools alike.
            assert exact >= value(answers, f"stock: short {page}")["admitted"] > 0


@pytest.mark.newest
def test_admission_at_page_64(answers: dict[str, Any]) -> None:
    if not before(answers["release"], "0.5.12"):
        return
    stock = [value(answers, f"stock: paged {prompt}") for prompt in PROMPTS]
    exact = [value(answers, f"exact: paged {prompt}") for prompt in PROMPTS]
    assert [answer["admitted"] for answer in stock] == [30, 7, 1]
    assert [answer["admitted"] for answer in exact] == [63, 63, 31]
    assert [answer["held"] for answer in stock] == [[prompt] for prompt in PROMPTS]
    assert [answer["held"] for answer in exact] == [[4096]] * 3


@pytest.mark.newest
def test_admission_at_page_1(answers: dict[str, Any]) -> None:
    if f"stock: unpaged {PROMPTS[0]}" not in answers:
        return
    stock = [value(answers, f"stock: unpaged {prompt}") for prompt in PROMPTS]
    exact = [value(answers, f"exact: unpaged {prompt}") for prompt in PROMPTS]
    assert [answer["admitted"] for answer in stock] == [7, 1, 0]
    assert stock[2]["refused"] == 64
    assert [answer["admitted"] for answer in exact] == [64, 31, 7]
    assert [answer["refused"] for answer in exact] == [0, 0, 0]
    assert [answer["held"] for answer in exact] == [[128]] * 3


@pytest.mark.newest
def test_large_max_new_tokens_does_not_starve(answers: dict[str, Any]) -> None:
    greedy = value(answers, "stock: greedy")
    assert greedy["admitted"] == 0
    assert greedy["refused"] == 0, "stock waits for ever, without an error"
    exact = value(answers, "exact: greedy")
    assert (exact["admitted"], exact["refused"]) == (1, 0), "an idle server admits one"


def test_what_is_compared_with_stock_is_equal(answers: dict[str, Any], shown: Any) -> None:
    """The cases of ``verify``, with inputs from hypothesis."""
    lines = {line["case"]: line for line in value(answers, "prove")}
    assert tuple(lines) == _proved(shown, answers["release"])
    for patch, line in lines.items():
        assert line.get("compared", 0) > 0, f"{answers['release']}, {patch}: {line}"


@pytest.mark.whole_matrix
def test_a_broken_patch_is_noticed(answers: dict[str, Any]) -> None:
    assert set(BROKEN) <= set(GROUPS), "each is to be played"
    for key in answers:
        if key.startswith("broken: "):
            assert value(answers, key), f"{answers['release']}, {key}: nobody noticed"
