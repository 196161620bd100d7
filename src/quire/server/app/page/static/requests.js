// The tab of one's own recent requests, or those of all keys, each with its timeline.

import { checkbox, element, table } from "./dom.js";
import { targetWords } from "./targets.js";
import { isolated } from "./text.js";
import { timelineView } from "./timeline.js";
import { duration, number } from "./units.js";

const REFRESH_MS = 1000;

/** Build the tab in its panel. */
export function mount(panel, api) {
  return new Requests(panel, api);
}

class Requests {
  constructor(panel, api) {
    this.api = api;
    this.opened = "";
    this.timer = null;
    this.all = element("input", { onchange: () => this.list() });
    this.error = element("p", { role: "alert", class: "error" });
    this.status = element("p", { role: "status" });
    this.rows = element("div");
    this.title = element("h2", { tabindex: "-1" });
    this.detail = element("section", { "aria-label": "Timeline", hidden: true });
    this.body = element("div");
    this.cancel = element("button", { type: "button", onclick: () => this.end() },
      "Cancel this request");
    this.detail.append(this.title, this.cancel, this.body);
    panel.append(element("h2", {}, "Recent requests"),
      element("div", { class: "row" },
        element("button", { type: "button", onclick: () => this.list() }, "Refresh"),
        checkbox("Of all keys (wants the admin key)", this.all)),
      this.error, this.status, this.rows, this.detail);
  }

  /** Open the tab, with the request of this id if there is one. */
  async shown(id) {
    await this.list();
    if (id) await this.open(id);
  }

  hidden() {
    clearTimeout(this.timer);
  }

  async list() {
    const isOfAll = this.all.checked;
    const told = await this.asked(() => this.api.get(`v1/requests${isOfAll ? "?all=true" : ""}`));
    if (told === null) {
      this.all.checked = false;
      this.rows.replaceChildren();
      return;
    }
    const heads = ["Request", "Begun", "Model", "State", "Time", "Prompt", "Output"];
    const isTimed = told.data.some(({ latency }) => latency);
    if (isTimed) heads.push("Targets");
    if (isOfAll) heads.push("Key");
    this.status.textContent = told.data.length === 0 ? "There are none yet." : "";
    this.rows.replaceChildren(
      table("Requests, the newest first", heads,
        told.data.map((each) => line(each, isTimed, isOfAll))));
  }

  /** Show the timeline of a request, again and again until it has ended. */
  async open(id) {
    clearTimeout(this.timer);
    const isNew = id !== this.opened;
    const told = await this.asked(() => this.api.get(`v1/requests/${encodeURIComponent(id)}`));
    this.detail.hidden = told === null;
    if (told === null) return;
    this.opened = id;
    this.title.replaceChildren("Timeline of ", isolated(told.id));
    this.body.replaceChildren(timelineView(told));
    const isLive = told.state === "live";
    this.cancel.hidden = !isLive;
    if (isNew) this.title.focus();
    if (isLive) this.timer = setTimeout(() => this.open(id), REFRESH_MS);
  }

  async end() {
    const path = `v1/requests/${encodeURIComponent(this.opened)}/cancel`;
    if (await this.asked(() => this.api.post(path)) !== null) await this.open(this.opened);
  }

  /** Return what is answered, or null, and show the error. */
  async asked(ask) {
    try {
      const told = await ask();
      this.error.textContent = "";
      return told;
    } catch (error) {
      this.error.textContent = error.message;
      return null;
    }
  }
}

function line(request, isTimed, namesKey) {
  const link = element("a", { href: `#requests/${encodeURIComponent(request.id)}` },
    isolated(request.id));
  const cells = [
    link,
    new Date(request.created * 1000).toLocaleTimeString(),
    isolated(request.model),
    request.state,
    duration(request.total_ms),
    number(request.prompt_tokens),
    number(request.output_tokens),
  ];
  if (isTimed) {
    cells.push(request.latency ? targetWords(request.latency, request.total_ms, true) : "");
  }
  return namesKey ? [...cells, isolated(request.tenant ?? "")] : cells;
}
