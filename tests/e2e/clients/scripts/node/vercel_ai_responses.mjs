// Vercel ai with the defaults of @ai-sdk/openai, responses: text and its stream, objects, tools.
import assert from 'node:assert';
import { createOpenAI } from '@ai-sdk/openai';
import {
  embed, generateObject, generateText, stepCountIs, streamObject, streamText, tool,
} from 'ai';
import { z } from 'zod';

const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY,
});
const model = openai(process.env.OPENAI_MODEL);
const recipe = z.object({ name: z.string(), kind: z.enum(['soup', 'cake']) });
const tools = {
  weather: tool({
    description: 'Get the weather of a city.',
    inputSchema: z.object({ city: z.string().max(40) }),
    execute: async ({ city }) => `It is sunny in ${city}.`,
  }),
};
const prompt = 'What is the weather in Paris?';

const answer = await generateText({ model, prompt, system: 'Be brief.', maxOutputTokens: 40 });
assert.ok(answer.usage.outputTokens > 0);

const told = streamText({ model, prompt, maxOutputTokens: 40 });
let text = '';
for await (const part of told.textStream) text += part;
assert.strictEqual(await told.text, text);

const { object } = await generateObject({ model, schema: recipe, prompt: 'A recipe.' });
recipe.parse(object);
const streamed = streamObject({ model, schema: recipe, prompt: 'A recipe.' });
for await (const _ of streamed.partialObjectStream);
recipe.parse(await streamed.object);

const looped = await generateText({
  model, tools, prompt, maxOutputTokens: 4000, stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'auto' }),
});
assert.ok(looped.steps[0].toolCalls.length >= 1);
assert.strictEqual(looped.steps.length, 2);

const called = streamText({
  model, tools, prompt, toolChoice: { type: 'tool', toolName: 'weather' },
});
await called.consumeStream();
assert.strictEqual((await called.toolCalls)[0].toolName, 'weather');

const embedding = openai.embedding(process.env.OPENAI_MODEL);
assert.ok((await embed({ model: embedding, value: 'a king' })).embedding.length > 0);
