// The few helpers that make plain DOM pleasant.

export const byId = (id) => document.getElementById(id);

/** element("button", {class: "quiet", onclick: f, "aria-label": "Play"}, icon("play"), "Play") */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** A drawing from the sheet at the top of index.html; it says nothing to a screen reader. */
export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  drawing.classList.add("icon");
  drawing.setAttribute("aria-hidden", "true");
  drawing.append(use);
  return drawing;
}

/** A button that is only a drawing. `what` tells a screen reader which of several it is: "Play: Hello there." */
export function iconButton(drawing, label, what, onclick) {
  const button = element("button", { class: "icon-button", type: "button", onclick });
  redraw(button, drawing, label, what);
  return button;
}

export function redraw(button, drawing, label, what = "") {
  button.replaceChildren(icon(drawing));
  button.title = label;
  button.setAttribute("aria-label", what ? `${label}: ${what}` : label);
}

export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** What the browser keeps between visits, as JSON; a browser that keeps nothing is no reason to fail. */
export const memory = {
  get(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`nightingale.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`nightingale.${name}`, JSON.stringify(value));
    } catch {
      // Full, or forbidden: the page works, it only forgets.
    }
  },
};
