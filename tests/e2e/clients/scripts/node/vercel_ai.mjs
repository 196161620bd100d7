// Vercel ai on chats: generateObject, streamObject, generateText and streamText with tools.
import assert from 'node:assert';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { createOpenAI } from '@ai-sdk/openai';
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai';
import { z } from 'zod';

const baseURL = process.env.OPENAI_BASE_URL;
const apiKey = process.env.OPENAI_API_KEY;
const name = process.env.OPENAI_MODEL;
const models = {
  compatible: createOpenAICompatible({
    name: 'quire', baseURL, apiKey, supportsStructuredOutputs: true, includeUsage: true,
  })(name),
  openai: createOpenAI({ baseURL, apiKey }).chat(name),
};
const recipe = z.object({
  name: z.string(),
  minutes: z.number().int(),
  kind: z.enum(['soup', 'cake']),
});
const tools = {
  weather: tool({
    description: 'Get the weather of a city.',
    inputSchema: z.object({ city: z.string().max(40), unit: z.enum(['celsius', 'fahrenheit']) }),
    execute: async ({ city, unit }) => `20 degrees ${unit} in ${city}`,
  }),
};

for (const [label, model] of Object.entries(models)) {
  const { object } = await generateObject({ model, schema: recipe, prompt: 'A recipe.' });
  recipe.parse(object);

  const streamed = streamObject({ model, schema: recipe, prompt: 'A recipe.' });
  for await (const _ of streamed.partialObjectStream);
  recipe.parse(await streamed.object);

  const called = await generateText({
    model, tools, toolChoice: 'required', prompt: 'What is the weather in Paris?',
  });
  assert.strictEqual(called.toolCalls[0].toolName, 'weather', label);
  assert.strictEqual(called.toolResults.length, called.toolCalls.length, label);

  const looped = await generateText({
    model, tools, prompt: 'What is the weather in Paris?', maxOutputTokens: 4000,
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'auto' }),
    stopWhen: stepCountIs(2),
  });
  assert.ok(looped.steps[0].toolCalls.length >= 1, label);
  assert.strictEqual(looped.steps.length, 2, label);

  const stream = streamText({
    model, tools, toolChoice: { type: 'tool', toolName: 'weather' }, prompt: 'Weather in Rome?',
  });
  await stream.consumeStream();
  const calls = await stream.toolCalls;
  assert.strictEqual(calls[0].toolName, 'weather', label);
}
