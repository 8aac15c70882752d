// Helpers for the DOM and for local storage.

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

/** Create an icon from the sprite at the top of index.html; screen readers ignore it. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.classList.add("icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** Create a button with an icon. `what` names its object for screen readers: "Play: Hello there." */
export function iconButton(iconName, label, what, onclick) {
  const button = element("button", { class: "icon-button", type: "button", onclick });
  setIcon(button, iconName, label, what);
  return button;
}

export function setIcon(button, iconName, label, what = "") {
  button.replaceChildren(icon(iconName));
  button.title = label;
  button.setAttribute("aria-label", what ? `${label}: ${what}` : label);
}

export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Copy the text of an element, and return a sentence about it. */
export async function copyText(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return "Copied.";
  } catch {
    // There is no clipboard without https: select the text instead.
    getSelection().selectAllChildren(node);
    return "Selected: press Ctrl+C to copy.";
  }
}

/** JSON values in local storage. Browsers that forbid storage are tolerated. */
export const storage = {
  get(name, fallback) {
    try {
      return JSON.parse(localStorage.getItem(`nightingale.${name}`)) ?? fallback;
    } catch {
      return fallback;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`nightingale.${name}`, JSON.stringify(value));
    } catch {
      // Storage is full or forbidden: the page works without it.
    }
  },
};
