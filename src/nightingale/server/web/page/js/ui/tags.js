// Buttons that insert tags such as [laugh] into the text, for models that know them.

import { byId, element } from "./dom.js";

/** model: an entry of GET /v1/models; insert(tag): called with the tag that was chosen. */
export function showTags(model, insert) {
  const tags = model.tags ?? [];
  const buttons = tags.map((tag) =>
    element("button", { class: "link", type: "button", "data-tag": tag, onclick: () => insert(tag) }, tag),
  );
  byId("tags").replaceChildren("Sounds: ", ...buttons.flatMap((button) => [button, " "]));
  byId("tags").hidden = tags.length === 0;
}

/** Insert a tag at the cursor of a text area, between spaces. */
export function insertTag(area, tag) {
  const before = area.value.slice(0, area.selectionStart);
  const after = area.value.slice(area.selectionEnd);
  const left = before === "" || /\s$/.test(before) ? "" : " ";
  const right = after === "" || /^\s/.test(after) ? "" : " ";
  area.setRangeText(left + tag + right, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input"));
  area.focus();
}
