"""The shell examples: their commands work on their release, up to the server's own work.

A server needs a model and mostly a GPU, so each is asked for its help. That goes through the
patches, `run`, and sglang's parsing of the arguments that the example gives.
"""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import wrapt

from linux_mlx.environments import (
    copy_checkout,
    install_bench_client,
    install_checkout,
    sglang_environment,
    variables,
)
from linux_mlx.patience import limit_s
from linux_mlx.server import free_port
from sglang_perf_patches import sets
from sglang_perf_patches.model import selection as selections
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.telemetry import recorder

EXAMPLES = Path(__file__).parents[2] / "examples"
SHIMS = Path(__file__).parents[1] / "harness" / "linux_mlx" / "shims"


def example(release: str, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = sglang_environment(release)
    install_checkout(environment)
    path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        env=variables(PATH=path, PYTHONPATH=SHIMS, **more),
        capture_output=True,
        text=True,
        timeout=limit_s(),
    )


@pytest.mark.parametrize(
    ("script", "release", "chosen"),
    [
        ("pd_decode_swa.sh", "0.5.23", "swa.page-size-1"),
        pytest.param(
            *("pinned_release.sh", "0.5.10.post1", "mamba.zero-sync"),
            marks=pytest.mark.whole_matrix,
        ),
        pytest.param(
            *("eagle_mla.sh", "0.5.23", "mla.page-table-bound"), marks=pytest.mark.whole_matrix
        ),
        pytest.param(
            *("mlx_on_a_mac.sh", "0.5.23", "mlx.kv-arena"), marks=pytest.mark.whole_matrix
        ),
    ],
)
def test_a_launcher(script: str, release: str, chosen: str) -> None:
    done = example(release, EXAMPLES / script, "--help")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--model-path" in done.stdout
    assert re.match(r"\d+ ready, 0 refused", done.stdout)
    # A patch that the script names is listed, also if there is no GPU here.
    told = " ".join(done.stdout.split())
    assert re.search(rf" {chosen}: (ready|needs a GPU)|needs a GPU: [^:]*{chosen}", told)


