"""Imports what an engine needs and what is slow to import: at once, or in the background, for a
process that stands by.
"""

import logging
import os
import threading
from importlib import import_module
from pathlib import Path

from quire.process_age import uncollected

logger = logging.getLogger(__name__)

TASKS = Path("/proc/self/task")


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
    models ask for, and the modules of transformers for a model of this type, if it has them."""
    names = ["torch.fx.experimental.symbolic_shapes"]
    if model_type.isidentifier():
        names.append(f"transformers.models.{model_type}.modeling_{model_type}")
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # the load itself tells what is wrong
            logger.debug("%s is not imported ahead", name, exc_info=error)


class BackgroundImports:
    """Imports an engine for a checkpoint without code of its own, whose model is likely of one
    type, in a thread that computes only when nothing else of the machine wants to."""

    def __init__(self, model_type: str) -> None:
        self._model_type = model_type
        self._thread = threading.Thread(target=self._run, name="imports", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        import_engine(is_toy=False, is_lean=True)
        with uncollected():
            import_what_loading_needs(self._model_type)

    def finish(self) -> None:
        """Return when all is imported, which is not put off any more. Threads that libraries have
        started meanwhile compute like all others from then on."""
        _compute_like_others()
        self._thread.join()
        _compute_like_others()


def _compute_like_others() -> None:
    """Give every thread of this process the usual scheduling policy."""
    for task in TASKS.iterdir():
        try:
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
        except OSError:  # it has ended, or may not be changed
            continue
