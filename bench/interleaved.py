"""Steps of several `lignum train` processes, in turn: all are there at once, and all but one are stopped.

So what else the machine does falls on all of them alike, and the ratio of their steps in one turn says more than two runs after
each other, which a virtual machine gives different speeds.
"""
import json
import signal
import subprocess
import sys
import tempfile
import time


class Train:
    """A `lignum train` that runs only while it is asked for a step."""

    def __init__(self, words, folder, warm_up=1):
        self.words = [*words, f"base_output_directory={folder}", f"run_name={time.monotonic_ns()}", "--json"]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        for _ in range(warm_up):
            self._line()
        self._stop()

    def _line(self):
        for line in self.process.stdout:
            if "loss" in json.loads(line):
                return time.monotonic()
        self.errors.seek(0)
        sys.exit(f"{' '.join(self.words)}: ended\n{self.errors.read()[-4000:]}")

    def _stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def step(self):
        """Seconds of a step, from line to line. The step before it ends the one that was stopped in the middle, and brings the
        caches to what a run of its own has."""
        self.process.send_signal(signal.SIGCONT)
        begin = self._line()
        end = self._line()
        self._stop()
        return end - begin

    def end(self):
        self.process.kill()
        self.process.wait()


def status(pid, key):
    """Bytes of a line of /proc/PID/status, VmRSS, say."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


def machine(lignum):
    """What a result says of where it comes from."""
    version = subprocess.run([lignum, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    with open("/proc/cpuinfo") as f:
        cpu = next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    with open("/proc/stat") as f:
        cores = sum(1 for line in f if line.startswith("cpu")) - 1
    return {"version": version, "cpu": cpu, "cores": cores, "date": time.strftime("%Y-%m-%d")}
