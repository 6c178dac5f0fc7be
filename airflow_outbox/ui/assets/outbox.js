// The page's only script: Airflow's theme, links out of the frame, and regions that update by themselves.
"use strict";
const EVERY = 2000;

// Airflow's theme is a class of the frame's parent; outside of a frame it is where Airflow keeps it.
const outer = (() => { try { return window.parent !== window && window.parent.document ? window.parent : null; } catch { return null; } })();
function dress() {
  const shown = outer && ["dark", "light"].find((theme) => outer.document.documentElement.classList.contains(theme));
  const theme = shown || localStorage.getItem("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.classList.toggle("dark", theme === "dark");
}
dress();
if (outer) new MutationObserver(dress).observe(outer.document.documentElement, { attributes: true, attributeFilter: ["class"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);

// Makes `shown` like `wanted` and keeps every element that need not change, and with it focus, selection and scroll.
function key(node) { return node.nodeType === Node.ELEMENT_NODE ? node.nodeName + (node.dataset.key ?? "") : node.nodeName; }
function morph(shown, wanted) {
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.data !== wanted.data) shown.data = wanted.data;
    return;
  }
  for (const { name, value } of [...wanted.attributes]) if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  for (const { name } of [...shown.attributes]) if (!wanted.hasAttribute(name) && name !== "open") shown.removeAttribute(name);
  let place = shown.firstChild;
  for (const child of [...wanted.childNodes]) {
    let match = place;
    while (match && key(match) !== key(child)) match = match.nextSibling;
    if (!match) { shown.insertBefore(child, place); continue; }
    if (match === place) place = place.nextSibling;
    else shown.insertBefore(match, place);
    morph(match, child);
  }
  while (place) { const next = place.nextSibling; place.remove(); place = next; }
}

let updatedAt = new Date();
function tell(problem) {
  const line = document.getElementById("stale");
  line.hidden = !problem;
  const text = problem ? `Not updated since ${updatedAt.toLocaleTimeString()}: ${problem}` : "";
  if (line.textContent !== text) line.textContent = text;
}

async function update() {
  let answer;
  try {
    answer = await fetch(location.href, { headers: { "X-Outbox-Request": "update" }, signal: AbortSignal.timeout(10000) });
  } catch {
    return tell("Airflow does not answer.");
  }
  if (answer.status === 401) return tell("your session has ended. Reload Airflow, and log in.");
  if (!answer.ok) return tell(`Airflow answered ${answer.status}.`);
  const wanted = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.querySelector("main"), regions = [...main.querySelectorAll("[data-region]")];
  const names = (list) => [...list].map((region) => region.dataset.region).join();
  if (names(regions) !== names(wanted.querySelectorAll("main [data-region]"))) {
    if (!document.querySelector("dialog[open]")) main.replaceWith(document.adoptNode(wanted.querySelector("main")));
  } else {
    for (const region of regions) morph(region, wanted.querySelector(`[data-region="${region.dataset.region}"]`));
  }
  updatedAt = new Date();
  tell("");
}

// The frame may not navigate its parent; Airflow's router follows its history.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-out]");
  if (!link || !outer || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  outer.history.pushState({}, "", link.getAttribute("href"));
  outer.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
});

// What changes something is asked in a dialog, and sent by this script alone: no form of another page can bear its header.
async function ask(address, options = {}) {
  const dialog = document.querySelector("dialog") ?? document.body.appendChild(document.createElement("dialog"));
  let asked;
  try {
    const answer = await fetch(address, { ...options, headers: { "X-Outbox-Request": "act", "Content-Type": "application/json" } });
    asked = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  } catch {
    asked = document.createElement("main");
    asked.innerHTML = "<h1>Airflow does not answer</h1><p>Nobody knows whether it was asked for: look at the trail.</p>";
  }
  dialog.replaceChildren(...asked.childNodes);
  if (!dialog.querySelector("[data-close]")) dialog.insertAdjacentHTML("beforeend", "<p><button data-close>Close</button></p>");
  const heading = dialog.querySelector("h1");
  heading.id = "asked";
  dialog.setAttribute("aria-labelledby", heading.id);
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector("[autofocus]") ?? dialog.querySelector("a, button")).focus();
}
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-ask], dialog [data-close]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.matches("[data-ask]")) ask(link.href);
  else link.closest("dialog").close();
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-act]")) return;
  event.preventDefault();
  event.submitter.disabled = true;
  ask(event.target.action, { method: "POST", body: JSON.stringify(Object.fromEntries(new FormData(event.target))) });
});

addEventListener("DOMContentLoaded", async () => {
  if (!document.body.hasAttribute("data-live")) return;
  for (;;) {
    await new Promise((resume) => setTimeout(resume, EVERY));
    if (!document.hidden) await update();
  }
});
