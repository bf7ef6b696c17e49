"use strict";

// Keys: / search, j and k next and previous version, d differences, n and p next and previous
// difference, b blame, ? help. Every key has a link or a field on the page, which data-key names;
// without this script those are used.

const OFF = "locus-store-inspector-keys-off";

const rows = () => [...document.querySelectorAll("[data-row]")];

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

let changed = null; // The change that was shown last; a button that was clicked has the focus.

function change(step) {
  const all = [...document.querySelectorAll("[data-change]")];
  const focused = all.findIndex((it) => it.contains(document.activeElement));
  const at = focused < 0 ? all.indexOf(changed) : focused;
  const next = all[at < 0 ? 0 : at + step];
  if (!next) return false;
  changed = next;
  next.tabIndex = -1;
  next.closest("details").open = true;
  next.focus();
  return true;
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
  if (key === "n" || key === "p") return change(key === "n" ? 1 : -1);
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

// Buttons that need this script: copy, and the next and previous difference.
function showButtons() {
  for (const steps of document.querySelectorAll(".steps")) steps.hidden = false;
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("[data-copy][hidden]")) {
    button.hidden = false;
    button.addEventListener("click", () => navigator.clipboard.writeText(button.dataset.copy));
  }
}

showButtons();

// The menu of actions closes with Escape, or with a click beside it.
function closeMenu(event) {
  const menu = document.querySelector("details.menu[open]");
  const isBeside = event.type === "click" && !menu?.contains(event.target);
  if (!menu || !(isBeside || event.key === "Escape")) return;
  menu.open = false;
  if (!isBeside) menu.querySelector("summary").focus();
}

document.addEventListener("click", closeMenu);
document.addEventListener("keydown", closeMenu);

// A version is exchanged within its page, so that the list of versions stays where it is.
const PARTS = [".title", "#versions .versions", "#state", "#changes"];

function isExchanged(link) {
  if (!link || !document.getElementById("versions")) return false;
  const [here, there] = [new URL(location.href), new URL(link.href)];
  if (there.origin !== here.origin || there.pathname !== here.pathname) return false;
  const names = ["thread", "namespace", "tenant"];
  return names.every((it) => here.searchParams.get(it) === there.searchParams.get(it))
    && there.search !== here.search;
}

async function exchange(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(answer.statusText);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const found = PARTS.map((it) => [document.querySelector(it), page.querySelector(it)]);
  if (found.some((pair) => pair.includes(null))) throw new Error("another page");
  const place = document.getElementById("versions").scrollTop;
  for (const [old, fresh] of found) old.replaceWith(document.adoptNode(fresh));
  document.title = page.title;
  document.getElementById("versions").scrollTop = place;
  showButtons();
}

document.addEventListener("click", (event) => {
  const step = event.target.closest("[data-step]");
  if (step) change(Number(step.dataset.step));
  const link = event.target.closest("a");
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || !isExchanged(link)) return;
  event.preventDefault();
  exchange(link.href).then(
    () => {
      history.pushState(null, "", link.href);
      const state = document.getElementById("state");
      state.focus({ preventScroll: true });
      if (innerWidth <= 640) state.scrollIntoView();
    },
    () => location.assign(link.href),
  );
});

addEventListener("popstate", () => location.reload());

// New versions of the thread: one request each 2 seconds, none while the tab is hidden or paused.
const live = document.querySelector("[data-live]");
const switched = document.getElementById("follow");

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
  if (!document.hidden && switched.querySelector("input").checked) await addNewer().catch(() => {});
  setTimeout(follow, 2000);
}

if (live && switched) {
  switched.hidden = false;
  setTimeout(follow, 2000);
}
