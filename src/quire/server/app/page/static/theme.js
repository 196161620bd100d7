// Light, dark, or as the system says; the choice is kept, since it is no secret.

const KEPT = "quire.theme";

/** Let a select choose the colours, and choose what was chosen last. */
export function startTheme(select) {
  select.value = localStorage.getItem(KEPT) ?? "system";
  if (select.value === "") select.value = "system";
  const apply = () => {
    document.documentElement.dataset.theme = select.value;
  };
  select.addEventListener("change", () => {
    localStorage.setItem(KEPT, select.value);
    apply();
  });
  apply();
}
