"use strict";
const said = document.getElementById("said");
for (const step of document.querySelectorAll(".step")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this fix");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(step.textContent);
      said.textContent = "Copied";
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(step);
      said.textContent = "Selected; copy it with the keyboard";
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  step.after(button);
}
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) { target.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
document.addEventListener("click", (event) => {
  if (event.target.closest('a[href^="#"]')) { setTimeout(reveal); }
});
reveal();
function reachable() {
  for (const box of document.querySelectorAll(".scroll")) {
    if (!box.checkVisibility()) { continue; } // measuring folded content would lay it all out
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", (box.querySelector("caption, title") || box).textContent);
    } else { box.removeAttribute("tabindex"); box.removeAttribute("role"); box.removeAttribute("aria-label"); }
  }
}
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);
reachable();
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.matters:not([open])")];
  for (const item of opened) { item.open = true; }
});
addEventListener("afterprint", () => { for (const item of opened) { item.open = false; } });
