// Browsers start no worker for a page that was opened as a file. The site's search runs in one, so it
// gets the same thing in a hidden frame: a script of its own that exchanges messages with the page.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        if (this.onmessage) this.onmessage(event);
      });
      // Made inside, so that its messages are known to come from there.
      inside.eval('self.postMessage = (data) => parent.postMessage(data, "*")');
      inside.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => load(script)), Promise.resolve());
      const load = (source) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          script.onload = done;
          script.onerror = failed;
          script.src = source;
          inside.document.body.append(script);
        });
      this.ready = load(String(address));
    }
    postMessage(data) {
      this.ready.then(() => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.frame.contentWindow.dispatchEvent(event);
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
