"""ELF files of any architecture, as the loader reads them: what they need, and without debug information.

The tools of this machine know its own architecture: `ldd` takes a foreign program for a static one.
"""

import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

# By the number of the machine in an ELF file: the name of the architecture in Debian and in images, and the prefix of paths
# and commands.
MACHINES = {62: ("amd64", "x86_64-linux-gnu"), 183: ("arm64", "aarch64-linux-gnu")}


class ElfError(Exception):
    """A file that is no program, or a program that lacks something; says what to do."""


class Elf:
    """A program or a library: its architecture, its interpreter, and what it needs.

    `needed` lists the libraries, and `versions` the versions of their symbols, such as `GLIBC_2.28`.
    """

    def __init__(self, path):
        with path.open("rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
                raise ElfError(f"{path} is not a 64-bit little-endian ELF file")
            (self.machine,) = struct.unpack_from("<H", head, 18)
            if self.machine not in MACHINES:
                raise ElfError(f"{path} is for the ELF machine {self.machine}: known are {sorted(MACHINES)}")
            self.architecture, self.triple = MACHINES[self.machine]
            (table,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)

            def read(offset, length):
                file.seek(offset)
                data = file.read(length)
                if len(data) < length:
                    raise ElfError(f"{path} is cut off: copy or build it again")
                return data

            # Type, flags, offset in the file, virtual address, physical address, size in the file.
            segments = [struct.unpack("<IIQQQQ", read(table + size * nth, 40)) for nth in range(count)]

            def content(kind):
                return next((read(segment[2], segment[5]) for segment in segments if segment[0] == kind), b"")

            def offset(address):
                for kind, _, at, start, _, length in segments:
                    if kind == 1 and start <= address < start + length:
                        return address - start + at
                raise ElfError(f"{path} is damaged: the address {address:#x} is in no segment")

            def text(at):
                file.seek(offset(names) + at)
                return file.read(512).partition(b"\0")[0].decode()

            self.interpreter = content(3).rstrip(b"\0").decode()
            dynamic = list(struct.iter_unpack("<QQ", content(2)))
            values = dict(reversed(dynamic))
            names = values.get(5)
            self.needed = [text(value) for tag, value in dynamic if tag == 1]
            self.versions = set()
            # The chain of libraries, each with the chain of its versions.
            library = offset(values[0x6FFFFFFE]) if 0x6FFFFFFE in values else None
            for _ in range(values.get(0x6FFFFFFF, 0)):
                _, versions, _, first, following = struct.unpack("<HHIII", read(library, 16))
                version = library + first
                for _ in range(versions):
                    _, _, _, name, after = struct.unpack("<IHHII", read(version, 16))
                    self.versions.add(text(name))
                    version += after
                library += following


def within(sysroot, path):
    """The file at an absolute path of a sysroot, whose absolute links are its own; None if there is none."""
    path = sysroot / path.lstrip("/")
    while path.is_symlink():
        target = os.readlink(path)
        path = sysroot / target.lstrip("/") if target.startswith("/") else path.parent / target
    return path if path.is_file() else None


def libraries(binary, sysroots):
    """A program, and its loader and libraries: the paths at which it looks for them, with the files."""
    elf = Elf(binary)
    folders = [f"/lib/{elf.triple}", f"/usr/lib/{elf.triple}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]

    def find(paths):
        for sysroot in sysroots:
            for path in paths:
                file = within(sysroot, path)
                # The loader skips libraries of other machines, too.
                if file and Elf(file).machine == elf.machine:
                    return path, file
        raise ElfError(f"{binary} needs {Path(paths[0]).name} for {elf.architecture}, which is missing in "
                       f"{' and '.join(map(str, sysroots))}: install it there, or name another --sysroot")

    found = dict([find([elf.interpreter])] if elf.interpreter else [])
    names = list(elf.needed)
    # Grows while it is read: libraries need others. The loader is there already.
    for name in names:
        if name != Path(elf.interpreter).name:
            path, file = find([f"{folder}/{name}" for folder in folders])
            found[path] = file
            names += [more for more in Elf(file).needed if more not in names]
    return elf, found


def strip(binary, target, debug=None):
    """Copies a program without its debug information, which goes to a file of the folder `debug`, if there is one."""
    elf = Elf(binary)
    objcopy, package = f"{elf.triple}-objcopy", f"binutils-{elf.triple.replace('_', '-')}"
    if elf.triple.startswith(platform.machine()) and not shutil.which(objcopy):
        objcopy, package = "objcopy", "binutils"

    def run(*arguments):
        try:
            subprocess.run([objcopy, *arguments], check=True)
        except FileNotFoundError:
            raise ElfError(f"needs {objcopy}: install the package {package}") from None
        except subprocess.CalledProcessError:
            raise ElfError(f"{objcopy} failed: {' '.join(map(str, arguments))}") from None

    link = []
    if debug:
        debug.mkdir(parents=True, exist_ok=True)
        kept = debug / f"{target.name}.debug"
        run("--only-keep-debug", binary, kept)
        link = [f"--add-gnu-debuglink={kept}"]
    target.parent.mkdir(parents=True, exist_ok=True)
    run("--strip-debug", *link, binary, target)
    target.chmod(0o755)
