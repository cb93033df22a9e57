// The AI SDK against a server at PARLAY_URL, over chat completions, responses and Anthropic's messages; run by node's own test runner.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

const require = createRequire(`${process.env.CLIENTS}/`);
const { generateText, streamText, Output, tool, isStepCount } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { createOpenAI } = require("@ai-sdk/openai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { z } = require("zod");

const baseURL = `${process.env.PARLAY_URL}/v1`;
const compatible = createOpenAICompatible({ name: "parlay", baseURL, supportsStructuredOutputs: true });
const models = {
  chat: compatible("tiny-code"),
  "OpenAI's chat": createOpenAI({ baseURL, apiKey: "any" }).chat("tiny-code"),
  responses: createOpenAI({ baseURL, apiKey: "any" }).responses("tiny-code"),
  messages: createAnthropic({ baseURL, apiKey: "any" })("tiny-code"),
};
const settings = { temperature: 0, maxOutputTokens: 300, maxRetries: 0 };
const prompt = "How is the weather in Paris?";
const city = z.enum(["Paris", "Rome"]);

const streamed = async (asked) => {
  const result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  return { text, output: asked.output && (await result.output), steps: await result.steps, warnings: await result.warnings };
};
const ways = { whole: generateText, streamed };

// What the types of zod's documents become; each answer is parsed by zod itself.
const schemas = {
  formats: z.object({ id: z.uuid(), day: z.iso.date() }),
  cuid: z.object({ id: z.cuid2().max(5), name: z.string().startsWith("a").max(5) }),
  union: z.discriminatedUnion("kind", [z.object({ kind: z.literal("p"), x: z.literal(1) }), z.object({ kind: z.literal("q") })]),
  nullable: z.object({ a: z.enum(["x"]).nullable(), b: z.tuple([z.boolean(), z.literal(2)]) }),
};

// A random model may write names for ever, so that it is enough that these are served.
const open = {
  record: z.object({ rating: z.record(z.enum(["a", "b"]), z.int().min(0).max(9)) }),
  "any names": z.record(z.string(), z.number()),
};

for (const [protocol, model] of Object.entries(models)) {
  for (const [way, ask] of Object.entries(ways)) {
    test(`${protocol}, ${way}: text`, async () => {
      const { text } = await ask({ model, prompt, ...settings, maxOutputTokens: 30 });
      assert.ok(text.length > 0);
    });

    test(`${protocol}, ${way}: a tool in a loop, and an answer in words`, async () => {
      const asked = [];
      const weather = tool({
        description: "The weather in a city.",
        inputSchema: z.object({ city }),
        execute: async (input) => { asked.push(input.city); return "sunny"; },
      });
      const { steps } = await ask({
        model, prompt, tools: { weather }, ...settings, maxOutputTokens: 60, stopWhen: isStepCount(3),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? "required" : "none" }),
      });
      assert.ok(asked.length >= 2 && asked.every((one) => ["Paris", "Rome"].includes(one)), JSON.stringify(asked));
      assert.equal(steps.length, 3);
      assert.equal(steps[2].toolCalls.length, 0);
    });
  }

  for (const [name, schema] of Object.entries(schemas)) {
    test(`${protocol}: ${name}`, async () => {
      const { output } = await generateText({ model, prompt, ...settings, output: Output.object({ schema }) });
      schema.parse(output);
    });
  }

  for (const [name, schema] of Object.entries(open)) {
    test(`${protocol}: ${name}`, async () => {
      try {
        await generateText({ model, prompt, ...settings, output: Output.object({ schema }) });
      } catch (error) {
        assert.equal(error.name, "AI_NoObjectGeneratedError", error.message);
      }
    });
  }

  test(`${protocol}: a tool, required, beside a form of the answer`, async () => {
    const weather = tool({ inputSchema: z.object({ city }) });
    const { toolCalls } = await generateText({
      model, prompt, ...settings, tools: { weather }, toolChoice: "required",
      output: Output.object({ schema: z.object({ answer: z.enum(["yes", "no"]) }) }),
    });
    assert.ok(toolCalls.length >= 1 && toolCalls.every((call) => call.toolName === "weather"));
  });
}

test("an enumeration ends", async () => {
  for (let seed = 0; seed < 8; seed++) {
    const { output } = await generateText({
      model: models.chat, prompt, ...settings, temperature: 1, seed, output: Output.choice({ options: ["a", "b"] }),
    });
    assert.ok(["a", "b"].includes(output));
  }
});
