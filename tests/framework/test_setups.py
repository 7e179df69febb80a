"""A patch is gated on a server with anything on that it was not proven with: stock's code runs."""

import pytest
from servers import serve
from throwaway import BEGINNING, Throwaway


def test_gated_when_the_server_publishes(server: Throwaway) -> None:
    server.play("""
import sglang.srt.a as a, sglang.srt.server_args as arguments
use(proven(STEP, "pages"), proven(TEN, "pages", "lora"), HELPER)
ours.activate("all")
assert state() == ("live", "")
publish(page_size=64)
assert state() == ("live", "") and a.Worker().step(1) == 1020
publish(page_size=64, enable_lora=True)
# At once: the reply below asks for no look.
assert engine.report().of("one.step").state == "gated"
assert a.Worker().step(1) == 20
assert state() == ("gated", "LoRA is on (--enable-lora): this patch was not tested with that")
assert state("one.ten") == state("two.helper") == ("live", "")
publish()
assert state()[0] == "gated", "for good: what it has done so far is stock's"
ours.deactivate()
assert a.Worker().step(1) == 2
""")


def test_gated_before_it_acts_if_the_server_has_published(server: Throwaway) -> None:
    server.play("""
import sglang.srt.server_args as arguments
publish(enable_lora=True)
def step(patching):
    raise AssertionError("it was installed")
use(proven(declare("one.step", install=step, targets=(f"{A}:Worker.step",))))
ours.activate("all")
import sglang.srt.a as a
assert state() == ("gated", "LoRA is on (--enable-lora): this patch was not tested with that")
assert a.Worker().step(1) == 2
""")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("enable_lora=True", "LoRA is on (--enable-lora)"),
        ("brand_new=7", "the server has brand_new, which is unknown"),
    ],
)
def test_gated_though_its_modules_are_not_imported_yet(
    server: Throwaway, given: str, reason: str
) -> None:
    server.play(f"""
use(proven(STEP))
ours.activate("all")
import sglang.srt.server_args as arguments
publish(port=1)
assert state()[0] == "pending"
publish({given})
assert engine.report().of("one.step").state == "gated"
import sglang.srt.a as a
assert state() == ("gated", {reason!r} + ": this patch was not tested with that"), state()
assert a.Worker().step(1) == 2
""")


def test_nothing_published_gates_nothing_but_the_platform(server: Throwaway) -> None:
    server.play("""
use(proven(STEP))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args
assert state() == ("live", "") and a.Worker().step(1) == 102
import sglang.srt.utils as utils
utils.is_hip = lambda: True
assert state() == (
    "gated", "this server runs on AMD GPUs (HIP): this patch was not tested with that"
)
assert a.Worker().step(1) == 2
""")


def test_what_is_resolved_later_is_seen_at_the_next_look(server: Throwaway) -> None:
    server.play("""
use(proven(STEP))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
given = arguments.ServerArgs(kv_cache_dtype="auto")
arguments.publish(given)
assert state() == ("live", "")
given.kv_cache_dtype = "fp8_e4m3"
if "sglang.srt.runtime_context" in sys.modules:
    context = sys.modules["sglang.srt.runtime_context"].get_context()
    assert state() == ("live", ""), "what was given does not count where a group has it"
    context.groups["all"].inner.kv_cache_dtype = "fp8_e4m3"
reason = "the KV cache is quantised (--kv-cache-dtype): this patch was not tested with that"
assert state() == ("gated", reason), state()
assert a.Worker().step(1) == 2
""")


def test_only_a_decode_server_keeps_what_it_retracts_in_tensors(server: Throwaway) -> None:
    """Any server of 0.5.23 has the argument resolved to that."""
    server.play("""
use(proven(STEP, "decode-server"))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
kept = {"disaggregation_decode_retraction_backup": "cpu_tensor"}
for mode in (None, "null"):
    publish(disaggregation_mode=mode, **kept)
    assert state() == ("live", "") and a.Worker().step(1) == 102
publish(disaggregation_mode="decode", **kept)
assert state()[0] == "gated" and "kept in tensors" in state()[1], state()
assert a.Worker().step(1) == 2
""")


