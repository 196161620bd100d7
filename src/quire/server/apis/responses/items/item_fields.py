"""The fields of the items that clients send back, and the kinds of items that are left out."""

from quire.server.apis.protocol.unknown_fields import Place

_TOLD = ("id", "status")
"""Fields of answers that say nothing to the model."""
_CALLER = ("async", "caller")


def _place(*names: str, kept_out: tuple[str, ...] = ()) -> Place:
    return Place(frozenset(("type", *names)), frozenset((*_TOLD, *kept_out)) - {*names})


MESSAGE = _place("role", "content", kept_out=("phase", "end_turn"))
PART = _place("text", "refusal", kept_out=("annotations", "logprobs", "prompt_cache_breakpoint"))
AGENTS_MESSAGE = _place("author", "content", kept_out=("recipient",))
CALL = _place("call_id", "name", "namespace", "arguments", kept_out=_CALLER)
CUSTOM_CALL = _place("call_id", "name", "namespace", "input", kept_out=_CALLER)
RESULT = _place("call_id", "output", kept_out=("caller", "name", "namespace"))
SHELL_CALL = _place("id", "call_id", "action")
SHELL_ACTION = _place("command", "env", "timeout_ms", "user", "working_directory")
SHELL_RESULT = _place("id", "call_id", "output")
REASONING = _place("content", "summary", "encrypted_content")
COMPACTION = _place("content", "summary", "encrypted_content")
MORE_TOOLS = _place("role", "tools")
HOSTED_ITEMS = frozenset(
    (
        *("apply_patch_call", "apply_patch_call_output", "code_interpreter_call"),
        *("compaction_trigger", "computer_call", "computer_call_output", "configuration_update"),
        *("file_search_call", "image_generation_call", "mcp_approval_request"),
        *("mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output"),
        *("shell_call", "shell_call_output", "tool_search_call", "tool_search_output"),
        "web_search_call",
    )
)
"""Kinds of items that tell of tools which this server does not have."""
