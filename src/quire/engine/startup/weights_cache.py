"""Names the file that keeps a model's packed weights: by all that their bytes depend on."""

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from quire.engine.config import ModelConfig
from quire.engine.devices.placement import Placement
from quire.engine.startup.disk import check_folder
from quire.engine.startup.fingerprint import LIBRARIES, checkpoint_digests
from quire.models.loading.kept_weights import FORMAT
from quire.models.native import library

FLAG = "--weights-cache-dir"
NAME_CHARS = 32


def check_weights_cache(config: ModelConfig, placement: Placement) -> None:
    """Check before a model is loaded. Raises ValueError where nothing would be packed, or the
    folder cannot be used."""
    if config.weights_cache_dir is None:
        return
    if placement.device.type != "cpu":
        raise ValueError(
            f"{FLAG} keeps weights as the kernels of a CPU pack them, and --device is "
            f"{placement.device}: leave it out, or pass --device cpu"
        )
    if placement.kernels is None:
        raise ValueError(
            f"{FLAG} keeps what Quire's C++ kernels pack, and there are none here: leave out it, "
            "or --linear-backend torch"
        )
    check_folder(FLAG, config.weights_cache_dir)


def packed_file(config: ModelConfig, placement: Placement) -> Path | None:
    """Return the file for the packed weights of the model in the folder that `config` names; None
    where they are not kept. Raises OSError where the checkpoint cannot be read."""
    built = library()
    if config.weights_cache_dir is None or placement.kernels is None or built is None:
        return None
    folder, kernels = Path(config.weights_cache_dir), placement.kernels
    said = {
        "format": FORMAT,
        "libraries": {name: version(name) for name in LIBRARIES},
        "built": [xxh3_128_hexdigest(built.path.read_bytes()), built.isa],
        "files": checkpoint_digests(Path(config.model), folder),
        "dtype": str(placement.dtype),
        "quantization": str(config.quantization),
        "kernels": [type(each).__name__ for each in (*kernels.heads, *kernels.linears)],
        "disabled": sorted(map(str, config.disable_optimizations)),
    }
    key = sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return folder / f"{key[:NAME_CHARS]}.safetensors"
