"""Imports transformers without the parts of torch that it names and Quire does not use.

They are the compiler (`torch._dynamo` and what it brings) and tensors over several processes, and
take longer to import than all the rest of transformers (decision 0032). A stand-in takes the
compiler's place, whose decorators change nothing; whoever asks it for anything else gets the real
one, at once and for good.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

import torch

logger = logging.getLogger(__name__)

COMPILER = "torch._dynamo"
MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"
MASK_MODE = "TransformGetItemToIndex"
MARKS = ("allow_in_graph", "assume_constant_result", "disable")
"""Decorators by which torch and transformers tell the compiler how to treat a function."""


def import_transformers() -> None:
    """Import what every causal model needs. If this transformers cannot be imported so, it is
    imported as ever."""
    if COMPILER not in sys.modules:
        _stand_in()
    try:
        _import()
    except Exception as error:
        logger.debug("transformers is imported with torch's compiler", exc_info=error)
        load_compiler()
        _import()


def load_compiler() -> ModuleType:
    """Import the real compiler, which takes the place of its stand-in, and return it."""
    for name in (COMPILER, MASKS):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _Finder)]
    return import_module(COMPILER)


def _import() -> None:
    from transformers.utils import import_utils

    is_available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        import_utils.is_torch_distributed_available()  # which keeps its first answer
    finally:
        torch.distributed.is_available = is_available
    _scan_once(import_utils)
    import transformers.generation.utils
    import transformers.masking_utils
    import transformers.modeling_utils
    import transformers.models.auto.modeling_auto  # noqa: F401


def _scan_once(import_utils: ModuleType) -> None:
    """Let transformers keep what it has read of the files of all its models: it names the folder in
    two ways, and would read them again for the second."""
    scan = import_utils.create_import_structure_from_path

    def scan_folder(path: str | Path) -> object:
        path = Path(path)
        return scan(path.parent if path.is_file() else path)

    vars(import_utils)["create_import_structure_from_path"] = scan_folder


class _StandIn(ModuleType):
    """Stands in for a package or module of the compiler, until an attribute is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # of whoever looks through all modules
            raise AttributeError(name)
        load_compiler()
        return getattr(import_module(self.__name__), name)


class _Finder(MetaPathFinder):
    """Finds modules of the compiler by loading the real package first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{COMPILER}."):
            return None
        compiler = load_compiler()
        module = sys.modules.get(fullname)
        if module is None:
            return PathFinder.find_spec(fullname, compiler.__path__)
        return spec_from_loader(fullname, _Imported(module))


class _Imported(Loader):
    """Loads a module that the package has imported meanwhile: there is nothing left to do."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _stand_in() -> None:
    compiler, masks = _StandIn(COMPILER), _StandIn(MASKS)
    for name in MARKS:
        setattr(compiler, name, _mark)
    setattr(masks, MASK_MODE, _mask_mode)
    sys.modules.update({COMPILER: compiler, MASKS: masks})
    sys.meta_path.insert(0, _Finder())


def _mark(function: Callable[..., object] | None = None, *_: object, **__: object) -> object:
    return _mark if function is None else function


def _mask_mode() -> object:
    """Return the real mask mode, for the few models whose masks need it."""
    load_compiler()
    return getattr(import_module(MASKS), MASK_MODE)()
