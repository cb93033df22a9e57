// As much of a browser as the page's script needs, and a server whose answers a test writes down.
"use strict";
const vm = require("vm");

class Node {
  constructor(tag, attributes = {}) {
    Object.assign(this, { tag, attributes, children: [], dataset: {}, listeners: {}, className: "", title: "", text: "" });
    this.value = this.defaultValue = attributes.value || "";
    this.checked = "checked" in attributes;
    this.hidden = "hidden" in attributes;
    this.disabled = "disabled" in attributes;
    this.scrollHeight = this.scrollTop = this.clientHeight = 0;
    const classes = new Set();
    this.classList = {
      add: (c) => classes.add(c),
      has: (c) => classes.has(c),
      toggle: (c, on) => (on ? classes.add(c) : classes.delete(c)),
    };
  }
  get textContent() { return this.text + this.children.map((c) => c.textContent).join(""); }
  set textContent(text) { this.children = []; this.text = String(text); }
  append(...nodes) {
    for (const node of nodes) {
      if (node instanceof Node && node.tag === "fragment") this.children.push(...node.children);
      else this.children.push(node instanceof Node ? node : Object.assign(new Node("#text"), { text: String(node) }));
    }
  }
  replaceChildren(...nodes) {
    this.children = [];
    this.text = "";
    this.append(...nodes);
    if (this.tag === "select") this.value = nodes.length ? nodes[0].value : "";
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
  fire(kind, more = {}) { return this.listeners[kind]({ preventDefault() {}, ...more }); }
  focus() { this.document.activeElement = this; }
  reportValidity() { return this.document.getElementById("prompt").value !== ""; }
  getBoundingClientRect() { return { top: 0 }; }
  scrollIntoView() {}
  remove() {}
  select() {}
}

function browser(html, fetch, touch = false) {
  const byId = {};
  for (const [, tag, raw] of html.replace(/<script>[^]*<\/script>/, "").matchAll(/<(\w+)((?:\s+[\w-]+(?:="[^"]*")?)+)>/g)) {
    const attributes = Object.fromEntries([...raw.matchAll(/([\w-]+)(?:="([^"]*)")?/g)].map((m) => [m[1], m[2] ?? ""]));
    if (attributes.id) byId[attributes.id] = new Node(tag, attributes);
  }
  byId.prompt.value = byId.prompt.defaultValue = "prompt";
  const document = new Node("document");
  Object.assign(document, {
    documentElement: new Node("html"),
    body: new Node("body"),
    activeElement: null,
    getElementById: (id) => {
      if (!byId[id]) throw new Error(`no element ${id}`);
      return byId[id];
    },
    createElement: (tag) => Object.assign(new Node(tag), { document }),
    createElementNS: (_, tag) => new Node(tag),
    createDocumentFragment: () => new Node("fragment"),
  });
  for (const node of Object.values(byId)) node.document = document;
  const storage = () => {
    const kept = {};
    return { kept, getItem: (k) => kept[k] ?? null, setItem: (k, v) => (kept[k] = v), removeItem: (k) => delete kept[k] };
  };
  let clock = 0;
  const window = {
    document, fetch, TextDecoder, AbortController, setTimeout: (f) => f(), performance: { now: () => (clock += 10) },
    Option: function (text, value) { return Object.assign(new Node("option"), { text, value }); },
    sessionStorage: storage(), localStorage: storage(), navigator: {}, matchMedia: (query) => ({ matches: touch && query.includes("coarse") }),
    innerHeight: 1000,
  };
  window.window = window;
  const script = /<script>([^]*)<\/script>/.exec(html)[1];
  vm.runInNewContext(script, window);
  return { $: (id) => document.getElementById(id), document, window };
}

/** A response whose body comes in chunks of bytes. */
function response(status, chunks, headers = {}) {
  const left = chunks.map((c) => (typeof c === "string" ? new TextEncoder().encode(c) : c));
  const text = async () => Buffer.concat(left).toString();
  return {
    ok: status === 200, status, headers: { get: (name) => headers[name] ?? null }, text,
    json: async () => JSON.parse(await text()),
    body: { getReader: () => ({ read: async () => (left.length ? { value: left.shift(), done: false } : { done: true }) }) },
  };
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

module.exports = { browser, response, settled };
