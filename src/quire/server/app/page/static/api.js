// Calls this server, with the key that the tab has.

import { eventData } from "./events.js";

const UNAUTHORIZED = 401;

/** An answer that is an error; `code` is the server's, empty where there was no answer. */
export class ApiError extends Error {
  constructor(message, code = "", status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

export class Api {
  /** `keys` has the key, and asks for one where the server refuses it. */
  constructor(keys) {
    this.keys = keys;
  }

  /** Return the whole address of a path such as "v1/models", also behind a proxy's prefix. */
  address(path) {
    return new URL(path, document.baseURI.split("#")[0]).href;
  }

  async get(path) {
    return (await this.fetch(path, {})).json();
  }

  async post(path, body = {}) {
    return (await this.fetch(path, asPost(body))).json();
  }

  /** Yield the objects of a stream until its end; `signal` aborts it, which ends the request. */
  async *stream(path, body, signal) {
    const response = await this.fetch(path, { ...asPost(body), signal });
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") continue;  // to the end: to leave earlier would break the connection
      const told = JSON.parse(data);
      if (told.error) throw new ApiError(told.error.message, told.error.code ?? "");
      yield told;
    }
  }

  /** Yield the objects of a stream that is only listened to, until its end. */
  async *events(path, signal) {
    const response = await this.fetch(path, { signal });
    for await (const data of eventData(response.body)) yield JSON.parse(data);
  }

  async fetch(path, options) {
    const key = this.keys.current;
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const response = await this.answer(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status === UNAUTHORIZED) {
      this.keys.ask(key ? "The server does not know this key." : "This server asks for a key.");
    }
    throw error;
  }

  async answer(path, options) {
    try {
      return await fetch(this.address(path), options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached.");
    }
  }
}

function asPost(body) {
  const headers = { "content-type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(body) };
}

async function errorOf(response) {
  const { error } = await response.json().catch(() => ({}));
  const message = error?.message ?? `The server answered ${response.status}.`;
  return new ApiError(message, error?.code ?? "", response.status);
}