COMPUTED = {
    "lambda self: True": "data-parallel attention is on",
    "broken": "whether data-parallel attention is on can't be read (RuntimeError: not written)",
}


@pytest.mark.parametrize("server", ["new"], indirect=True)
@pytest.mark.parametrize("how", COMPUTED)
def test_what_the_release_computes_or_cannot_read_counts(server: Throwaway, how: str) -> None:
    server.play(f"""
use(proven(STEP))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.runtime_context as context
publish(enable_dp_attention=False)
assert state() == ("live", "")
def broken(self):
    raise RuntimeError("not written\\nyet")
context.Parallel.attn_dp_enabled = property({how})
publish(enable_dp_attention=False)
reason = "{COMPUTED[how]}: this patch was not tested with that"
assert state() == ("gated", reason), state()
assert a.Worker().step(1) == 2
""")


@pytest.mark.parametrize("server", ["new"], indirect=True)
def test_a_server_that_cannot_be_read_at_all_gates(server: Throwaway) -> None:
    server.play("""
use(proven(STEP), HELPER)
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments, sglang.srt.runtime_context as context
def broken():
    raise RuntimeError("not ready")
context.get_context, kept = broken, context.get_context
kept().set_server_args(arguments.ServerArgs(), {})
word, reason = state()
assert word == "gated", (word, reason)
assert "can't be read (RuntimeError: not ready): this patch was not tested with" in reason, reason
assert a.Worker().step(1) == 2
assert state("two.helper") == ("live", ""), "what asks for no set-up stays"
""")


@pytest.mark.parametrize("server", ["new"], indirect=True)
def test_what_another_thread_is_at_work_on_gates_nothing(server: Throwaway) -> None:
    """It looks while what publishes is being imported, and while arguments are being published."""
    server.play("""
from threading import Thread
seen = []
def half_way():
    looking = Thread(target=lambda: seen.append(state()))
    looking.start()
    looking.join(300)
use(proven(STEP, "pages"))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
publish(page_size=64)
assert seen == [("live", "")] * 2, seen
assert state() == ("live", ""), state()
publish(enable_lora=True)
assert seen == [("live", "")] * 3, seen
assert state() == ("gated", "LoRA is on (--enable-lora): this patch was not tested with that")
""")


def test_a_patch_that_needs_a_gated_one_is_gated_too(server: Throwaway) -> None:
    server.play("""
import sglang.srt.a as a, sglang.srt.b as b, sglang.srt.server_args as arguments
both = dataclasses.replace(BOTH, requires=("one.step",))
use(proven(STEP), proven(both, "lora"))
ours.activate("all")
assert a.Worker().step(1) == 202
publish(enable_lora=True)
assert state()[0] == state("two.both")[0] == "gated", (state(), state("two.both"))
assert "one.step" in state("two.both")[1]
assert (a.Worker().step(1), b.Caller().call(1)) == (2, 2)
ours.deactivate()
ours.activate("all")
assert state("two.both")[0] == "gated" and "one.step" in state("two.both")[1]
""")


STRICTLY = {
    "when the server publishes": """
ours.activate(CHOSEN, strict=True)
import sglang.srt.a
publish(enable_lora=True)
""",
    "before it acts": """
publish(enable_lora=True)
ours.activate(CHOSEN, strict=True)
import sglang.srt.a
""",
    "by its install function": """
use(declare("one.step", install="gates", targets=(f"{A}:Worker.step",)), HELPER)
ours.activate(CHOSEN, strict=True)
import sglang.srt.a
""",
    "in a call": """
def step(patching):
    def make(inner):
        def step(self, x):
            patching.gate("not for this argument")
            return inner(self, x)
        return step
    patching.override(f"{A}:Worker.step", make)
installs.step = step
ours.activate(CHOSEN, strict=True)
import sglang.srt.a as a
assert a.Worker().step(1) == 2
ours.activate()
""",
}


