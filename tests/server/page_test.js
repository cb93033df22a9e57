// The page's logic, run by tests/server/test_page.py under node.
"use strict";
const assert = require("assert");
const fs = require("fs");
const vm = require("vm");
const { browser, response, settled } = require("./page_dom.js");

const html = fs.readFileSync(process.argv[2], "utf8");
const script = /<script>([^]*)<\/script>/.exec(html)[1];
const names = "Events, Positions, firstDifference, verdictOf, rates, niceMax, polyline, thin, bodyOf, piecesOf, refusal, parsed, draftsOf, cutOf";
const page = vm.runInNewContext(`${script}; ({ ${names} })`, {});
const plain = (value) => JSON.parse(JSON.stringify(value)); // out of the other context
const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-9, `${a} is not ${b}`);

/** A server whose answers have begun, and end when they are stopped. */
const unfinished = (text) => async (path, options) => {
  if (path === "/v1/models") return response(200, ['{"data": [{"id": "m"}]}']);
  let sent = false;
  const read = () => new Promise((resolve, reject) => {
    if (!sent) { sent = true; resolve({ value: new TextEncoder().encode(`data: {"choices": [{"text": "${text}"}]}\n\n`), done: false }); return; }
    options.signal.addEventListener("abort", () => reject(Object.assign(new Error("aborted"), { name: "AbortError" })));
  });
  return { ok: true, status: 200, headers: { get: () => null }, body: { getReader: () => ({ read }) } };
};

