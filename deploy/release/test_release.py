"""Tests of a packed release, whose folder LARDER_RELEASE names: it is installed as a user does. Part of `make release-check`.

A test that lacks a tool fails under CI and is skipped elsewhere.
"""

import functools
import http.server
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASE = Path(os.environ["LARDER_RELEASE"]).resolve()
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def only(pattern):
    (found,) = RELEASE.glob(pattern)
    return found


def archive():
    return only(f"*-linux-{ARCHITECTURE}.tar.gz")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def need(self, works, what):
        if not works:
            self.assertNotIn("CI", os.environ, f"{what} is missing")
            self.skipTest(f"needs {what}")


class Install(Case):
    def setUp(self):
        super().setUp()
        self.prefix = self.folder / "prefix"
        # The parts that a release needs.
        self.release = self.folder / "release"
        self.release.mkdir()
        for file in ["SHA256SUMS", archive().name]:
            shutil.copy(RELEASE / file, self.release)
        self.archive = next(self.release.glob("*.tar.gz"))

    def install(self, releases=None, wrapper=(), **environment):
        environment = os.environ | {"PREFIX": str(self.prefix), "LARDER_RELEASES": str(releases or self.release)} | environment
        return subprocess.run([*wrapper, "sh", RELEASE / "install.sh"], capture_output=True, text=True, env=environment)

    def version(self):
        return run(self.prefix / "bin/larder", "--version")

    def test_from_a_folder_and_again(self):
        for _ in range(2):
            done = self.install()
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.startswith(f"installed {self.version().strip()} in {self.prefix}/bin"), done.stdout)
        self.assertEqual(run(self.prefix / "bin/kubectl-larder", "--version"), self.version())
        self.assertEqual(list(self.prefix.glob(".larder*")), [])

    def test_from_a_url(self):
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        handler = functools.partial(Quiet, directory=self.release)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        done = self.install(url)
        self.assertEqual(done.returncode, 0, done.stderr)
        missing = self.install(f"{url}/none")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("cannot fetch SHA256SUMS", missing.stderr)

    def refused(self, words, **options):
        """Has a release refused, while an earlier version is there and stays."""
        (self.prefix / "bin").mkdir(parents=True, exist_ok=True)
        (self.prefix / "bin/larder").write_text("the installed version")
        done = self.install(**options)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn(words, done.stderr)
        self.assertEqual((self.prefix / "bin/larder").read_text(), "the installed version")
        self.assertEqual([path.name for path in self.prefix.iterdir()], ["bin"])

    def test_a_changed_file_is_refused(self):
        with self.archive.open("r+b") as file:
            file.seek(self.archive.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        self.refused("is not the file that SHA256SUMS lists")

    def test_a_file_that_was_cut_off_is_refused(self):
        with self.archive.open("r+b") as file:
            file.truncate(self.archive.stat().st_size // 2)
        self.refused("its download was cut off")

    def test_half_of_the_script_does_nothing(self):
        lines = (RELEASE / "install.sh").read_text().splitlines(keepends=True)
        environment = os.environ | {"PREFIX": str(self.prefix), "LARDER_RELEASES": str(self.release)}
        for count in range(len(lines)):
            subprocess.run(["sh"], input="".join(lines[:count]), text=True, capture_output=True, env=environment)
            self.assertFalse(self.prefix.exists(), lines[count - 1])

    def test_everybody_may_run_what_was_installed(self):
        done = self.install(wrapper=["sh", "-c", 'umask 077; exec "$@"', "sh"])
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in [self.prefix / "bin", self.prefix / "bin/larder", *(self.prefix / "share").rglob("*/")]:
            self.assertEqual(path.stat().st_mode & 0o777, 0o755, path)

    def test_files_of_an_installation_that_was_killed_go(self):
        old, new = self.prefix / ".larder.oldold", self.prefix / ".larder.newnew"
        for folder in [old, new]:
            folder.mkdir(parents=True)
        os.utime(old, (0, 0))
        done = self.install()
        self.assertEqual(done.returncode, 0, done.stderr)
        # The other may be at work.
        self.assertEqual((old.exists(), new.exists()), (False, True))

    def test_a_file_in_the_way_is_an_error(self):
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "bin/larder").write_text("the installed version")
        (self.prefix / "share").touch()
        done = self.install()
        self.assertEqual(done.returncode, 1, done)
        self.assertIn(f"cannot create the folders of the release in {self.prefix}", done.stderr)
        self.assertEqual((self.prefix / "bin/larder").read_text(), "the installed version")

    def test_a_release_for_other_machines_is_refused(self):
        sums = self.release / "SHA256SUMS"
        sums.write_text(sums.read_text().replace(f"-linux-{ARCHITECTURE}.", "-linux-riscv64."))
        self.refused(f"has no release for {ARCHITECTURE}")

    def test_a_release_must_be_signed_with_the_key_that_is_named(self):
        self.need(shutil.which("minisign"), "minisign")
        sums = self.release / "SHA256SUMS"
        keys = []
        for name in ["ours", "theirs"]:
            run("minisign", "-G", "-W", "-p", self.folder / f"{name}.pub", "-s", self.folder / f"{name}.key")
            keys.append((self.folder / f"{name}.pub").read_text().splitlines()[1])
        run("minisign", "-S", "-s", self.folder / "ours.key", "-m", sums, input="")
        self.assertEqual(self.install(LARDER_PUBLIC_KEY=keys[0]).returncode, 0)
        shutil.rmtree(self.prefix)
        self.refused("is not signed with LARDER_PUBLIC_KEY", LARDER_PUBLIC_KEY=keys[1])
        sums.write_text(sums.read_text() + "\n")
        self.refused("is not signed with LARDER_PUBLIC_KEY", LARDER_PUBLIC_KEY=keys[0])

    def test_on_a_full_disk_the_installed_version_stays(self):
        self.need(os.geteuid() == 0, "root, which mounts")
        self.prefix.mkdir()
        # Less than the programs, more than the archive.
        room = self.archive.stat().st_size + (4 << 20)
        script = f'mount -t tmpfs -o size={room} none "$PREFIX" && mkdir "$PREFIX/bin" && echo old >"$PREFIX/bin/larder" && ' \
                 '{ sh "$0" && exit 9; cat "$PREFIX/bin/larder"; ls -A "$PREFIX"; }'
        environment = os.environ | {"PREFIX": str(self.prefix), "LARDER_RELEASES": str(self.release)}
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script, RELEASE / "install.sh"], capture_output=True, text=True,
                              env=environment)
        self.assertEqual((done.returncode, done.stdout), (0, "old\nbin\n"), done.stderr)
        self.assertIn(f"is the disk of {self.prefix} full? The installed version stays", done.stderr)