@pytest.mark.parametrize("server", ["new"], indirect=True)
@pytest.mark.parametrize("how", STRICTLY)
def test_under_strict_a_gate_of_what_was_named_is_an_end(server: Throwaway, how: str) -> None:
    script = f"""{BEGINNING}
import sglang.srt.server_args
CHOSEN = os.environ["CHOSEN"]
use(proven(STEP), HELPER)
{STRICTLY[how]}
print("served", state()[0])
"""
    for chosen in ("one.step", "one"):
        done = server.process(script, CHOSEN=chosen)
        assert (done.returncode, done.stdout) == (1, ""), (chosen, done.stderr)
        assert done.stderr.startswith("sglang-perf-patches: one.step is gated: "), done.stderr
        assert done.stderr.count("\n") == 1
    for chosen in ("all", "two"):
        done = server.run(script, CHOSEN=chosen)
        assert done.stdout == f"served {'gated' if chosen == 'all' else 'off'}\n"
        assert "one.step is gated" not in done.stderr


@pytest.mark.parametrize("ends_in", ["main", "record"])
def test_under_strict_no_other_thread_logs_a_gate(throwaway: Throwaway, ends_in: str) -> None:
    """However long the end takes: one line, and no other thread does anything meanwhile."""
    done = serve(throwaway, "new").process(f"""{BEGINNING}
import sglang.srt.server_args
use(proven(STEP))
from sglang_perf_patches.live.registry import Registry
from sglang_perf_patches.telemetry.recorder import _Recorder
look_again, tell, writing = Registry.look_again, Registry._tell, threading.Event()
try_to_write = _Recorder.try_to_write
def is_main():
    return threading.current_thread() is threading.main_thread()
def slow(self):
    time.sleep(4 if self.loss else 0)
    tell(self)
def late(self):
    if is_main():
        time.sleep(1)
    look_again(self)
def busy(self):
    if not is_main():
        writing.set()
        time.sleep(1)
    return try_to_write(self)
Registry._tell = slow
if {ends_in == "record"}:
    Registry.look_again = late
else:
    _Recorder.try_to_write = busy
ours.activate("one.step", strict=True)
import sglang.srt.a
if {ends_in == "main"}:
    assert writing.wait(60)  # the record's thread has looked, and writes next
publish(enable_lora=True)
print("served", state())
""")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("sglang-perf-patches: one.step is gated: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_off_again_what_publishes_is_stocks_own(server: Throwaway) -> None:
    server.play("""
import sglang.srt.a, sglang.srt.server_args as arguments
context = sys.modules.get("sglang.srt.runtime_context")
def held():
    if context:
        return context.RuntimeContext.set_server_args.__code__
    return arguments.set_global_server_args_for_scheduler.__code__
before = held()
use(proven(STEP))
ours.activate("all")
assert held() is not before
ours.deactivate()
assert held() is before
""")


def test_each_argument_of_each_feature_gates(server: Throwaway) -> None:
    server.play("""
import sglang.srt.a as a, sglang.srt.utils as utils
from sglang_perf_patches.model.setups import FEATURES
tested = 0
for feature in FEATURES.all:
    given = [(name, value) for name, values in feature.on.items() for value in values]
    given += [(name, "something") for name in [*feature.off, *feature.changed]]
    given = [(name, value) for name, value in given if name.isidentifier()]
    where = {name: values[0] for name, values in feature.only.items()}
    others = [other.name for other in FEATURES.all if other is not feature]
    # A gate is for good, so the patch is activated anew for each argument that gates it.
    for features, word, rounds in (
        ([*others, feature.name], "live", [given]),
        (others, "gated", [[each] for each in given]),
    ):
        for published in rounds:
            use(proven(STEP, *features))
            publish()
            ours.activate("all")
            assert state() == ("live", ""), (feature.name, state())
            for name, value in published:
                if name.startswith("is_"):
                    setattr(utils, name, lambda: True)
                publish(**where, **{name: value})
                found = state()
                assert found[0] == word, (feature.name, name, value, found)
                if word == "gated":
                    assert found[1].startswith(feature.clause), (feature.name, name, value, found)
                assert a.Worker().step(1) == (2 if word == "gated" else 102)
                if name.startswith("is_"):
                    setattr(utils, name, lambda: False)
                tested += 1
            ours.deactivate()
assert tested > 200, tested
""")
