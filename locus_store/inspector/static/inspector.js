"use strict";

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