const tests = {
  "events are found wherever chunks end"() {
    for (const newline of ["\n", "\r\n"]) {
      const text = [": ping", "data: {\"a\": 1}", "", "id: 3", "data:two", "data: lines", "", "", "data: [DONE]", "", "data: half"];
      const raw = text.join(newline);
      const whole = plain(new page.Events().feed(raw));
      assert.deepStrictEqual(whole, ['{"a": 1}', "two\nlines", "[DONE]"]);
      for (let cut = 0; cut <= raw.length; cut++) {
        for (let second = cut; second <= raw.length; second += 3) {
          const events = new page.Events();
          const found = [raw.slice(0, cut), raw.slice(cut, second), raw.slice(second)].flatMap((p) => plain(events.feed(p)));
          assert.deepStrictEqual(found, whole);
        }
      }
    }
  },

  "the first difference"() {
    assert.strictEqual(page.firstDifference("abc", "abd"), 2);
    assert.strictEqual(page.firstDifference("", "x"), -1);
    assert.strictEqual(page.firstDifference("abc", "ab"), -1);
    assert.deepStrictEqual(plain(page.verdictOf("ab", "ab", true)).slice(0, 1), ["same"]);
    assert.deepStrictEqual(plain(page.verdictOf("abX", "abY", true)), ["differs", "The answers differ from character 3 on.", 2]);
    assert.strictEqual(page.verdictOf("abX", "aY", false)[0], "differs");
    assert.strictEqual(page.verdictOf("abc", "ab", true)[0], "differs");
    assert.strictEqual(page.verdictOf("abc", "ab", false)[0], "");
  },

  "positions, where rejected draft tokens are sent"() {
    const p = new page.Positions();
    p.add([["a", "ngram", true], ["b", "ngram", true], ["x", "ngram", false], ["c", "target", true], ["d", "target", true]]);
    p.add([["e", "draft_model", true], ["y", "draft_model", false], ["z", "draft_model", false], ["f", "target", true]]);
    assert.strictEqual(p.steps, 3);
    assert.deepStrictEqual(plain(p.drafted), [2, 2, 2]);
    assert.deepStrictEqual(plain(p.accepted), [2, 1, 0]);
    assert.deepStrictEqual(plain(p.shares()), [1, 0.5, 0]);
  },

  "positions, where they are not"() {
    const p = new page.Positions();
    p.add([["a", "ngram", true], ["b", "ngram", true], ["c", "target", true]]);
    p.add([["d", "target", true], ["e", "ngram", true], ["f", "target", true]]);
    p.add([["g", "ngram", true]]); // cut off within a draft
    assert.strictEqual(p.steps, 4);
    assert.deepStrictEqual(plain(p.shares()), [0.75, 0.25]);
    p.add([]);
    assert.strictEqual(p.steps, 4);
  },

  "rates, against the slow way"() {
    let state = 7;
    const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
    for (let round = 0; round < 50; round++) {
      const arrivals = [];
      for (let i = 0, at = 1000 * random(); i < 40; i++, at += 1 + 120 * random()) arrivals.push([at, 1 + Math.floor(5 * random())]);
      const slow = [];
      for (let i = 1; i < arrivals.length; i++) {
        let from = i - 1; // the window begins with the last arrival that is old enough, or with the first of all
        while (from > 0 && arrivals[from][0] > arrivals[i][0] - 500) from--;
        const tokens = arrivals.slice(from + 1, i + 1).reduce((sum, a) => sum + a[1], 0);
        slow.push([(arrivals[i][0] - arrivals[0][0]) / 1000, 1000 * tokens / (arrivals[i][0] - arrivals[from][0])]);
      }
      const quick = page.rates(arrivals);
      assert.strictEqual(quick.length, slow.length);
      quick.forEach((point, i) => { near(point[0], slow[i][0]); near(point[1], slow[i][1]); });
    }
    assert.deepStrictEqual(plain(page.rates([])), []);
    assert.deepStrictEqual(plain(page.rates([[5, 1], [5, 1]])), []); // no time passed: no rate
  },

  "scaling"() {
    assert.deepStrictEqual([0, NaN, 0.3, 1, 1.1, 4.9, 5, 7, 130, 1000].map(page.niceMax), [1, 1, 0.5, 1, 2, 5, 5, 10, 200, 1000]);
    const box = { left: 10, top: 5, width: 100, height: 50 };
    assert.strictEqual(page.polyline([[0, 0], [1, 5], [2, 10]], 2, 10, box), "10.0,55.0 60.0,30.0 110.0,5.0");
    const many = Array.from({ length: 1000 }, (_, i) => i), few = plain(page.thin(many, 50));
    assert.strictEqual(few.length, 50);
    assert.deepStrictEqual([few[0], few[49]], [0, 999]);
    assert.deepStrictEqual(plain(page.thin([1, 2], 50)), [1, 2]);
  },

  "bodies"() {
    const form = { model: "m", prompt: "p", temperature: 0, top_p: 1, max_tokens: 9, seed: null, speculate: true, method: "", drafts: null };
    const body = plain(page.bodyOf(form, null, false));
    assert.deepStrictEqual(body, { model: "m", prompt: "p", temperature: 0, top_p: 1, max_tokens: 9, stream: true,
      stream_options: { include_usage: true }, return_sources: true, return_rejected: true });
    const chosen = plain(page.bodyOf({ ...form, seed: 0, method: "ngram", drafts: 3 }, [{ role: "user", content: "p" }], false));
    assert.deepStrictEqual([chosen.prompt, chosen.seed, chosen.speculative], [undefined, 0, { method: "ngram", num_speculative_tokens: 3 }]);
    assert.deepStrictEqual(plain(page.bodyOf(form, null, true)).speculative, { enabled: false });
    assert.deepStrictEqual(plain(page.bodyOf({ ...form, speculate: false, method: "ngram" }, null, false)).speculative, { enabled: false });
  },

  "pieces of any server"() {
    assert.deepStrictEqual(plain(page.piecesOf({ text: "ab", sources: [["a", "target", true]] })), [["a", "target", true]]);
    assert.deepStrictEqual(plain(page.piecesOf({ text: "ab" })), [["ab", "", true]]);
    assert.deepStrictEqual(plain(page.piecesOf({ delta: { content: "x" } })), [["x", "", true]]);
    assert.deepStrictEqual(plain(page.piecesOf({ delta: { role: "assistant" } })), []);
  },

  "refusals"() {
    assert.strictEqual(page.refusal(401, '{"error": {"message": "no key"}}', null), "401: no key Enter the API key.");
    assert.strictEqual(page.refusal(429, '{"error": {"message": "full"}}', "3"), "429: full Try again in 3 s.");
    assert.strictEqual(page.refusal(422, '{"detail": [{"loc": "x"}]}', null), '422: [{"loc":"x"}]');
    assert.strictEqual(page.refusal(502, "<html>", null), "502: <html>");
    assert.strictEqual(page.refusal(500, "", null), "500: no reason given");
    assert.throws(() => page.parsed("{x"), /no answer: \{x/);
  },

  async "a whole run, compared"() {
    const asked = [];
    const event = (data) => `data: ${JSON.stringify(data)}\n\n`;
    const stream = (text) => {
      const bytes = new TextEncoder().encode(text), chunks = [];
      for (let i = 0; i < bytes.length; i += 7) chunks.push(bytes.slice(i, i + 7)); // through characters, too
      return chunks;
    };
    const models = { data: [{ id: "tiny", parlay: { numerics_id: "n", methods: ["none", "ngram"], max_model_len: 512 } }] };
    const { $, document, window } = browser(html, async (path, options) => {
      if (path === "/v1/models") return response(200, [JSON.stringify(models)]);
      asked.push([path, JSON.parse(options.body), options.headers.authorization]);
      const own = asked.length > 1;
      return response(200, stream([
        event({ choices: [{ text: "é one", sources: [["é", own ? "target" : "ngram", true], ["<x>", "ngram", false], [" one", "target", true]] }] }),
        event({ choices: [{ text: " two", finish_reason: "length", sources: [[" two", "target", true]] }] }),
        event({ choices: [], usage: { completion_tokens: 3, completion_tokens_details: { accepted_prediction_tokens: 1, rejected_prediction_tokens: 1 }, speculation: { steps: 5, drafts: 2, draft_tokens: 3, without_draft: { unlikely: 2, no_proposal: 1 } } } }),
        "data: [DONE]\n\n",
      ].join("")));
    });
    await settled();
    assert.strictEqual($("model").value, "tiny");
    assert.deepStrictEqual($("method").children.map((o) => o.value), ["", "ngram"]);
    assert.match($("legend").textContent, /the model's own.*ngram/);
    $("key").value = "k";
    $("key").fire("change");
    assert.deepStrictEqual(window.sessionStorage.kept, { "parlay-key": "k" });
    await settled();
    $("compare").checked = true;
    $("temperature").value = "0.8";
    $("top_p").value = "1";
    document.fire("keydown", { key: "Enter", ctrlKey: true });
    assert.ok($("run").disabled && !$("stop").disabled);
    await settled();
    assert.ok(!$("run").disabled && $("stop").disabled && !$("copy").disabled);
    assert.strictEqual($("error").hidden, true, $("error").textContent);
    assert.strictEqual($("first").children.filter((c) => c.tag === "span").map((c) => c.textContent).join(""), "é one two");
    const [drafted, rejected, own] = $("first").children;
    assert.deepStrictEqual([drafted.className, drafted.title], ["s1", "drafted by ngram"]);
    assert.deepStrictEqual([rejected.tag, rejected.textContent, rejected.title], ["del", "<x>", "rejected draft token of ngram"]);
    assert.deepStrictEqual([own.className, own.title], ["s0", "the model's own"]);
    assert.match($("first-figures").textContent, /^3 tokens in .* 1 of 2 draft tokens accepted · drafts in 2 of 5 steps, 1\.5 tokens each · without a draft mostly because none was likely enough \(2 steps\)$/);
    assert.doesNotMatch($("second-figures").textContent, /without a draft/); // it was asked for none
    assert.strictEqual($("verdict").className, "same");
    assert.match($("verdict").textContent, /No difference/);
    assert.strictEqual($("status").textContent, "Cut off: the model's context is full.");
    assert.strictEqual(asked.length, 2);
    assert.deepStrictEqual(asked.map((a) => [a[0], a[2]]), [["/v1/completions", "Bearer k"], ["/v1/completions", "Bearer k"]]);
    assert.strictEqual(asked[0][1].seed, asked[1][1].seed); // one noise for both
    assert.ok(Number.isInteger(asked[0][1].seed));
    assert.deepStrictEqual(asked.map((a) => a[1].speculative), [undefined, { enabled: false }]);
    assert.match($("positions").attributes["aria-label"], /^draft token 1: 100 %, draft token 2: 0 %$/);
    assert.strictEqual($("positions").children.filter((c) => c.tag === "rect").length, 2);
    assert.strictEqual($("speed").children.filter((c) => c.tag === "polyline").length, 2);
    $("rejected").checked = true;
    $("rejected").fire("change");
    assert.ok($("answers").classList.has("rejected"));
  },

  async "another answer without speculation is marked"() {
    let asked = 0;
    const { $ } = browser(html, async (path) => {
      if (path === "/v1/models") return response(200, ['{"data": [{"id": "m"}]}']);
      const last = asked++ ? "cat" : "car";
      return response(200, [`data: {"choices": [{"text": "a "}]}\n\ndata: {"choices": [{"text": "${last}"}]}\n\ndata: [DONE]\n\n`]);
    });
    await settled();
    $("compare").checked = true;
    $("form").fire("submit");
    await settled();
    assert.strictEqual($("verdict").className, "differs");
    assert.strictEqual($("verdict").textContent, "The answers differ from character 5 on.");
    for (const pane of ["first", "second"]) {
      assert.deepStrictEqual($(pane).children.map((c) => c.classList.has("diff")), [false, true]);
    }
  },

  async "a conversation"() {
    const asked = [];
    const { $ } = browser(html, async (path, options) => {
      if (path === "/v1/models") return response(200, ['{"data": [{"id": "m"}]}']);
      asked.push([path, JSON.parse(options.body)]);
      return response(200, [`data: {"choices": [{"delta": {"content": "answer ${asked.length}"}}]}\n\ndata: [DONE]\n\n`]);
    });
    await settled();
    $("chat").checked = true;
    $("chat").fire("change");
    $("system").value = "be brief";
    for (const text of ["one", "two"]) {
      $("prompt").value = text;
      $("form").fire("submit");
      await settled();
    }
    assert.strictEqual(asked[1][0], "/v1/chat/completions");
    assert.deepStrictEqual(asked[1][1].messages.map((m) => `${m.role}: ${m.content}`),
      ["system: be brief", "user: one", "assistant: answer 1", "user: two"]);
    assert.deepStrictEqual($("history").children.map((c) => c.textContent), ["Youone", "Modelanswer 1", "Youtwo"]);
    assert.strictEqual($("first").textContent, "answer 2"); // each answer stands once
    $("forget").fire("click");
    assert.ok($("history").hidden);
    $("form").fire("submit"); // nothing to ask
    await settled();
    assert.strictEqual(asked.length, 2);
  },

  "numbers of things"() {
    assert.deepStrictEqual(plain(page.draftsOf({ steps: 1, drafts: 1, draft_tokens: 3, without_draft: {} })), ["drafts in 1 of 1 step, 3.0 tokens each"]);
    assert.deepStrictEqual(plain(page.draftsOf({ steps: 2, drafts: 0, draft_tokens: 0, without_draft: { no_room: 1 } })), ["without a draft mostly because there was no room (1 step)"]);
    assert.strictEqual(page.cutOf("stop", 9, 9), "");
    assert.match(page.cutOf("length", 1, 1), /^Cut off at 1 token;/);
    assert.match(page.cutOf("length", 512, 512), /^Cut off at 512 tokens;/);
    assert.match(page.cutOf("length", 100, 512), /context is full/);
  },

  async "a key comes first, and a prompt is never lost"() {
    const asked = [], models = { data: [{ id: "m", parlay: { numerics_id: "n", methods: ["ngram"], max_model_len: 64, prefers_chat: true, sampling: { temperature: 0.2, top_p: 0.95 } } }] };
    let refuse = false;
    const { $, document } = browser(html, async (path, options) => {
      if (options.headers.authorization !== "Bearer right" || refuse) return response(401, ['{"error": {"message": "who"}}']);
      if (path === "/v1/models") return response(200, [JSON.stringify(models)]);
      asked.push([path, JSON.parse(options.body)]);
      return response(200, ['data: {"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n']);
    });
    await settled();
    assert.ok($("fields").hidden && !$("key-row").hidden && $("error").hidden);
    assert.strictEqual(document.activeElement, $("key"));
    const enter = async (key) => { // what a browser does for Enter in a field that was changed
      $("key").value = key;
      $("key").fire("change");
      $("form").fire("submit");
      await settled();
    };
    await enter("wrong");
    assert.match($("error").textContent, /does not know this key/);
    await enter("right");
    assert.ok(!$("fields").hidden && $("error").hidden && $("chat").checked);
    assert.strictEqual(asked.length, 0); // the sample prompt of the other kind was not sent
    assert.deepStrictEqual([$("prompt").value, $("temperature").value, $("top_p").value], ["", 0.2, 0.95]);
    $("prompt").value = "my question";
    refuse = true; // the key was withdrawn
    $("form").fire("submit");
    await settled();
    assert.strictEqual($("prompt").value, "my question");
    assert.ok(!$("key-row").hidden && !$("error").hidden);
    refuse = false;
    $("key").fire("change");
    $("form").fire("submit"); // at once, before the models are known again
    await settled();
    assert.deepStrictEqual(asked.map(([path, body]) => [path, body.model, body.messages[0].content]), [["/v1/chat/completions", "m", "my question"]]);
  },

  async "a prompt that was written before the models were known is sent to them"() {
    const asked = [];
    let go;
    const late = new Promise((resolve) => { go = resolve; });
    const { $ } = browser(html, async (path, options) => {
      if (path === "/v1/models") { await late; return response(200, ['{"data": [{"id": "m", "parlay": {"methods": ["ngram"], "prefers_chat": true}}]}']); }
      asked.push([path, JSON.parse(options.body).model]);
      return response(200, ['data: {"choices": [{"delta": {"content": "yes"}}]}\n\ndata: [DONE]\n\n']);
    });
    $("prompt").value = "early";
    $("form").fire("submit");
    $("form").fire("submit"); // impatiently
    await settled();
    assert.strictEqual(asked.length, 0);
    go();
    await settled();
    assert.deepStrictEqual(asked, [["/v1/chat/completions", "m"]]);
    assert.strictEqual($("history").children[0].textContent, "Youearly");
  },

  async "Enter sends a message, and begins a line in a prompt or on a phone"() {
    for (const [chat, touch, more, sent] of [[true, false, {}, 1], [true, false, { shiftKey: true }, 0], [true, false, { isComposing: true }, 0],
      [false, false, {}, 0], [true, true, {}, 0], [false, false, { ctrlKey: true }, 1]]) {
      let asked = 0;
      const { $, document } = browser(html, async (path) => {
        if (path === "/v1/models") return response(200, ['{"data": [{"id": "m"}]}']);
        asked++;
        return response(200, ['data: {"choices": [{"text": "a", "delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n']);
      }, touch);
      await settled();
      $("chat").checked = chat;
      $("chat").fire("change");
      document.fire("keydown", { key: "Enter", target: $("prompt"), ...more });
      await settled();
      assert.strictEqual(asked, sent, JSON.stringify([chat, touch, more]));
      assert.strictEqual($("send-keys").hidden, !chat);
    }
  },

  async "what goes wrong is said"() {
    const cases = [
      [() => response(401, ['{"error": {"message": "who"}}']), /^401: who Enter the API key/],
      [() => response(200, ['data: {"choices": [{"text": "a"}]}\n\n']), /broke off/],
      [() => response(200, ['data: {"error": {"message": "engine gone"}}\n\n']), /^engine gone$/],
      [() => response(200, ["data: <html>\n\n"]), /no answer: <html>/],
      [() => { throw new TypeError("failed to fetch"); }, /^The connection to the server failed/],
    ];
    for (const [answer, words] of cases) {
      const { $, document } = browser(html, async (path) => (path === "/v1/models" ? response(200, ['{"data": [{"id": "m"}]}']) : answer()));
      await settled();
      $("form").fire("submit");
      await settled();
      assert.match($("error").textContent, words);
      assert.strictEqual($("error").hidden, false);
      assert.strictEqual($("status").textContent, "Failed.");
      assert.ok(!$("run").disabled);
      if (words.source.startsWith("^401")) assert.strictEqual(document.activeElement, $("key"));
    }
  },

  async "stopping"() {
    const { $, document } = browser(html, unfinished("a"));
    await settled();
    $("form").fire("submit");
    await settled();
    document.fire("keydown", { key: "Escape" });
    await settled();
    assert.strictEqual($("status").textContent, "Stopped.");
    assert.strictEqual($("error").hidden, true);
    assert.strictEqual($("first").textContent, "a");
    assert.ok(!$("run").disabled);
  },

  async "a conversation stays whole where an answer is stopped or fails"() {
    const ends = [["whole"], ["half"], []], sent = [];
    const { $, document } = browser(html, async (path, options) => {
      if (path !== "/v1/models") sent.push(JSON.parse(options.body).messages.map((m) => m.content));
      const [text] = path === "/v1/models" ? [] : ends.shift();
      if (text === "half") return unfinished(text)(path, options);
      if (text) return response(200, [`data: {"choices": [{"delta": {"content": "${text}"}}]}\n\ndata: [DONE]\n\n`]);
      return path === "/v1/models" ? response(200, ['{"data": [{"id": "m"}]}']) : response(400, ["too long"]);
    });
    const seen = () => [...$("history").children.map((c) => c.textContent), $("first").textContent];
    const send = async (text) => { $("prompt").value = text; $("form").fire("submit"); await settled(); };
    await settled();
    $("chat").checked = true;
    $("chat").fire("change");
    await send("one");
    await send("two");
    assert.deepStrictEqual(seen(), ["Youone", "Modelwhole", "Youtwo", "half"]);
    assert.strictEqual($("prompt").value, ""); // the message stands once
    $("prompt").value = "written meanwhile";
    document.fire("keydown", { key: "Escape" });
    await settled();
    assert.deepStrictEqual(seen(), ["Youone", "Modelwhole", "Youtwo", "half"]);
    assert.strictEqual($("prompt").value, "written meanwhile");
    await send("three");
    assert.deepStrictEqual(sent.at(-1), ["one", "whole", "two", "half", "three"]);
    assert.deepStrictEqual(seen(), ["Youone", "Modelwhole", "Youtwo", "Modelhalf", ""]);
    assert.strictEqual($("prompt").value, "three"); // to be sent again
  },
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    try { await test(); console.log(`ok ${name}`); } catch (error) {
      console.log(`failed ${name}: ${error.stack}`);
      process.exitCode = 1;
    }
  }
})();
