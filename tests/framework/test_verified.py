"""The GPU is a feature of a server, which gates; a record of ``verify`` lifts that gate.

The driver's library and torch are stand-ins, which name a GPU; the checks run on the CPU. So this
shows what a record is bound to, not that any kernel was compared on that GPU.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from servers import serve
from test_verify import CASES, sets_with
from throwaway import REPOSITORY, Throwaway

from fake_driver import DRIVER
from sglang_perf_patches import sets, verified
from sglang_perf_patches.model.feature import UNPROVEN, cause
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.verify import cases

VERSIONS = ("torch", "triton", "flashinfer-python", "sglang-kernel", "sgl-kernel")

MACHINE = """
import ast
Driver.gpus, Driver.version = ast.literal_eval(os.environ.get("GPUS", "[(8, 9)]")), DRIVER
Driver.names |= ast.literal_eval(os.environ.get("NAMES", "{}"))

class Using(Cuda):
    '''torch.cuda of a process that has run a kernel, on the machine's last GPU.'''

    def is_initialized(self):
        return "throwaway_cases" in sys.modules

    def get_device_capability(self):
        return Driver.gpus[-1]

    def get_device_name(self):
        return Driver.names[Driver.gpus[-1]].decode()

sys.modules["torch"].cuda = Using()
""".replace("DRIVER", 'os.environ.get("DRIVER", "580.1").encode()')

OURS = """
import dataclasses
gated = [dataclasses.replace(each, proven_with={"pages": "a check"}) for each in (t.STEP, t.TEN)]
t.use(*gated, t.HELPER, t.POLICY, gone)
"""

CHECKS = """
def step_on_the_gpu(inputs):
    from throwaway_patches import publish
    publish(device="cuda")
    return step(inputs)

def needless(inputs):
    from sglang_perf_patches.verify import Needless
    raise Needless("no server on this GPU runs that")

def nothing(inputs):
    return 0
