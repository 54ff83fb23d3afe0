// Pages that refresh themselves: the server says when a page would look different (server-sent events), and the
// parts marked data-live are fetched again and put in the place of the old ones. A part that a user types into
// stays as it is. Without this file every page works; the browser then reads it again every 15 seconds.
"use strict";

(() => {
  const stamp = document.body.dataset.stamp;
  if (stamp === undefined) return;
  const notice = document.getElementById("connection");
  let shown = stamp;
  let busy = false;
  let again = false;

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
      for (const item of next.querySelectorAll("details")) item.open = item.open || open.has(item.id);
    }
    const target = focused && document.getElementById(focused);
    if (target && target !== document.activeElement) target.focus({ preventScroll: true });
    document.title = fresh.title;
  }

  async function read() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!fresh.body.dataset.page) {
        say("This browser is not signed in any more: the console was restarted. Open the link that it printed.");
      } else if (fresh.body.dataset.page !== document.body.dataset.page) {
        location.reload();
      } else {
        swap(fresh);
        shown = fresh.body.dataset.stamp;
      }
    } catch {
      // the stream says when the console is back
    }
    busy = false;
    if (again) {
      again = false;
      read();
    }
  }

  const changes = new EventSource("/changes");
  changes.onopen = () => say("");
  changes.onmessage = (event) => {
    if (event.data !== shown) {
      shown = event.data;
      read();
    }
  };
  changes.onerror = () => {
    // A stream ends after a minute and opens again at once; only one that stays away is reported.
    setTimeout(() => {
      if (changes.readyState === EventSource.CONNECTING) {
        say("The console does not answer; was it ended? This page goes on by itself when it is back.");
      }
    }, 3000);
    if (changes.readyState === EventSource.CLOSED) read();
  };
})();
