// Server-sent events, read by fetch: EventSource can send neither a key nor a body.

/** Yield the data of each event of a response's body. */
export async function* eventData(body) {
  let data = [];
  for await (const line of lines(body)) {
    if (line.startsWith("data:")) {
      data.push(line.slice(line[5] === " " ? 6 : 5));
    } else if (line === "" && data.length > 0) {
      yield data.join("\n");
      data = [];
    }
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) yield part.replace(/\r$/, "");
    }
  } finally {
    await reader.cancel().catch(() => {});  // it has failed already where the stream was aborted
  }
}
