// A request as code that can be run elsewhere. Keys are never in it: a variable stands for one.

const KEY_VARIABLE = "QUIRE_API_KEY";
const OF_OPENAI = new Set([
  "frequency_penalty", "logprobs", "max_tokens", "messages", "model", "parallel_tool_calls",
  "presence_penalty", "prompt", "response_format", "seed", "stop", "stream", "stream_options",
  "temperature", "tool_choice", "tools", "top_logprobs", "top_p",
]);

/** Return a command for a POSIX shell. */
export function asCurl(address, body, hasKey) {
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $${KEY_VARIABLE}"` : "";
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -N ${shellWord(address)} \\\n  -H 'Content-Type: application/json'${key} \\\n` +
    `  -d '${json}'\n`;
}

/** Return a program for OpenAI's client; `base` is the address that ends with "/v1". */
export function asPython(base, body, hasKey) {
  const isChat = "messages" in body;
  const fields = Object.entries(body).filter(([name]) => OF_OPENAI.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OF_OPENAI.has(name)));
  const lines = fields.map(([name, value]) => `    ${name}=${python(value)},`);
  if (Object.keys(extra).length > 0) lines.push(`    extra_body=${python(extra)},`);
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${python(base)}, api_key=${keyExpression(hasKey)})`,
    `stream = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...lines,
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    `        print(${isChat ? "choice.delta.content or \"\"" : "choice.text"}, end="", flush=True)`,
    "",
  ].join("\n");
}

function keyExpression(hasKey) {
  return hasKey ? `os.environ["${KEY_VARIABLE}"]` : '"none"';
}

function shellWord(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Return a JSON value as a Python expression. */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  const items = Object.entries(value).map(([key, item]) => `${python(key)}: ${python(item)}`);
  return `{${items.join(", ")}}`;
}
