// Keeps the page up to date, and its keys. Without it every page works as it is, and is read again by the browser's own key.
"use strict";

const PAUSE = 5000;
const SHARE = 10; // times as long as the last answer took: a page that asks the cluster for much asks less often

// Replaces each live part of the page that has changed, and nothing else: neither what is selected nor what is being typed.
async function refresh() {
  let found;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    found = new DOMParser().parseFromString(await answer.text(), "text/html");
  } catch {
    const live = document.querySelector(".live");
    live?.classList.add("stale");
    live?.replaceChildren("the console has stopped");
    return;
  }
  if (parts(found) !== parts(document)) return location.reload();
  for (const fresh of found.querySelectorAll("[data-live]")) {
    const shown = document.getElementById(fresh.id);
    if (shown.outerHTML === fresh.outerHTML || getSelection().containsNode(shown, true) && !getSelection().isCollapsed) continue;
    for (const details of shown.querySelectorAll("details[open][id]")) {
      fresh.querySelector(`#${CSS.escape(details.id)}`)?.setAttribute("open", "");
    }
    const focused = shown.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    shown.replaceWith(document.adoptNode(fresh));
    if (focused) fresh.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

function parts(page) {
  return [...page.querySelectorAll("[data-live]")].map((part) => part.id).join();
}

async function follow() {
  const began = performance.now();
  await refresh();
  setTimeout(follow, Math.max(PAUSE, SHARE * (performance.now() - began)));
}

setTimeout(follow, PAUSE);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
  if (link) {
    link.click();
  } else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("main a[href]")];
    const next = rows.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
    rows[Math.min(Math.max(next, 0), rows.length - 1)]?.focus();
  } else if (event.key === "/" && document.querySelector("[role=search] input")) {
    document.querySelector("[role=search] input").focus();
  } else {
    return;
  }
  event.preventDefault();
});

document.addEventListener("change", (event) => {
  if (event.target.matches(".find select, .find [type=checkbox]")) event.target.form.requestSubmit();
});