"""

ASKS = """
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
publish(device="cuda", enable_lora="LORA" in os.environ)
print(*state("one.step"), sep="|")
print(*state("one.ten"), sep="|")
assert a.Worker().step(1) == (102 if state()[0] == "live" else 2)
"""

UNTESTED = "gated|the GPU is not a Hopper (H100, H200): this patch was not tested with that"


class Operator:
    """A person with an untested GPU, who calls ``verify`` and starts servers."""

    def __init__(self, package: Throwaway) -> None:
        self.package = package
        self.records = package.site.parent / "cache" / "sglang-perf-patches" / "verified"
        package.put("throwaway_cases.py", CASES + CHECKS)
        self.play()
        for name in VERSIONS:
            self.install(name, "1.0")

    def play(self, *checks: str, part: str = "") -> None:
        """Give one.step these checks, and a second file of one check."""
        text = sets_with(["lacks"], checks or ["step_on_the_gpu"], [part] if part else [])
        self.package.put("sitecustomize.py", DRIVER + MACHINE + text + OURS)

    def install(self, name: str, version: str) -> None:
        about = f"{name.replace('-', '_')}.dist-info/METADATA"
        self.package.put(about, f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def verify(self, *names: str, code: int = 0, **machine: str) -> str:
        done = self.package.command("verify", *(names or ("one.step",)), **machine)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def server(self, **machine: str) -> tuple[str, str]:
        """The state of one.step and of one.ten in a server on the GPU, each with its reason."""
        done = self.package.play(ASKS, **machine)
        step, ten = done.stdout.splitlines()
        return step, ten

    def is_lifted(self, **machine: str) -> bool:
        """Whether one.step is live in a server; if not, it must be gated by the GPU."""
        step, ten = self.server(**machine)
        assert step in {"live|", UNTESTED}
        assert ten == UNTESTED
        return step == "live|"

    def record(self) -> Path:
        (found,) = self.records.iterdir()
        return found


@pytest.fixture
def operator(throwaway: Throwaway) -> Operator:
    return Operator(serve(throwaway, "old"))


def test_a_record_lifts_the_gate_of_the_gpu_and_no_other(operator: Operator) -> None:
    assert operator.server() == (UNTESTED, UNTESTED)
    assert str(operator.records) in operator.verify().replace("\n", "")
    assert operator.is_lifted()
    step, _ = operator.server(LORA="1")
    assert step == "gated|LoRA is on (--enable-lora): this patch was not tested with that"
    assert operator.record().stat().st_mode & 0o777 == 0o600


def test_a_record_is_of_one_environment(operator: Operator, tmp_path: Path) -> None:
    operator.verify()
    assert not operator.is_lifted(NAMES="{(8, 9): b'NVIDIA L40S'}"), "another GPU"
    assert not operator.is_lifted(GPUS="[(8, 6)]", NAMES="{(8, 6): b'NVIDIA L40'}"), "capability"
    assert not operator.is_lifted(DRIVER="590.2"), "another driver"
    assert not operator.is_lifted(DRIVER=""), "a driver that does not tell its version"
    assert not operator.is_lifted(GPUS="[(8, 9), (9, 0)]"), "also a GPU without a record"
    for name in VERSIONS:
        operator.install(name, "1.1")
        assert not operator.is_lifted(), f"another {name}"
        operator.install(name, "1.0")
    assert operator.is_lifted(), "all as it was"
    theirs = operator.package.put("sglang/srt/a.py", _changed(operator, "x + 1", "1 + x"))
    assert not operator.is_lifted(), "another source, which the patch knows too"
    theirs.write_text(_changed(operator, "1 + x", "x + 1"))
    assert operator.is_lifted()
    ours = tmp_path / "copy"
    shutil.copytree(REPOSITORY / "src", ours, ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(operator.package.site), str(ours)])
    assert operator.is_lifted(PYTHONPATH=path), "our code, elsewhere"
    body = ours / "sglang_perf_patches/sets/mamba/gdn_prefill_graph/body.py"
    body.write_text(body.read_text("utf-8") + "\n", "utf-8")
    assert not operator.is_lifted(PYTHONPATH=path), "other code of ours"


def _changed(operator: Operator, old: str, new: str) -> str:
    text = (operator.package.site / "sglang/srt/a.py").read_text("utf-8")
    assert old in text
    return text.replace(old, new)


def test_a_record_that_was_not_kept_so_changes_nothing(operator: Operator) -> None:
    operator.verify()
    record = operator.record()
    whole = record.read_text()

    def is_lifted_by(text: str) -> bool:
        record.write_text(text)
        return operator.is_lifted()

    assert not is_lifted_by(whole[:-1]), "truncated"
    assert not is_lifted_by(""), "empty"
    assert not is_lifted_by("[" * 9000), "nested too deep to read"
    assert not is_lifted_by(json.dumps(json.loads(whole) | {"patch": "one.ten"})), "another patch's"
    assert not is_lifted_by(json.dumps(json.loads(whole) | {"driver": "590.2"})), "another place"
    for path, mode in ((record, 0o640), (operator.records, 0o750), (operator.records, 0o777)):
        record.write_text(whole)
        before = path.stat().st_mode
        path.chmod(mode)
        assert not operator.is_lifted(), f"{path.name} has mode {mode:o}"
        path.chmod(before)
    elsewhere = record.rename(operator.package.site / "record")
    record.symlink_to(elsewhere)
    assert not operator.is_lifted(), "a link"
    record.unlink()
    assert not operator.is_lifted(), "none"
    elsewhere.rename(record)
    assert operator.is_lifted(), "all as it was"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file away")
def test_another_users_record_changes_nothing(operator: Operator) -> None:
    operator.verify()
    for path in (operator.record(), operator.records):
        os.chown(path, 12345, -1)
        assert not operator.is_lifted(), path
        os.chown(path, 0, -1)
    assert operator.is_lifted()


@pytest.mark.parametrize(
    ("checks", "part", "code"),
    [
        (("step_on_the_gpu", "really_differs"), "", 1),
        (("step_on_the_gpu", "raises"), "", 1),
        (("step_on_the_gpu", "lacks"), "", 0),
        (("step_on_the_gpu",), "dies", 1),
        (("step_on_the_gpu",), "lacks", 0),
        (("needless",), "", 1),
        (("nothing",), "", 0),
    ],
)
def test_only_the_whole_comparison_is_a_proof(
    operator: Operator, checks: tuple[str, ...], part: str, code: int
) -> None:
    operator.play(*checks, part=part)
    operator.verify(code=code)
    assert not operator.records.exists()
    assert not operator.is_lifted()


def test_what_no_server_on_this_gpu_runs_need_not_be_compared(operator: Operator) -> None:
    operator.play("step_on_the_gpu", "needless", part="needless")
    operator.verify()
    assert operator.is_lifted()


def test_kernels_must_have_run_on_the_gpu(operator: Operator) -> None:
    said = operator.verify(TRITON_INTERPRET="1")
    assert "no record for servers: the driver does not name the GPU that was used" in said
    assert not operator.is_lifted()


def test_several_kinds_of_gpus_need_a_record_each(operator: Operator) -> None:
    both = "[(8, 9), (9, 0)]"
    operator.verify(GPUS=both)
    assert not operator.is_lifted(GPUS=both)
    operator.verify(GPUS="[(9, 0), (8, 9)]")  # now the other one is in use
    assert len(list(operator.records.iterdir())) == 2
    assert operator.is_lifted(GPUS=both)


def test_a_record_that_cant_be_kept_is_told(operator: Operator) -> None:
    operator.records.mkdir(parents=True, mode=0o700)
    operator.records.chmod(0o777)
    said = " ".join(operator.verify().split())
    assert "one.step: no record for servers" in said
    assert "is not a private folder of this user" in said


def test_a_reason_names_the_command_if_it_makes_a_record() -> None:
    for patch in by_id(sets.load()).values():
        devices = {case.device for case in cases(patch.id)}
        command = f"; to test it on your GPU: sglang-perf-patches verify {patch.id}"
        assert verified.hint(patch.id) == (command if devices == {"cuda"} else ""), patch.id
    why = f"the GPU is new{UNPROVEN}{verified.hint('mamba.gdn-prefill-graph')}"
    assert cause(why).endswith("sglang-perf-patches verify mamba.gdn-prefill-graph")


@pytest.fixture
def with_driver(throwaway: Throwaway) -> Throwaway:
    throwaway.put("driver.py", DRIVER)
    return serve(throwaway, "old")


@pytest.mark.parametrize(
    ("gpus", "device", "is_live"),
    [
        ([(8, 9)], "cuda", False),
        ([(9, 0), (8, 9)], "cuda", False),
        ([(9, 0), (9, 0)], "cuda", True),
        ([], "cuda", True),  # no driver
        ([(8, 9)], "mps", True),
    ],
)
def test_a_gpu_that_no_check_ran_on_gates(
    with_driver: Throwaway, gpus: list[tuple[int, int]], device: str, is_live: bool
) -> None:
    with_driver.play(f"""
