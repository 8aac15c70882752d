// Files that are dropped anywhere on the page.

/** onDrop(file, dialog): gets the first file, and the dialog that is open or null. */
export function acceptDrops(onDrop) {
  const holdsFile = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!holdsFile(event)) return;
    event.preventDefault();
    onDrop(event.dataTransfer.files[0], document.querySelector("dialog[open]"));
  });
}
