// OpenAI's npm client against a server at PARLAY_URL; run by node's own test runner. Exact tokens are compared with
// the offline engine's in test_npm.py, which gives them as PARLAY_EXPECTED.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

const require = createRequire(`${process.env.CLIENTS}/`);
const OpenAI = require("openai");
const url = process.env.PARLAY_URL;
const expected = JSON.parse(process.env.PARLAY_EXPECTED);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0, timeout: 60_000 });
const model = "tiny-code";
const plain = { speculative: { enabled: false } };
const { prompt, ids, messages } = expected;

const collect = async (stream) => { const chunks = []; for await (const chunk of stream) chunks.push(chunk); return chunks; };
const refused = (call, kind, status, more = {}) => assert.rejects(call, (error) => {
  assert.ok(error instanceof OpenAI[kind], `${error.name}: ${error.message}`);
  assert.equal(error.status, status);
  for (const [key, value] of Object.entries(more)) assert.equal(error[key], value);
  return true;
});

test("models", async () => {
  const names = [];
  for await (const one of client.models.list()) names.push(one.id);
  assert.deepEqual(names, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
  await refused(client.models.retrieve("other"), "NotFoundError", 404, { code: "model_not_found", param: "model" });
});

for (const [name, { asked, texts }] of Object.entries(expected.completions)) {
  test(`completions: ${name}`, async () => {
    for (const more of [{}, plain]) {
      for (const sent of [prompt, [prompt], ids, [ids]]) {
        const whole = await client.completions.create({ model, prompt: sent, ...asked, ...more });
        assert.deepEqual(whole.choices.map((choice) => choice.text), texts);
        assert.equal(whole.usage.prompt_tokens, ids.length);
        const streamed = texts.map(() => "");
        const body = { model, prompt: sent, ...asked, ...more, stream: true, stream_options: { include_usage: true } };
        const chunks = await collect(await client.completions.create(body));
        for (const chunk of chunks) for (const choice of chunk.choices) streamed[choice.index] += choice.text;
        assert.deepEqual(streamed, texts);
        assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
      }
    }
  });
}

test("echo and log-probabilities", async () => {
  const asked = { model, prompt, echo: true, logprobs: 2, max_tokens: 0, temperature: 0 };
  const [choice] = (await client.completions.create(asked)).choices;
  assert.equal(choice.text, prompt);
  assert.equal(choice.logprobs.tokens.join(""), prompt);
  assert.deepEqual(choice.logprobs.token_logprobs, expected.prompt_logprobs);
  const stop = await client.completions.create({ model, prompt, stop: ["\n"], max_tokens: 60, temperature: 0 });
  assert.ok(!stop.choices[0].text.includes("\n"));
});

for (const [name, { asked, texts }] of Object.entries(expected.chats)) {
  test(`chat: ${name}`, async () => {
    for (const more of [{}, plain]) {
      const body = { model, messages, ...asked, ...more };
      const whole = await client.chat.completions.create({ ...body, logprobs: true, top_logprobs: 2 });
      assert.deepEqual(whole.choices.map((choice) => choice.message.content), texts);
      assert.ok(whole.choices[0].logprobs.content.every((entry) => entry.top_logprobs.length === 2));
      const streamed = texts.map(() => "");
      for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
        for (const choice of chunk.choices) streamed[choice.index] += choice.delta.content ?? "";
      }
      assert.deepEqual(streamed, texts);
    }
  });
}

test("the streaming helper", async () => {
  const { asked, texts } = expected.chats.greedy;
  const deltas = [];
  const stream = client.chat.completions.stream({ model, messages, ...asked, stream_options: { include_usage: true } });
  stream.on("content", (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  assert.equal(deltas.join(""), texts[0]);
  assert.equal(await stream.finalContent(), texts[0]);
  assert.ok(final.usage.completion_tokens_details.accepted_prediction_tokens >= 0);
});

test("a predicted output", async () => {
  const { asked, texts } = expected.chats.greedy;
  const prediction = { type: "content", content: texts[0] };
  const made = await client.chat.completions.create({ model, messages, ...asked, prediction });
  assert.equal(made.choices[0].message.content, texts[0]);
  assert.ok(made.usage.completion_tokens_details.accepted_prediction_tokens > 0);
});

test("forms of answers", async () => {
  const schema = { type: "object", properties: { a: { enum: [1, 2] } }, required: ["a"], additionalProperties: false };
  const form = { type: "json_schema", json_schema: { name: "x", strict: true, schema } };
  const body = { model, messages, temperature: 1, seed: 5, frequency_penalty: 2, max_tokens: 200 };
  const made = await client.chat.completions.parse({ ...body, response_format: form });
  assert.ok([1, 2].includes(JSON.parse(made.choices[0].message.content).a));
  const free = await client.chat.completions.create({ ...body, response_format: { type: "json_object" } });
  assert.ok(free.choices[0].message.content.trimStart().startsWith("{"));
});

test("tools", async () => {
  const parameters = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"],
    additionalProperties: false };
  const tools = [{ type: "function", function: { name: "weather", parameters } }];
  const body = { model, messages, tools, temperature: 0, max_tokens: 100 };
  for (const choice of ["required", { type: "function", function: { name: "weather" } }]) {
    const asked = { ...body, tool_choice: choice, parallel_tool_calls: false };
    const [whole] = (await client.chat.completions.create(asked)).choices;
    const [call] = whole.message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
    const final = await client.chat.completions.stream(asked).finalChatCompletion();
    const [again] = final.choices[0].message.tool_calls;
    assert.equal(again.function.name, "weather");
    assert.deepEqual(JSON.parse(again.function.arguments), JSON.parse(call.function.arguments));
  }
  for (const [choice, text] of [["auto", expected.told], ["none", expected.chats.greedy.texts[0]]]) {
    const [free] = (await client.chat.completions.create({ ...body, ...expected.chats.greedy.asked, tool_choice: choice })).choices;
    assert.equal(free.message.content, text);
  }
  const ran = [];
  const weather = { type: "function", function: { name: "weather", parameters, parse: JSON.parse,
    function: ({ city }) => { ran.push(city); return "sunny"; } } };
  const runner = client.chat.completions.runTools({ ...body, tools: [weather], tool_choice: "required" },
    { maxChatCompletions: 1 });
  await runner.done().catch(() => {});
  assert.ok(ran.length >= 1 && ran.every((city) => ["Paris", "Rome"].includes(city)));
});

const city = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false };
const known = (text) => assert.ok(["Paris", "Rome"].includes(JSON.parse(text).city), text);