from driver import *
Driver.gpus = {gpus}
use(proven(STEP), proven(TEN, "other-gpu"), HELPER)
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
assert state() == ("live", "")
publish(device={device!r})
assert "|".join(state()) == {"live|" if is_live else UNTESTED!r}, state()
assert state("one.ten") == ("live", "")
assert a.Worker().step(1) == {1020 if is_live else 20}
assert cuda.started == 0, "torch is asked only where CUDA runs already"
""")


def test_where_cuda_runs_torch_tells_which_gpu_it_is(with_driver: Throwaway) -> None:
    with_driver.play("""
from driver import *
from sglang_perf_patches import gpu
assert gpu.capability() == "9.0" and cuda.started == 0
cuda.is_started = True
assert gpu.capability() == "8.9" and cuda.started == 1
""")


def test_the_driver_is_asked_once_and_let_go_before_anybody_forks(with_driver: Throwaway) -> None:
    with_driver.play("""
from driver import *
from sglang_perf_patches import gpu
assert gpu.capability() == "9.0"
assert Driver.calls[0] == "nvmlInit_v2" and Driver.calls[-1] == "nvmlShutdown"
before = list(Driver.calls)
child = os.fork()
if not child:
    os._exit(0 if gpu.capability() == "9.0" and Driver.calls == before else 1)
assert os.waitpid(child, 0)[1] == 0
assert gpu.capability() == "9.0" and Driver.calls == before
""")
