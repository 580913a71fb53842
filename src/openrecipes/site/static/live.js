"use strict";
// Keeps the page of running trainings current: asks for its changing part, swaps it in.

const place = document.getElementById("live");
const note = document.getElementById("live-note");
let tag = "";

async function refresh() {
  try {
    const answer = await fetch("part.html", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.ok) {
      place.innerHTML = await answer.text(); // made by the site's own templates, everything escaped
      tag = answer.headers.get("ETag") ?? "";
    }
    note.hidden = true;
  } catch {
    note.hidden = false;
  }
  setTimeout(refresh, document.hidden ? 5000 : 1000);
}

setTimeout(refresh, 1000);