for (const streamed of [false, true]) {
  test(`chat: three turns with a tool, ${streamed ? "streamed" : "whole"}`, async () => {
    const tools = [{ type: "function", function: { name: "weather", parameters: city } }];
    const turns = [{ role: "user", content: "How is the weather in Rome?" }];
    for (const choice of [{ type: "function", function: { name: "weather" } }, "required", "none"]) {
      const asked = { model, messages: turns, tools, tool_choice: choice, parallel_tool_calls: false, temperature: 0, max_tokens: 60 };
      const made = streamed ? await client.chat.completions.stream(asked).finalChatCompletion() : await client.chat.completions.create(asked);
      const { message } = made.choices[0];
      turns.push(message);
      if (choice === "none") {
        assert.ok(!message.tool_calls && typeof message.content === "string");
      } else {
        known(message.tool_calls[0].function.arguments);
        turns.push({ role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" });
      }
    }
    assert.equal(turns.length, 6);
  });

  test(`responses: three turns with a tool, ${streamed ? "streamed" : "whole"}`, async () => {
    const tools = [{ type: "function", name: "weather", parameters: city, strict: true }];
    let input = [{ role: "user", content: "How is the weather in Rome?" }], previous_response_id = null;
    for (const choice of [{ type: "function", name: "weather" }, "required", "none"]) {
      const asked = { model, input, previous_response_id, tools, tool_choice: choice, parallel_tool_calls: false, temperature: 0,
        max_output_tokens: 60 };
      const made = streamed ? await client.responses.stream(asked).finalResponse() : await client.responses.create(asked);
      previous_response_id = made.id;
      if (choice === "none") {
        assert.equal(made.output.at(-1).type, "message");
      } else {
        const call = made.output.at(-1);
        known(call.arguments);
        input = [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }];
      }
    }
    const kept = await client.responses.retrieve(previous_response_id);
    assert.equal(kept.id, previous_response_id);
    await client.responses.delete(previous_response_id);
    await refused(client.responses.retrieve(previous_response_id), "NotFoundError", 404, { code: "response_not_found" });
  });
}

test("errors are of the client's own types", async () => {
  const asked = { model, prompt, max_tokens: 2 };
  await refused(client.completions.create({ ...asked, temperature: -1 }), "BadRequestError", 400, { param: "temperature" });
  await refused(client.completions.create({ ...asked, temperature: -1, stream: true }), "BadRequestError", 400);
  await refused(client.completions.create({ ...asked, top_kk: 1 }), "BadRequestError", 400, { param: "top_kk" });
  await refused(client.chat.completions.create({ model, messages: [] }), "BadRequestError", 400, { param: "messages" });
  await refused(client.completions.create({ ...asked, model: "gpt-4" }), "NotFoundError", 404);
  await refused(client.embeddings.create({ model, input: "x" }), "NotFoundError", 404);
  const stranger = new OpenAI({ baseURL: `${process.env.PARLAY_KEYED_URL}/v1`, apiKey: "wrong", maxRetries: 0 });
  await refused(stranger.completions.create(asked), "AuthenticationError", 401, { code: "invalid_api_key" });
  const known = new OpenAI({ baseURL: `${process.env.PARLAY_KEYED_URL}/v1`, apiKey: process.env.PARLAY_KEY });
  assert.equal((await known.completions.create(asked)).choices.length, 1);
  const nobody = new OpenAI({ baseURL: "http://127.0.0.1:9/v1", apiKey: "any", maxRetries: 0 });
  await assert.rejects(nobody.models.list(), OpenAI.APIConnectionError);
});

test("a stream that is aborted ends on the server too", async () => {
  const running = async () => {
    const text = await (await fetch(`${url}/metrics`)).text();
    return Number(/^vllm:num_requests_running\{[^}]*\} (\S+)/m.exec(text)[1]);
  };
  const body = { model, prompt, max_tokens: 1900, ignore_eos: true, stream: true };
  const stream = await client.completions.create(body);
  let events = 0;
  for await (const _ of stream) if (++events === 3) break; // leaving the loop aborts it
  const controller = new AbortController();
  const other = await client.completions.create(body, { signal: controller.signal });
  await other[Symbol.asyncIterator]().next();
  controller.abort();
  for (let i = 0; i < 100 && (await running()) > 0; i++) await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(await running(), 0);
});
