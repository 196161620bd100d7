// Builds elements. Text only ever becomes text: nothing in this page parses HTML.

const SVG = "http://www.w3.org/2000/svg";
let lastId = 0;

/** Return a new HTML element. Attributes named `on...` are listeners; one of `false` or `null` is
 * left out, and so are children of `null`. Strings among the children become text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return a new SVG element, made as an HTML one is. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

/** Return a label with its control below it, and a hint that screen readers read with it. */
export function field(label, control, hint = "") {
  control.id ||= newId("field");
  const parts = [element("label", { for: control.id }, label), control];
  if (hint) {
    const id = newId("hint");
    control.setAttribute("aria-describedby", id);
    parts.push(element("p", { id, class: "hint" }, hint));
  }
  return element("div", { class: "field" }, ...parts);
}

/** Return a checkbox with its label behind it. */
export function checkbox(label, control) {
  control.type = "checkbox";
  control.id ||= newId("field");
  return element("div", { class: "check" }, control,
    element("label", { for: control.id }, label));
}

/** Return a table with a caption; cells are text or nodes, the first of each row heads it. */
export function table(caption, heads, rows) {
  const cell = (value, index) =>
    index === 0
      ? element("th", { scope: "row" }, value)
      : element("td", {}, value);
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {},
      element("caption", {}, caption),
      element("thead", {}, element("tr", {},
        ...heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell))))));
}

/** Return an id that no other element of the page has. */
export function newId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}
