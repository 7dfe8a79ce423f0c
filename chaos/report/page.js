// Tells at once what the pointer is over, and draws a line through all panels there. The page is whole without it.
const hint = document.body.appendChild(document.createElement("div"));
const cross = document.body.appendChild(document.createElement("div"));
hint.id = "hint"; cross.id = "cross"; hint.hidden = cross.hidden = true;
for (const picture of document.querySelectorAll(".timeline svg, .story > svg")) {
  for (const title of picture.querySelectorAll("title")) {
    title.parentElement.dataset.hint = title.textContent;
    title.remove();
  }
  picture.addEventListener("pointermove", (event) => {
    const over = event.target.closest("[data-hint]");
    const box = picture.getBoundingClientRect();
    cross.hidden = false;
    cross.style.left = event.pageX + "px";
    cross.style.top = box.top + window.scrollY + "px";
    cross.style.height = box.height + "px";
    hint.hidden = !over;
    if (!over) return;
    hint.textContent = over.dataset.hint;
    hint.style.top = event.clientY + 16 + "px";
    hint.style.left = Math.max(8, Math.min(event.clientX + 12, innerWidth - hint.offsetWidth - 8)) + "px";
  });
  picture.addEventListener("pointerleave", () => { hint.hidden = cross.hidden = true; });
}
