"""Imports the modules of an engine that are slow to import."""

import logging
from importlib import import_module

from quire.process_age import uncollected

logger = logging.getLogger(__name__)

LEAN, WHOLE = "lean", "whole"
"""Arguments of the process that forks engines: they say how much it imports."""


def import_engine(*, is_toy: bool, is_lean: bool) -> None:
    """Import an engine. `is_lean` leaves out parts of torch that code of a checkpoint may want."""
    with uncollected():
        if not is_toy and is_lean:
            from quire.models.loading.lean_import import import_transformers

            import_transformers()
        import quire.engine.loop
        import quire.engine.startup.build  # noqa: F401

        if not is_toy:
            import quire.engine.startup.build_model  # noqa: F401


def import_what_loading_needs(model_type: str) -> None:
    """Import what is imported by the load of a first model: symbolic shapes, which outlines of
    models ask for, the modules of transformers for a model of this type, if it has them, and what
    torch imports for the first operation of a subclass of tensors: `LazyWeight` is one."""
    from quire.models.loading.dtype_choice import cpu_has_fast_bfloat16

    names = ["torch.fx.experimental.symbolic_shapes"]
    if not cpu_has_fast_bfloat16():
        names.append("torch.distributed.tensor")
    if model_type.isidentifier():
        names.append(f"transformers.models.{model_type}.modeling_{model_type}")
    with uncollected():
        for name in names:
            try:
                import_module(name)
            except Exception as error:  # the load itself tells what is wrong
                logger.debug("%s is not imported ahead", name, exc_info=error)
