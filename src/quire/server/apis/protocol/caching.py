"""Fields of OpenAI's APIs that name the conversation of a prompt, and say how long its blocks are
to stay in the prefix cache."""

from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field

from quire.server.apis.protocol.fields import OnlyFalse, StrictModel

MAX_NAME_CHARS = 512
SessionName: TypeAlias = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
RetentionPolicy: TypeAlias = Literal["in_memory", "in-memory", "24h"]
_POLICIES: dict[RetentionPolicy, float] = {"24h": 24 * 3600.0}
"""The seconds of the policies that ask for more than the cache does anyway."""
Ttl: TypeAlias = Literal["30m", "12h"]
_TTLS: dict[Ttl, float] = {"30m": 1800.0, "12h": 12 * 3600.0}


class PromptCacheOptions(StrictModel):
    """Options of the prefix cache: the prompt is to be kept for `ttl` at least. Blocks are cached
    whether or not a client marks them: `mode` changes nothing, and nothing is compared."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Ttl | None = None
    comparison_response_id: Annotated[str, Field(max_length=256)] | None = None
    prewarm: OnlyFalse | None = None

    @property
    def no_effect(self) -> tuple[str, ...]:
        """The paths of what is taken and changes nothing."""
        given = {
            "mode": self.mode == "explicit",
            "comparison_response_id": self.comparison_response_id is not None,
        }
        return tuple(f"prompt_cache_options.{name}" for name, is_given in given.items() if is_given)

    @property
    def echoed(self) -> dict[str, str]:
        """The fields that an answer repeats."""
        given = {"mode": self.mode, "ttl": self.ttl}
        return {name: value for name, value in given.items() if value is not None}


class PromptCacheBreakpoint(StrictModel):
    """Marks the end of a beginning that is to be kept for `ttl`, else for as long as the request
    says."""

    mode: Literal["explicit"]
    ttl: Ttl | None = None


class AskedRetention(NamedTuple):
    """The seconds that a prompt is to be kept after the end of its request, None where the client
    does not say, and the path of the field that says so."""

    seconds: float | None
    path: str


def asked_retention(
    policy: RetentionPolicy | None, options: PromptCacheOptions | None
) -> AskedRetention:
    """Return the longer of the times that the two fields ask for."""
    seconds = None if policy is None else _POLICIES.get(policy)
    ttl = None if options is None else options.ttl
    of_policy = AskedRetention(seconds, "prompt_cache_retention")
    return longest(of_policy, of_ttl(ttl, "prompt_cache_options.ttl"))


def of_ttl(ttl: Ttl | None, path: str) -> AskedRetention:
    """Return the time that the field at a path asks for."""
    return AskedRetention(None if ttl is None else _TTLS[ttl], path)


def longest(*asked: AskedRetention) -> AskedRetention:
    """Return the longest of some times, the first of equal ones."""
    return max(asked, key=lambda each: each.seconds or 0.0)
