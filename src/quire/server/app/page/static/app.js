// The page: its tabs, its key and its colours.

import { Api } from "./api.js";
import * as chat from "./chat.js";
import { Keys } from "./keys.js";
import * as live from "./live.js";
import * as memory from "./memory.js";
import * as requests from "./requests.js";
import { Tabs } from "./tabs.js";
import { startTheme } from "./theme.js";

const VIEWS = [
  { id: "chat", title: "Chat", mount: chat.mount },
  { id: "requests", title: "Requests", mount: requests.mount },
  { id: "live", title: "Live", mount: live.mount },
  { id: "memory", title: "Memory", mount: memory.mount },
];

startTheme(document.getElementById("theme"));
const keys = new Keys();
const tabs = new Tabs(
  document.getElementById("tabs"), document.getElementById("panels"), VIEWS, new Api(keys));
keys.addEventListener("change", () => tabs.follow());
