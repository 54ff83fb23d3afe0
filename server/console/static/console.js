// Pages that refresh themselves: once a second the console is asked for its stamp, and where that has changed the
// parts marked data-live are fetched again and put in the place of the old ones. A part that a user types into
// stays as it is. Without this file every page works; the browser then reads it again every 15 seconds.
"use strict";

// The box that chooses all of a list, which only a script can do.
document.querySelectorAll("[data-all]").forEach((box) => (box.parentElement.hidden = false));
document.addEventListener("change", (event) => {
  const name = event.target.dataset.all;
  if (name) document.getElementsByName(name).forEach((box) => (box.checked = event.target.checked));
});

(() => {
  let shown = document.body.dataset.stamp;
  if (shown === undefined) return;
  const notice = document.getElementById("connection");

  document.addEventListener("input", (event) => {
    const part = event.target.closest("[data-live]");
    if (part) part.dataset.touched = "yes";
  });

  function say(sentence) {
    notice.textContent = sentence;
    notice.hidden = !sentence;
  }

  function swap(fresh) {
    const focused = document.activeElement ? document.activeElement.id : "";
    for (const old of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(old.id);
      if (!next || old.dataset.touched || old.innerHTML === next.innerHTML) continue;
      const open = new Set([...old.querySelectorAll("details[open]")].map((item) => item.id));
      old.replaceWith(document.adoptNode(next));
      for (const box of next.querySelectorAll("[data-all]")) box.parentElement.hidden = false;
      for (const item of next.querySelectorAll("details")) item.open = item.open || open.has(item.id);
    }
    const target = focused && document.getElementById(focused);
    if (target && target !== document.activeElement) target.focus({ preventScroll: true });
    document.title = fresh.title;
  }

  async function read() {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (fresh.body.dataset.page !== document.body.dataset.page) return location.reload();
    swap(fresh);
    shown = fresh.body.dataset.stamp;
  }

  async function look() {
    try {
      const answer = await fetch("/stamp");
      if (!answer.ok) {
        say("This browser is not signed in any more: the console was restarted. Open the link that it printed.");
      } else {
        say("");
        if ((await answer.text()) !== shown) await read();
      }
    } catch {
      say("The console does not answer; was it ended? This page refreshes itself when it is back.");
    }
    setTimeout(look, 1000);
  }
  look();
})();