class Files(Case):
    def setUp(self):
        super().setUp()
        with tarfile.open(archive()) as tar:
            tar.extractall(self.folder)
        (self.tree,) = self.folder.iterdir()

    def test_no_program_has_debug_information(self):
        programs = [path for path in (self.tree / "bin").iterdir() if not path.is_symlink()]
        self.assertEqual({path.name for path in programs}, {"larder", "larderd", "cachenode"})
        for program in programs:
            self.assertNotIn(".debug_info", run("readelf", "--section-headers", "--wide", program))

    def test_bash_completes_commands_and_flags(self):
        script = self.tree / "share/bash-completion/completions/larder"
        for words, expected in [(["larder", "mou"], "mount"), (["larder", "mount", "--cache-s"], "--cache-size")]:
            code = f'. "$0"; COMP_WORDS=("$@"); COMP_CWORD={len(words) - 1}; _larder larder "${{COMP_WORDS[-1]}}" ' \
                   '"${COMP_WORDS[-2]}"; echo "${COMPREPLY[@]}"'
            self.assertIn(expected, run("bash", "-ec", code, script, *words).split())

    def test_the_man_pages_are_correct(self):
        self.need(shutil.which("man"), "man")
        pages = sorted((self.tree / "share/man/man1").iterdir())
        self.assertGreater(len(pages), 15)
        for page in pages:
            environment = os.environ | {"LC_ALL": "C.UTF-8", "MANWIDTH": "100"}
            shown = subprocess.run(["man", "--warnings", "--local-file", page], capture_output=True, text=True, env=environment)
            # A long word is no fault of a page.
            faults = [line for line in shown.stderr.splitlines() if not line.endswith(("can't break line", "cannot break line"))]
            self.assertEqual((shown.returncode, faults), (0, []), page)
            self.assertIn("NAME", shown.stdout)

    def test_the_components_are_valid_and_complete(self):
        bill = only("*.cdx.json")
        found = {component["name"]: component for component in json.loads(bill.read_text())["components"]}
        self.assertLessEqual({"rocksdb", "aws-lc", "tokio", "ca-certificates", "libc6", "libgcc-s1", "libstdc++6"}, found.keys())
        # Scanners compare packages with the advisories of their distribution.
        system = platform.freedesktop_os_release()["ID"]
        self.assertRegex(found["libc6"]["purl"], rf"^pkg:deb/{system}/libc6@.+[?]arch=(amd64|arm64)&distro={system}-")
        self.assertNotIn("criterion", found, "benchmarks are not released")
        self.assertRegex(found["rocksdb"]["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(found["aws-lc"]["version"], r"^\d+\.\d+\.\d+$")
        validator = Path(os.environ["LARDER_CYCLONEDX"]) / "bin/python3"
        self.need(validator.exists(), "cyclonedx-python-lib")
        code = "import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import JsonStrictValidator; " \
               "error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()); sys.exit(error and str(error))"
        run(validator, "-c", code, bill)


class Charts(Case):
    def test_they_render_what_those_of_the_clone_render(self):
        helm = ROOT / "tests/cluster/helm.sh"
        self.need(subprocess.run([helm, "version"], capture_output=True).returncode == 0, "helm")
        switches = ["datasets", "jobs", "clusters", "scheduler", "sharing", "devices", "devicesDra", "startupTaint"]
        settings = {"larder": [f"{switch}.enabled=true" for switch in switches], "larder-crds": ["keep=false"]}
        for name, values in settings.items():
            # That of Larder begins like that of its definitions.
            packed = only(f"{name}-[0-9]*.tgz")
            flags = ["--namespace", "larder-system", "--kube-version", "1.36.3", "--set", ",".join(values)]
            rendered = [run(helm, "template", name, chart, *flags) for chart in [packed, ROOT / "deploy/charts" / name]]
            self.assertGreater(rendered[0].count("\nkind: "), 5)
            self.assertEqual(*rendered)


class Packages(Case):
    def test_the_wheel_brings_the_command_and_takes_it_away(self):
        run(sys.executable, "-m", "venv", self.folder)
        pip = [self.folder / "bin/pip", "--disable-pip-version-check", "--quiet"]
        before = {path.name for path in (self.folder / "bin").iterdir()}
        run(*pip, "install", "--no-index", only(f"larder_bin-*_{platform.machine()}.whl"), only("larder-*-any.whl"))
        self.assertTrue(run(self.folder / "bin/larder", "--version").startswith("larder "))
        run(self.folder / "bin/python", "-c", "import larder")
        run(*pip, "uninstall", "--yes", "larder-bin", "larder")
        self.assertEqual({path.name for path in (self.folder / "bin").iterdir()}, before)

    def installed(self, script, *tools):
        """Runs a script of `.ci` with the Debian package."""
        self.need(os.geteuid() == 0 and all(map(shutil.which, tools)), f"root and {' and '.join(tools)}")
        # Programs that were linked here may need what is here.
        suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
        command = [ROOT / ".ci" / script, suite, only(f"*_{ARCHITECTURE}.deb")]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_debian_package_works_in_a_clean_root_and_leaves_it_clean(self):
        self.installed("clean-root", "mmdebstrap")

    def test_mounts_of_the_service_outlive_its_process_and_its_upgrade(self):
        self.installed("systemd", "mmdebstrap", "systemd-nspawn")

    def test_the_notes_name_every_file(self):
        notes = (RELEASE / "RELEASE.md").read_text()
        self.assertNotIn("@", notes.replace("@latest", ""))
        for path in RELEASE.iterdir():
            if path.name not in ("RELEASE.md", "SHA256SUMS", "SHA256SUMS.minisig"):
                self.assertIn(path.name, notes)


if __name__ == "__main__":
    unittest.main()
