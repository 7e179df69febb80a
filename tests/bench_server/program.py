"""A server program for tests: it answers as sglang's HTTP server does, and fails on demand."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--pids")
parser.add_argument("--behaviour", default="")
parser.add_argument("--admin-api-key")
parser.add_argument("--told-ms", type=int)
given, _ = parser.parse_known_args()
behaviours = given.behaviour.split(",")
is_patched = os.environ["SGLANG_PERF_PATCHES"] != "none"


def stubborn() -> None:
    """Start a process in a session of its own, orphaned and deaf to SIGTERM."""
    script = (
        "import os, signal, sys, time\n"
        "os.setsid()\n"
        "if os.fork(): sys.exit()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')\n"
        "time.sleep(600)\n"
    )
    subprocess.run([sys.executable, "-S", "-c", script, given.pids], check=True)


class Handler(BaseHTTPRequestHandler):
    """Replies in JSON."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply({})
        elif self.path == "/model_info":
            path = "https://bob:Zq7@hub/m" if "url-model" in behaviours else "tiny"
            self.reply({"model_path": path, "tokenizer_path": "tiny", "is_generation": True})
        elif self.path == "/server_info":
            self.reply({"version": "1.0", "max_total_num_tokens": 4096})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """Tokens that depend on the prompt alone, unless told otherwise."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        worker.step(1)
        in_flight.append(asked)
        if "slow-tokens" in behaviours or ("slow-together" in behaviours and len(in_flight) > 1):
            time.sleep(600)
        if "crash-load" in behaviours and asked.get("load"):
            os._exit(3)
        first = sum(asked["input_ids"]) + (is_patched and "other-tokens" in behaviours)
        if "unsteady" in behaviours:
            first += os.getpid()
        # Told, not taken, so that no test is a timed one.
        took = {"ms": given.told_ms or int(os.environ.get("TOLD_MS", 10 if is_patched else 20))}
        in_flight.remove(asked)
        self.reply({"output_ids": [first, first + 1], **took})

    def reply(self, data: object) -> None:
        text = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


in_flight = []
with open(given.pids, "a+", encoding="utf-8") as file:
    file.write(f"{os.getpid()}\n")
    file.seek(0)
    boots = len(file.readlines())
import sglang.srt.a  # noqa: E402 - where a patch goes live

worker = sglang.srt.a.Worker()
if "crash-boot" in behaviours or ("crash-patched" in behaviours and is_patched):
    sys.exit("RuntimeError: no such model")
if "tell-environment" in behaviours and boots % 4 == 0:
    sys.exit(f"RuntimeError: bad token {os.environ['ONLY_HERE']}")
if "deaf" in behaviours:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "family" in behaviours:
    stubborn()
if "hang-boot" in behaviours:
    print("loading weights", flush=True)
    time.sleep(600)
server = ThreadingHTTPServer(("127.0.0.1", given.port), Handler)
server.serve_forever()
