"""Tests of `build` and `elf.py`: `python3 -m unittest discover -s deploy/images` (part of `make release-check`).

A program of this machine with another machine's number in its header stands for one of that architecture.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
from elf import Elf, ElfError, libraries, within  # noqa: E402

BUILD = Path(__file__).resolve().parent / "build"
OWN, FOREIGN = ("amd64", "arm64") if platform.machine() == "x86_64" else ("arm64", "amd64")
NUMBER = {"amd64": 62, "arm64": 183}
TRIPLE = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
# Dynamically linked, and on every machine.
PROGRAM = Path("/bin/ls").resolve()


def foreign(source, target):
    """A copy of an ELF file that says that it is for the other architecture."""
    target.parent.mkdir(parents=True, exist_ok=True)
    data = bytearray(source.read_bytes())
    data[18:20] = NUMBER[FOREIGN].to_bytes(2, "little")
    target.write_bytes(data)


class Image(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.own, self.other = self.folder / "own", self.folder / "other"
        self.own.mkdir()
        shutil.copy(PROGRAM, self.own / "larderd")
        foreign(PROGRAM, self.other / "larderd")
        # binutils for the other architecture are not needed for this.
        tools = self.folder / "tools"
        tools.mkdir()
        objcopy = tools / f"{TRIPLE[FOREIGN]}-objcopy"
        objcopy.write_text('#!/bin/sh\nshift $(($# - 2))\nexec cp "$1" "$2"\n')
        objcopy.chmod(0o755)
        self.environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}

    def sysroot(self):
        """A sysroot of the other architecture, whose loader is an absolute link as Debian's is."""
        root = self.folder / "sysroot"
        _, files = libraries(PROGRAM, [Path("/")])
        for path, file in files.items():
            foreign(file, root / path.lstrip("/").replace(TRIPLE[OWN], TRIPLE[FOREIGN]))
        loader = root / Elf(PROGRAM).interpreter.lstrip("/")
        moved = root / "moved" / loader.name
        moved.parent.mkdir()
        loader.rename(moved)
        loader.symlink_to(f"/moved/{loader.name}")
        authorities = root / "etc/ssl/certs/ca-certificates.crt"
        authorities.parent.mkdir(parents=True)
        authorities.write_text("those of the sysroot\n")
        return root

    def build(self, *arguments):
        return subprocess.run([BUILD, "--allow-missing", *arguments], capture_output=True, text=True,
                              env=self.environment)

    def blobs(self, archive):
        """The index of an archive, and its blobs by digest."""
        with tarfile.open(archive) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}
        blobs = {f"sha256:{Path(name).name}": data for name, data in files.items() if name.startswith("blobs/")}
        return json.loads(files["index.json"]), blobs

    def test_a_foreign_program_is_not_packed_without_its_libraries(self):
        made = self.build("--bin", self.other, self.folder / "out.tar")
        self.assertEqual(made.returncode, 1, made)
        self.assertIn(f"for {FOREIGN}, which is missing in /", made.stderr)
        self.assertFalse((self.folder / "out.tar").exists())

    def test_a_library_of_another_machine_is_not_taken(self):
        sysroot = self.sysroot()
        _, files = libraries(PROGRAM, [Path("/")])
        path, file = next((path, file) for path, file in files.items() if path != Elf(PROGRAM).interpreter)
        shutil.copy(file, sysroot / path.lstrip("/").replace(TRIPLE[OWN], TRIPLE[FOREIGN]))
        made = self.build("--bin", self.other, "--sysroot", sysroot, self.folder / "out.tar")
        self.assertEqual(made.returncode, 1, made)
        self.assertIn(f"needs {Path(path).name} for {FOREIGN}", made.stderr)

    def test_one_image_has_both_architectures_with_a_loader_and_every_library(self):
        sysroots = ["--sysroot", self.sysroot(), "--sysroot", "/"]
        bins = ["--bin", self.own, "--bin", self.other]
        for out in ["one.tar", "two.tar"]:
            made = self.build(*bins, *sysroots, "--revision", "abc", self.folder / out)
            self.assertEqual(made.returncode, 0, made.stderr)
        one, two = [(self.folder / out).read_bytes() for out in ["one.tar", "two.tar"]]
        self.assertEqual(one, two)

        index, blobs = self.blobs(self.folder / "one.tar")
        (image,) = index["manifests"]
        manifests = json.loads(blobs[image["digest"]])["manifests"]
        self.assertEqual([manifest["platform"]["architecture"] for manifest in manifests], ["amd64", "arm64"])
        for manifest in manifests:
            architecture = manifest["platform"]["architecture"]
            manifest = json.loads(blobs[manifest["digest"]])
            config = json.loads(blobs[manifest["config"]["digest"]])
            self.assertEqual(config["architecture"], architecture)
            labels = config["config"]["Labels"]
            self.assertEqual(labels["org.opencontainers.image.revision"], "abc")
            self.assertEqual(labels["org.opencontainers.image.licenses"], "Apache-2.0")
            root = self.folder / architecture
            layer = self.folder / "layer"
            layer.write_bytes(blobs[manifest["layers"][0]["digest"]])
            with tarfile.open(layer) as tar:
                tar.extractall(root)
            # It fails unless the root has everything that the program needs.
            elf, files = libraries(root / "usr/bin/larderd", [root])
            self.assertEqual(elf.architecture, architecture)
            self.assertTrue(len(files) >= 2 and all(Elf(file).architecture == architecture for file in files.values()))
            # This machine may have authorities that nobody else should trust.
            self.assertEqual((root / "etc/ssl/certs/ca-certificates.crt").read_text(), "those of the sysroot\n")
        if shutil.which("skopeo"):
            archive = f"oci-archive:{self.folder / 'one.tar'}"
            subprocess.run(["skopeo", "copy", "--quiet", "--all", archive, f"dir:{self.folder / 'copied'}"], check=True)
        else:
            self.assertNotIn("CI", os.environ, "skopeo is missing: run .ci/install-packages test")

    def test_an_image_without_certificate_authorities_is_refused(self):
        sysroot = self.sysroot()
        (sysroot / "etc/ssl/certs/ca-certificates.crt").unlink()
        made = self.build("--bin", self.other, "--sysroot", sysroot, self.folder / "out.tar")
        self.assertEqual(made.returncode, 1, made)
        self.assertIn("install ca-certificates there", made.stderr)

    def test_folders_of_mixed_or_equal_architectures_are_refused(self):
        shutil.copy(self.other / "larderd", self.own / "cachenode")
        sysroots = ["--sysroot", self.sysroot(), "--sysroot", "/"]
        mixed = self.build("--bin", self.own, *sysroots, self.folder / "out.tar")
        self.assertIn("amd64 and arm64", mixed.stderr)
        (self.own / "cachenode").unlink()
        equal = self.build("--bin", self.own, "--bin", self.own, self.folder / "out.tar")
        self.assertIn(f"second folder of programs for {OWN}", equal.stderr)

    def test_a_file_that_is_no_program_is_named(self):
        (self.own / "larderd").write_text("#!/bin/sh\n")
        made = self.build("--bin", self.own, self.folder / "out.tar")
        self.assertIn("larderd is not a 64-bit little-endian ELF file", made.stderr)


class Reading(unittest.TestCase):
    def test_an_elf_file_is_read_as_objdump_reads_it(self):
        said = subprocess.run(["objdump", "-p", PROGRAM], capture_output=True, text=True, check=True).stdout
        lines = [line.split() for line in said.splitlines()]
        elf = Elf(PROGRAM)
        self.assertEqual(elf.needed, [line[1] for line in lines if line[:1] == ["NEEDED"]])
        self.assertEqual(elf.versions, {line[3] for line in lines if len(line) == 4 and line[0].startswith("0x")
                                        and line[2].isdigit()})
        self.assertTrue(elf.interpreter.startswith("/lib"))

    def test_a_cut_file_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            cut = Path(folder) / "cut"
            # In the header, among the segments, and among the names of libraries.
            for length in [50, 100, 1000]:
                cut.write_bytes(PROGRAM.read_bytes()[:length])
                self.assertRaises(ElfError, Elf, cut)

    def test_links_do_not_leave_their_sysroot(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "lib").mkdir()
            (root / "lib/a").symlink_to("/bin/ls")
            self.assertIsNone(within(root, "/lib/a"))


if __name__ == "__main__":
    unittest.main()
