// The request as it would be sent now, as curl and as Python, to copy.

import { element, field } from "./dom.js";
import { asCurl, asPython } from "./snippets.js";

export class Code {
  /** `request` returns the path and the body of the request as it is now, or null. */
  constructor(api, request) {
    this.api = api;
    this.request = request;
    this.language = element("select", { onchange: () => this.refresh() },
      element("option", { value: "curl" }, "curl"),
      element("option", { value: "python" }, "Python (openai)"));
    this.text = element("pre", { class: "code", tabindex: "0", role: "region",
      "aria-label": "The request as code" });
    this.told = element("span", { role: "status" });
    this.node = element("details", { ontoggle: () => this.refresh() },
      element("summary", {}, "This request as code"),
      field("Language", this.language),
      this.text,
      element("div", { class: "row" },
        element("button", { type: "button", onclick: () => this.copy() }, "Copy"), this.told));
  }

  refresh() {
    this.told.textContent = "";
    if (!this.node.open) return;
    const request = this.request();
    this.text.textContent = request === null ? "Some options are wrong." : this.written(request);
  }

  written({ path, body }) {
    const hasKey = this.api.keys.current !== "";
    return this.language.value === "curl"
      ? asCurl(this.api.address(path), body, hasKey)
      : asPython(this.api.address("v1"), body, hasKey);
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.text.textContent);
      this.told.textContent = "Copied.";
    } catch {  // browsers lend the clipboard to pages over TLS or of this machine alone
      getSelection().selectAllChildren(this.text);
      this.told.textContent = "Selected: copy it with the keyboard.";
    }
  }
}
