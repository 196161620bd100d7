"""Opens the engines of a server that are processes of its own."""

from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engines.local.local_engines import LocalEngines
from quire.engines.process.engine_starter import EngineStarter
from quire.engines.process.request_table import GiveBack
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.protocol import EngineProtocol, OpenEngine


def opener(supervision: SupervisionConfig, starter: EngineStarter) -> OpenEngine:
    """Return what opens the engine of a model, or the several engines that it has, which `starter`
    starts."""

    def open_supervisor(
        config: EngineConfig, subscriber: EngineSubscriber, give_back: GiveBack
    ) -> EngineSupervisor:
        return EngineSupervisor(config, subscriber, supervision, starter, give_back)

    def open_engine(config: EngineConfig, subscriber: EngineSubscriber) -> EngineProtocol:
        if config.parallel.data_parallel_size == 1:
            return EngineSupervisor(config, subscriber, supervision, starter)
        return LocalEngines(config, subscriber, open_supervisor)

    return open_engine
