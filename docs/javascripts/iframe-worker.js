/* Opened from disk, a page may not start workers, and search wants one. Its code then runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = url => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = done
        script.onerror = failed
        inside.document.body.append(script)
      })
      inside.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => load(url)), Promise.resolve())
      this.inside = inside
      this.ready = load(address)
      this.frame = frame
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