@pytest.mark.whole_matrix
def test_what_a_mac_gives_is_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "found.txt"
    environment = sglang_environment("0.5.23")
    install_bench_client(environment)
    load = "--num-prompts 4 --max-concurrency 2 --random-input-len 24 --random-output-len 8"
    done = example(
        "0.5.23",
        EXAMPLES / "mlx_on_a_mac.sh",
        FILE=str(file),
        VERIFY="mlx.last-row",
        SHAPE="tiny",
        LOAD=f"--turns 1 {load}",
        SERVER="--max-total-tokens 4096 --device cpu",
        PORT=str(free_port()),
        HYBRID_S="600",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith(f"All of this is in {file}: please attach it to an issue.\n")
    text = file.read_text(encoding="utf-8")
    ends = re.findall(r"^it ended with (\d+)$", text, re.M)
    assert ends == ["0", "0", "1"], text  # one turn gives no conclusion
    assert "sglang 0.5.23\n" in text
    assert re.search(r"^mlx\.last-row .*equal", text, re.M), text
    assert "greedy tokens: equal for 16 prompts in 2 boots" in text
    assert re.search(r"^mlx\.kv-arena: live in 1 scheduler process, run in 1$", text, re.M)
    assert str(Path.home()) not in text
    stock, patched = text.split("== a hybrid with SGLANG_PERF_PATCHES=")[1:]
    assert "AssertionError: extra_buffer requires platform support" in stock
    cached = re.findall(r'"cached_tokens": ?(\d+)', patched)
    assert cached[:2] == ["0", "256"], patched
    assert len(cached) == 4


def test_the_gate_lets_a_good_upgrade_through_and_stops_a_bad_one() -> None:
    good = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.23")
    assert good.returncode == 0, good.stderr
    assert "swa.tail-prealloc" in good.stdout
    old = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.8", SGLANG_PERF_PATCHES="mla")
    assert (old.returncode, old.stdout) == (2, "")
    assert "sglang 0.5.8 is not supported" in old.stderr
    absent = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.9", SGLANG_PERF_PATCHES="mlx")
    assert absent.returncode == 0, absent.stderr  # the code that is slow is not there
    unknown = example("0.5.11", EXAMPLES / "upgrade_gate.sh", "0.5.999")
    assert unknown.returncode == 2


def test_the_gate_says_how_it_is_used() -> None:
    gate = EXAMPLES / "upgrade_gate.sh"
    done = subprocess.run([gate], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"usage: {gate} VERSION\n")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.stock_image"])
def test_a_dockerfile_copies_what_is_there_and_ends_in_a_command_of_ours(name: str) -> None:
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("COPY "):
            *copied, _ = line.split()[1:]
            assert all((EXAMPLES.parent / place).exists() for place in copied)
    last = [line for line in lines if line.startswith("RUN ")][-1]
    install, _, command = last.removeprefix("RUN ").partition(" && ")
    assert install == "pip install --no-cache-dir /src/sglang-perf-patches"
    assert example("0.5.23", *command.split()).returncode == 0


_PARSE = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"


def parsed(name: str) -> dict[str, Any]:
    done = example("0.5.23", sglang_environment("0.5.23").python, "-c", _PARSE, EXAMPLES / name)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def must_be_understood(words: list[str], selection: str) -> None:
    assert words[:3] == ["python3", "-m", "sglang.launch_server"]
    check = (
        "import sys; from sglang.srt.server_args import ServerArgs; import argparse;"
        "parser = argparse.ArgumentParser(); ServerArgs.add_cli_args(parser);"
        "parser.parse_args(sys.argv[1:])"
    )
    done = example("0.5.23", sglang_environment("0.5.23").python, "-c", check, *words[3:])
    assert done.returncode == 0, done.stderr[-2000:]
    assert selections.parse(selection, by_id(sets.load())).ids


@pytest.mark.whole_matrix
def test_the_compose_file_starts_what_sglang_has() -> None:
    services = parsed("compose.yaml")["services"]
    assert set(services) == {"prefill", "decode", "router"}
    for name in ("prefill", "decode"):
        words = services[name]["command"].replace("${MODEL:?name a model}", "x").split()
        must_be_understood(words, services[name]["environment"]["SGLANG_PERF_PATCHES"])
        assert words[words.index("--disaggregation-mode") + 1] == name
        port = words[words.index("--port") + 1]
        assert services[name]["healthcheck"]["test"][-1] == f"http://localhost:{port}/health"
        assert services["router"]["depends_on"][name] == {"condition": "service_healthy"}
    router = services["router"]["command"].split()
    for name, flag in (("prefill", "--prefill"), ("decode", "--decode")):
        served = services[name]["command"].split()
        port = served[served.index("--port") + 1]
        assert router[router.index(flag) + 1] == f"http://{name}:{port}"


def test_the_manifest_starts_what_sglang_has() -> None:
    pod = parsed("kubernetes.yaml")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    (setup,) = pod["initContainers"]
    assert (setup["env"], setup["image"]) == (server["env"], server["image"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"] == {"path": "/health", "port": 30000}
    environment = {item["name"]: item["value"] for item in server["env"]}
    must_be_understood([*server["command"], *server["args"]], environment["SGLANG_PERF_PATCHES"])
    assert environment["PYTHONPATH"] in {mount["mountPath"] for mount in server["volumeMounts"]}
    assert f"--target={environment['PYTHONPATH']}" in setup["args"][0].split()
    named = {volume["name"] for volume in pod["volumes"]}
    for container in (server, setup):
        assert {mount["name"] for mount in container["volumeMounts"]} <= named
    command = setup["args"][0].rpartition(" && ")[2].split()
    assert command[0] == f"PYTHONPATH={environment['PYTHONPATH']}"
    assert example("0.5.23", "python", *command[2:]).returncode == 0


@pytest.mark.whole_matrix  # it builds a wheel and an environment
def test_the_init_step_brings_the_plugin_and_shadows_no_library(tmp_path: Path) -> None:
    """Its own script with the folders of this test, in a stand-in for the image that has wrapt."""
    pod = parsed("kubernetes.yaml")["spec"]["template"]["spec"]
    script = pod["initContainers"][0]["args"][0]
    wheels, plugin = tmp_path / "wheel", tmp_path / "plugin"
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels)]
    source = copy_checkout(tmp_path / "source")
    subprocess.run([*build, str(source)], check=True, timeout=limit_s())
    script = script.replace("/wheel/", f"{wheels}/").replace("/plugin", str(plugin))
    image = tmp_path / "image"
    venv.create(image, with_pip=True, symlinks=True)
    tree = sglang_environment("0.5.23").python.parents[1]
    (site,) = image.glob("lib/python*/site-packages")
    (packages,) = tree.glob("lib/python*/site-packages")
    (site / "sglang").symlink_to(packages / "sglang")
    (site / "wrapt").symlink_to(Path(wrapt.__file__).parent)
    path = f"{image / 'bin'}{os.pathsep}{os.environ['PATH']}"
    named = {item["name"]: item["value"] for item in pod["initContainers"][0]["env"]}
    named |= {"PATH": path, "PYTHONPATH": str(plugin)}

    def run() -> subprocess.CompletedProcess[str]:
        command, limit = ["sh", "-c", script], limit_s()
        return subprocess.run(
            command, env=variables(**named), capture_output=True, text=True, timeout=limit
        )

    done = run()
    assert done.returncode == 0, done.stderr[-2000:]
    assert "mamba.gdn-prefill-graph" in done.stdout
    assert {path.name.partition("-")[0] for path in plugin.iterdir()} <= {
        *("sglang_perf_patches", "bin")
    }
    assert list(plugin.glob("*.dist-info/entry_points.txt"))
    named["SGLANG_PERF_PATCHES"] = "mamba.gdn-prefill-grpah"  # no such patch
    assert run().returncode == 2


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.stock_image", "kubernetes.yaml"])
def test_images_are_pinned(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    images = re.findall(
        r"^(?:FROM|ARG SGLANG_IMAGE=|\s+image:(?: &\w+)?)\s*([^\s$*]+)$", text, re.M
    )
    assert images
    for image in images:
        assert re.search(r":v?\d+\.\d+", image), image


def test_the_dashboard_can_be_imported_and_asks_for_metrics_that_there_are() -> None:
    """What Grafana's import asks for: a title, an input for the data source, and uses of it."""
    text = (EXAMPLES / "grafana_dashboard.json").read_text(encoding="utf-8")
    dashboard = json.loads(text)
    assert (dashboard["title"], dashboard["id"]) == ("sglang-perf-patches", None)
    assert dashboard["uid"]
    assert dashboard["schemaVersion"] >= 36
    inputs = {each["name"]: each["pluginId"] for each in dashboard["__inputs"]}
    names = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert inputs == {"DS_PROMETHEUS": "prometheus"}
    assert names["datasource"]["type"] == "datasource"
    assert names["datasource"]["current"]["value"] == "${DS_PROMETHEUS}"
    source = Path(recorder.__file__).read_text(encoding="utf-8")
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    kinds = {each["id"] for each in dashboard["__requires"] if each["type"] == "panel"}
    for panel in panels:
        assert panel["title"]
        assert panel["type"] in kinds
        assert set(panel["gridPos"]) == {"h", "w", "x", "y"}
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            (name,) = re.findall(r"sglang_perf_patches_\w+", target["expr"])
            assert f'"{name}"' in source
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__all"}
    assert used == {*names, *inputs}
