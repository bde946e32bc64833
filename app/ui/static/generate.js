// Asks the API for answers, and takes them in as they come.

import { errorText, keys, serverEvents } from "./feed.js";

/** Removes what is not given, so that the server's defaults hold. */
export function tidy(body) {
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false && !(Array.isArray(value) && !value.length)));
}

export function pathOf(body) {
  return body.messages ? "v1/chat/completions" : "v1/completions";
}

/** What has come of a request so far. */
export class Answer {
  constructor(body) {
    this.body = body;
    this.choices = new Map();
    this.beams = null;
    this.usage = null;
    this.error = "";
    this.startedMs = performance.now();
    this.firstMs = 0;
    this.endedMs = 0;
    this.chunks = [];
  }

  choice(index) {
    if (!this.choices.has(index)) this.choices.set(index, { index, text: "", tokens: [], reason: null });
    return this.choices.get(index);
  }

  take(chunk) {
    if (this.chunks.length < 400) this.chunks.push(chunk);
    if (chunk.error) this.error = chunk.error.message;
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.beams) this.beams = chunk.beams;
    for (const part of chunk.choices ?? []) {
      const choice = this.choice(part.index);
      const text = part.text ?? part.delta?.content ?? part.message?.content ?? "";
      if (text && !this.firstMs) this.firstMs = performance.now();
      choice.text += text;
      choice.reason = part.finish_reason ?? choice.reason;
      choice.tokens.push(...tokensOf(part.logprobs));
    }
  }

  get sorted() { return [...this.choices.values()].sort((a, b) => a.index - b.index); }
}

/** Tokens with their log-probabilities and alternatives, in both shapes of the API. */
export function tokensOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) return logprobs.content.map((token) => ({ text: token.token, logprob: token.logprob, others: (token.top_logprobs ?? []).map((other) => [other.token, other.logprob]) }));
  return (logprobs.tokens ?? []).map((text, i) => ({ text, logprob: logprobs.token_logprobs[i], others: Object.entries(logprobs.top_logprobs?.[i] ?? {}).sort((a, b) => b[1] - a[1]) }));
}

/** Streams an answer; `onChange` is called whenever something has come. */
export async function generate(body, onChange, signal) {
  const answer = new Answer(body);
  const streamed = body.stream !== false;
  const sent = streamed ? { ...body, stream: true, stream_options: { include_usage: true } } : body;
  try {
    const response = await fetch(pathOf(body), { method: "POST", headers: { "content-type": "application/json", ...keys.headers("api") }, body: JSON.stringify(sent), signal });
    if (!response.ok) {
      answer.error = response.status === 401 ? "The API needs a key: enter yours under Keys." : await errorText(response);
    } else if (!streamed) {
      answer.take(await response.json());
    } else {
      for await (const [, data] of serverEvents(response)) {
        if (data === "[DONE]") break;
        answer.take(JSON.parse(data));
        onChange(answer);
      }
    }
  } catch (error) {
    answer.error = signal?.aborted ? "Stopped." : "The server cannot be reached; what had come is kept.";
  }
  answer.endedMs = performance.now();
  onChange(answer);
  return answer;
}

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function asCurl(body) {
  const key = keys.api ? ` -H "authorization: Bearer $PAGODA_KEY"` : "";
  return `curl -N ${new URL(pathOf(body), document.baseURI)} -H 'content-type: application/json'${key} -d ${quote(JSON.stringify({ ...body, stream: true }))}`;
}

export function asPython(body) {
  const known = new Set(["model", "prompt", "messages", "max_tokens", "temperature", "top_p", "n", "seed", "stop", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "best_of", "echo"]);
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !known.has(name) && name !== "stream"));
  const python = (value) => JSON.stringify(value).replace(/\btrue\b/g, "True").replace(/\bfalse\b/g, "False").replace(/\bnull\b/g, "None");
  const fields = Object.entries(body).filter(([name]) => known.has(name)).map(([name, value]) => `    ${name}=${typeof value === "string" ? JSON.stringify(value) : python(value)},`);
  if (Object.keys(extra).length) fields.push(`    extra_body=${python(extra)},`);
  const [call, show] = body.messages ? ["chat.completions", "chunk.choices[0].delta.content or \"\""] : ["completions", "chunk.choices[0].text"];
  return `from openai import OpenAI\n\nclient = OpenAI(base_url="${new URL("v1", document.baseURI)}", api_key="${keys.api ? "YOUR_KEY" : "none"}")\nstream = client.${call}.create(\n${fields.join("\n")}\n    stream=True,\n)\nfor chunk in stream:\n    if chunk.choices:\n        print(${show}, end="", flush=True)\n`;
}
