// Pieces of an output: the chunks of both endpoints in one form.

/** Return what a choice of a chunk brings: `text`, `reasoning`, `calls` (parts of tool calls),
 * `tokens` (each with its text, its bytes if they are told, its log probability and the likeliest
 * ones) and `finish`. */
export function piece(choice) {
  const delta = choice.delta ?? { content: choice.text };
  return {
    text: delta.content ?? "",
    reasoning: delta.reasoning_content ?? "",
    calls: delta.tool_calls ?? [],
    tokens: choice.delta ? ofChat(choice.logprobs) : ofCompletion(choice.logprobs),
    finish: choice.finish_reason,
  };
}

function ofChat(logprobs) {
  return (logprobs?.content ?? []).map(({ token, bytes, logprob, top_logprobs }) => ({
    token,
    bytes,
    logprob,
    likeliest: top_logprobs.map((each) => [each.token, each.logprob]),
  }));
}

function ofCompletion(logprobs) {
  return (logprobs?.tokens ?? []).map((token, index) => ({
    token,
    logprob: logprobs.token_logprobs[index],
    likeliest: Object.entries(logprobs.top_logprobs?.[index] ?? {}),
  }));
}
