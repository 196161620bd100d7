// The API key: asked for in a dialog, kept in the session storage of the tab alone.

const KEPT = "quire.key";

export class Keys extends EventTarget {
  /** Fires "change" when there is another key, or none any more. */
  constructor() {
    super();
    this.dialog = document.getElementById("key-dialog");
    this.input = document.getElementById("key-value");
    this.reason = document.getElementById("key-reason");
    const close = () => this.dialog.close();
    document.getElementById("key").addEventListener("click", () => this.ask(this.state()));
    document.getElementById("key-close").addEventListener("click", close);
    document.getElementById("key-forget").addEventListener("click", () => this.keep(""));
    document.getElementById("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.keep(this.input.value.trim());
    });
  }

  /** The key, or an empty text. */
  get current() {
    return sessionStorage.getItem(KEPT) ?? "";
  }

  state() {
    return this.current ? "A key is in use." : "No key is in use.";
  }

  keep(key) {
    if (key) {
      sessionStorage.setItem(KEPT, key);
    } else {
      sessionStorage.removeItem(KEPT);
    }
    this.input.value = "";
    this.dialog.close();
    this.dispatchEvent(new Event("change"));
  }

  /** Ask for a key, with a sentence that says why. */
  ask(reason) {
    this.reason.textContent = reason;
    if (!this.dialog.open) this.dialog.showModal();
  }
}
