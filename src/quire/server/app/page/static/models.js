// The choice among the models that continue texts.

import { element, field } from "./dom.js";

export class ModelChoice {
  /** `onChange` is called when another model is chosen, or the chosen one is known better. */
  constructor(api, onChange) {
    this.api = api;
    this.onChange = onChange;
    this.cards = [];
    this.select = element("select", { onchange: onChange });
    this.node = field("Model", this.select);
  }

  get name() {
    return this.select.value;
  }

  /** Whether the model may be asked for this, as far as is known before it is loaded. */
  can(ability) {
    const card = this.cards.find(({ id }) => id === this.name);
    return card?.capabilities?.[ability] ?? true;
  }

  /** Ask the server for its models; the one that was chosen stays so. Raises ApiError. */
  async refresh() {
    const before = this.name;
    const { data } = await this.api.get("v1/models");
    this.cards = data.filter(({ kind }) => kind === "generate");
    this.select.replaceChildren(...this.cards.map(option));
    if (this.cards.some(({ id }) => id === before)) this.select.value = before;
    this.onChange();
  }
}

function option({ id, status }) {
  const state = status.value === "loaded" ? "" : ` (${status.value})`;
  return element("option", { value: id }, id + state);
}
