"""The interface between Python and the C++ library: it has what abi.h declares, and one that was
built from another abi.h is refused with words."""

import ctypes
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import quire.models.native as native
from quire.models.native.abi import HEADER, AbiMismatch, read_abi
from quire.models.native.library import ISAS, open_library
from tests.instructions import ISAS_WITH_PRODUCTS, built_library, library_of

NATIVE = Path(native.__file__).parent
OF_ALL_SETS = {"quire_abi", "quire_struct_sizes", "quire_best_isa", "quire_has_threads"}
WITH_PRODUCTS = re.compile("quire_(w8a8|w4a8|compressed_bf16)")
WITH_TILES = "quire_compressed_bf16_mlp"


def is_in(isa: str, function: str) -> bool:
    if function == WITH_TILES:
        return isa == "amx"
    return isa in ISAS_WITH_PRODUCTS or not re.match(WITH_PRODUCTS, function)


def test_the_library_exports_what_is_declared_for_each_set_and_nothing_else() -> None:
    declared = built_library().abi.signatures
    (path,) = NATIVE.glob("kernels*.so")
    exported = {each.decode() for each in re.findall(rb"(?<=\0)quire_\w+", path.read_bytes())}
    built = [isa for isa in ISAS if f"quire_attend_{isa}" in exported]
    assert set(library_of("portable").isas) <= set(built)
    expected = {f"{name}_{isa}" for isa in built for name in declared if is_in(isa, name)}
    assert exported == expected | OF_ALL_SETS


@pytest.mark.parametrize("isa", ISAS)
def test_every_function_of_a_set_is_called_as_declared(isa: str) -> None:
    library = library_of(isa)
    for name, signature in library.abi.signatures.items():
        assert library.has(name) == is_in(isa, name)
        if library.has(name):
            with pytest.raises(TypeError, match=f"at least {len(signature.arguments)} argument"):
                library.function(name)()
    assert library.function("quire_fused_takes")(False) is True


def test_structures_refuse_fields_that_they_do_not_have() -> None:
    struct = built_library().struct("NormWeight")
    assert struct(epsilon=0.5).epsilon == 0.5
    with pytest.raises(AttributeError, match="epsylon"):
        struct(epsylon=0.5)


def build(folder: Path, *, old: str, new: str) -> Path:
    """A library that only tells what it was built from: abi.h with `new` in place of `old`."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    shutil.copytree(HEADER.parent, folder / "common")
    header = HEADER.read_text(encoding="utf-8")
    assert old in header
    (folder / "common" / HEADER.name).write_text(header.replace(old, new, 1), encoding="utf-8")
    command = [compiler, "-std=gnu++17", "-shared", "-fPIC", "-DQUIRE_ISA=portable", f"-I{folder}"]
    source, program = folder / "common/cpu.cpp", folder / "kernels.so"
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    return program


def test_a_library_is_read_whatever_its_comments_and_spaces_were(tmp_path: Path) -> None:
    changed = "QUIRE_STRUCT( NormWeight,\n// Of a row\n const  void *weight ;"
    path = build(tmp_path, old="QUIRE_STRUCT(NormWeight,\n    const void* weight;", new=changed)
    abi, own = read_abi(ctypes.CDLL(str(path))), built_library().abi
    assert abi.signatures.keys() == own.signatures.keys()
    sizes = {name: ctypes.sizeof(struct) for name, struct in own.structs.items()}
    assert {name: ctypes.sizeof(struct) for name, struct in abi.structs.items()} == sizes


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("    double epsilon;\n", "", "NormWeight"),
        ("double noise, temperature", "double temperature, noise", "RowParams"),
        ("(int64_t m, int64_t k)", "(int64_t k, int64_t m)", "quire_compressed_bf16_scratch"),
        ("bool, quire_fused_takes", "int, quire_fused_takes", "quire_fused_takes"),
        ("quire_sum,", "quire_total,", "quire_sum, quire_total"),
    ],
)
def test_a_library_of_another_version_is_refused(
    old: str, new: str, named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = build(tmp_path, old=old, new=new)
    with caplog.at_level(logging.WARNING):
        assert open_library(path) is None
    assert named in caplog.text
    assert "install Quire again" in caplog.text


def test_a_library_whose_structures_have_other_sizes_is_refused(tmp_path: Path) -> None:
    path = build(tmp_path, old="// --- attention", new="#define double float\n// --- attention")
    with pytest.raises(AbiMismatch, match="AttentionCall has 288 bytes, not 296"):
        read_abi(ctypes.CDLL(str(path)))


def test_what_is_no_library_of_quire_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kernels.so"
    path.write_bytes(b"nothing")
    with caplog.at_level(logging.WARNING):
        assert open_library(path) is None
        assert open_library(Path("libm.so.6")) is None
    assert [record.getMessage().count("install Quire again") for record in caplog.records] == [1, 1]
