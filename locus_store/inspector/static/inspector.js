"use strict";

// Keys: / search, j and k next and previous version, d differences, b blame, ? help. Every key has
// a link or a field on the page, which data-key names; without this script those are used.

const OFF = "locus-store-inspector-keys-off";

const rows = () => [...document.querySelectorAll("tr[data-row]")];

function target(key) {
  return document.querySelector(`[data-key="${CSS.escape(key)}"]`);
}

function use(element) {
  if (element instanceof HTMLAnchorElement || element instanceof HTMLButtonElement) {
    element.click();
  } else if (element) {
    element.focus();
    if (element instanceof HTMLInputElement) element.select();
  }
  return element !== null;
}

function move(step) {
  const all = rows();
  if (all.length === 0) return false;
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[at < 0 ? 0 : Math.min(Math.max(at + step, 0), all.length - 1)];
  const link = next.querySelector("a");
  if (link) link.focus();
  return link !== null;
}

function help() {
  const keys = document.getElementById("keys");
  if (!keys) return false;
  keys.open = !keys.open;
  keys.querySelector("summary").focus();
  return true;
}

function handled(key) {
  if (key === "?") return help();
  if (key === "j" || key === "k") return use(target(key)) || move(key === "j" ? 1 : -1);
  return ["/", "d", "b"].includes(key) && use(target(key));
}

function stored() {
  try {
    return localStorage.getItem(OFF) !== null;
  } catch {
    return false;
  }
}

function store(isOff) {
  try {
    if (isOff) localStorage.setItem(OFF, "1");
    else localStorage.removeItem(OFF);
  } catch {
    // Storage is switched off in this browser: the choice is for this page.
  }
}

function start() {
  const box = document.getElementById("use-keys");
  if (!box) return;
  box.closest("[hidden]")?.removeAttribute("hidden");
  box.checked = !stored();
  box.addEventListener("change", () => store(!box.checked));
  document.addEventListener("keydown", (event) => {
    const isTyped = event.target.closest("input:not([type=radio], [type=checkbox]), select, textarea");
    if (event.key === "Escape" && isTyped) event.target.blur();
    if (isTyped || !box.checked || event.ctrlKey || event.metaKey || event.altKey) return;
    if (handled(event.key)) event.preventDefault();
  });
}

start();

// New versions of the thread: one request each 2 seconds, none while the tab is hidden.
const live = document.querySelector("[data-live]");

async function addNewer() {
  const answer = await fetch(live.dataset.live);
  if (!answer.ok) return;
  const found = await answer.json();
  live.dataset.live = found.next;
  for (const version of found.versions) {
    const line = document.createElement("li");
    const link = document.createElement("a");
    link.href = version.address;
    link.textContent = version.name;
    line.append(link);
    live.querySelector("ol").append(line);
    live.hidden = false;
  }
}

async function follow() {
  if (!document.hidden) await addNewer().catch(() => {});
  setTimeout(follow, 2000);
}

if (live) setTimeout(follow, 2000);
