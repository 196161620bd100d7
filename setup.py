"""Builds the native library of `quire.models.native`; everything else is in pyproject.toml.

Every .cpp file there is compiled once for each instruction set that the target has. Without a
compiler the installation goes on, and Quire runs without the library. What was compiled lies in
`OBJECTS`, and is not compiled again before a source, a header or this file changes.
"""

import os
import platform
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

NATIVE = Path("src/quire/models/native")
OBJECTS = Path("build/native")
COMMON_FLAGS = [
    "-std=gnu++17",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-exceptions",
]
ISA_FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma"),
        *("-mavx512vnni", "-mprefer-vector-width=512"),
        # GCC's own headers.
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    ],
}
ISA_FLAGS["amx"] = [*ISA_FLAGS["avx512"], "-mamx-tile", "-mamx-bf16", "-mamx-int8"]
NEW_ISAS = ("amx",)
"""Left out where the compiler is older than they are."""


def is_newer(made: Path, sources: list[str]) -> bool:
    """Is there a file that was made after all of its sources were changed?"""
    return made.exists() and made.stat().st_mtime > max(os.stat(each).st_mtime for each in sources)


def isas() -> list[str]:
    """Those of the machine that is built for."""
    return list(ISA_FLAGS) if platform.machine() in ("x86_64", "AMD64") else ["portable"]


class BuildNative(build_ext):
    """The library is no Python module, but is built and installed like one."""

    def build_extension(self, ext: Extension) -> None:
        files = [(isa, source) for isa in isas() if self.knows(isa) for source in ext.sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # a compiler is a process
            compiled = pool.map(partial(self.compile, ext), *zip(*files, strict=True))
            objects = [each for made in compiled for each in made]
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), build_temp=self.build_temp
        )

    def compile(self, ext: Extension, isa: str, source: str) -> list[str]:
        """Return the object files."""
        openmp = ["-fopenmp"] if sys.platform == "linux" else []
        flags = [*COMMON_FLAGS, *openmp, *ISA_FLAGS[isa], f"-DQUIRE_ISA={isa}"]
        command = [getattr(self.compiler, "compiler_so_cxx", None), flags]
        folder = OBJECTS / f"{isa}-{zlib.crc32(repr(command).encode()):08x}"
        made = [folder / each for each in self.compiler.object_filenames([source])]
        if not all(is_newer(each, [source, *ext.depends, __file__]) for each in made):
            parts = self.compiler.compile(
                [source],
                output_dir=str(folder / "unfinished"),
                extra_postargs=flags,
                include_dirs=[str(NATIVE)],
            )
            for part, each in zip(parts, made, strict=True):
                each.parent.mkdir(parents=True, exist_ok=True)
                os.replace(part, each)  # none is ever there in part
        return [str(each) for each in made]

    def knows(self, isa: str) -> bool:
        """Has the compiler the instruction set, if that is a new one?"""
        if isa not in NEW_ISAS:
            return True
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        nothing = Path(self.build_temp) / "nothing.cpp"
        nothing.write_text("")
        try:
            self.compiler.compile(
                [str(nothing)], output_dir=self.build_temp, extra_postargs=ISA_FLAGS[isa]
            )
        except CompileError:
            self.warn(f"this compiler does not know {isa}: the kernels go without it")
            return False
        return True


setup(
    ext_modules=[
        Extension(
            "quire.models.native.kernels",
            sources=sorted(map(str, NATIVE.rglob("*.cpp"))),
            depends=sorted(map(str, NATIVE.rglob("*.h"))),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative},
)
