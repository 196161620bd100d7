// Tabs by the pattern of the ARIA Authoring Practices; the address after `#` names the open one.

import { element } from "./dom.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

export class Tabs {
  /** `views` are objects of `id`, `title` and `mount(panel, api)`. A mounted view may have
   * `shown(detail)`, called when its tab opens with what follows its id in the address, and
   * `hidden()`. */
  constructor(bar, panels, views, api) {
    this.open = null;
    this.tabs = views.map((view) => mounted(view, panels, api));
    for (const tab of this.tabs) {
      tab.button.addEventListener("click", () => this.go(tab));
      tab.button.addEventListener("keydown", (event) => this.onKey(event, tab));
      bar.append(tab.button);
    }
    window.addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  go(tab) {
    if (tab !== this.open) location.hash = tab.id;
  }

  onKey(event, tab) {
    const ends = { Home: 0, End: this.tabs.length - 1 };
    let index = ends[event.key];
    if (event.key in STEPS) {
      const next = this.tabs.indexOf(tab) + STEPS[event.key];
      index = (next + this.tabs.length) % this.tabs.length;
    }
    if (index === undefined) return;
    event.preventDefault();
    this.tabs[index].button.focus();
    this.go(this.tabs[index]);
  }

  /** Open the tab that the address names, or the first; another name, as that of the content to
   * skip to, leaves the open one. */
  follow() {
    const [id, ...rest] = location.hash.slice(1).split("/");
    const named = this.tabs.find((tab) => tab.id === id);
    const asked = named ?? ((id && this.open) || this.tabs[0]);
    if (asked !== this.open) this.open?.view.hidden?.();
    this.open = asked;
    for (const tab of this.tabs) {
      tab.button.setAttribute("aria-selected", String(tab === asked));
      tab.button.tabIndex = tab === asked ? 0 : -1;
      tab.panel.hidden = tab !== asked;
    }
    asked.view.shown?.(asked.id === id ? decoded(rest.join("/")) : "");
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function mounted({ id, title, mount }, panels, api) {
  const names = { button: `tab-${id}`, panel: `panel-${id}` };
  const button = element("button",
    { id: names.button, type: "button", role: "tab", "aria-controls": names.panel }, title);
  const panel = element("section",
    { id: names.panel, role: "tabpanel", "aria-labelledby": names.button, hidden: true });
  panels.append(panel);
  return { id, button, panel, view: mount(panel, api) };
}
