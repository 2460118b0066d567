"""Tests of `pack`, with a small program of this machine in place of Larder's. Part of `make release-check`.

LARDER_SYSROOT names a folder of `.ci/sysroot` for this machine's architecture.
"""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = Path("/bin/cat").resolve()
PROGRAMS = ["larder", "larderd", "larder-csi", "cachenode", "larder-controller", "larder-scheduler-ext", "larder-devices"]


class Pack(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.bins = self.folder / "bin"
        (self.bins / "static").mkdir(parents=True)
        for name in PROGRAMS:
            shutil.copy(PROGRAM, self.bins / name)
        source = self.folder / "static.c"
        source.write_text("int main(void) { return 0; }\n")
        for name in ["larder-agent", "larder-rdma-limit"]:
            subprocess.run(["cc", "-static", "-o", self.bins / "static" / name, source], check=True)

    def pack(self, out, *arguments, **environment):
        command = [HERE / "pack", "--bin", self.bins, "--sysroot", os.environ["LARDER_SYSROOT"], *arguments, out]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)

    def test_the_same_programs_give_the_same_bytes(self):
        sums = []
        for out, umask in [("one", 0o022), ("two", 0o077)]:
            before = os.umask(umask)
            packed = self.pack(self.folder / out, "--debug")
            os.umask(before)
            self.assertEqual(packed.returncode, 0, packed.stderr)
            sums.append((self.folder / out / "SHA256SUMS").read_text())
        self.assertEqual(sums[0], sums[1])
        listed = {line.split()[1] for line in sums[0].splitlines()}
        self.assertEqual(listed | {"SHA256SUMS"}, {path.name for path in (self.folder / "one").iterdir()})
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=self.folder / "one", check=True)

    def test_an_earlier_release_is_not_mixed_with_another(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "larder_0.1.0_amd64.deb").touch()
        packed = self.pack(out)
        self.assertEqual(packed.returncode, 1)
        self.assertIn("is not empty", packed.stderr)

    def test_a_missing_program_leaves_no_part_of_a_release(self):
        (self.bins / "larder-csi").unlink()
        packed = self.pack(self.folder / "out")
        self.assertEqual(packed.returncode, 1)
        self.assertIn("larder-csi is missing", packed.stderr)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"bin", "static.c"})

    def test_programs_that_need_a_newer_glibc_are_refused(self):
        packed = self.pack(self.folder / "out", "--glibc", "2.2")
        self.assertEqual(packed.returncode, 1)
        self.assertIn("--glibc is 2.2", packed.stderr)

    def test_components_of_a_release_have_the_libraries_of_its_compilers(self):
        packed = self.pack(self.folder / "out", "--glibc", "2.999")
        self.assertEqual(packed.returncode, 0, packed.stderr)
        (bill,) = (self.folder / "out").glob("*.cdx.json")
        names = {component["name"] for component in json.loads(bill.read_text())["components"]}
        self.assertLessEqual({"rust", "zig"}, names)


class Debian(unittest.TestCase):
    @unittest.skipUnless(os.geteuid() == 0, "needs root, which mounts")
    def test_an_upgrade_does_not_wait_for_a_service_that_does_not_start(self):
        with tempfile.TemporaryDirectory() as folder:
            tools = {"systemctl": '[ "$1" = daemon-reload ] || sleep 3600', "timeout": 'shift; exec /usr/bin/timeout 0.1 "$@"'}
            for name, script in tools.items():
                tool = Path(folder) / name
                tool.write_text(f"#!/bin/sh\n{script}\n")
                tool.chmod(0o755)
            # A machine that systemd runs.
            script = 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "$0" configure 0.2.0'
            done = subprocess.run(["unshare", "--mount", "sh", "-c", script, HERE / "debian/postinst"], capture_output=True,
                                  text=True, env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}, timeout=600)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("has not started yet and is tried again", done.stderr)


class Workflows(unittest.TestCase):
    def test_actions_are_named_by_their_digest(self):
        workflows = list((HERE.parent.parent / ".github/workflows").iterdir())
        used = [line.strip() for workflow in workflows for line in workflow.read_text().splitlines() if "uses:" in line]
        self.assertGreaterEqual(len(used), 4)
        for line in used:
            self.assertRegex(line, r"^- uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
