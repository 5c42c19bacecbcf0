// The search of the theme runs in a worker, which browsers refuse to pages opened from a disk. There, its script runs in
// a hidden frame with the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.answer(data);
      this.ready = new Promise((loaded, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = () => loaded(inside);
        script.onerror = failed;
        inside.document.body.append(script);
      });
    }

    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
