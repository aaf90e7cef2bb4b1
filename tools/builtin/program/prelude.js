// What a script finds when it begins: ctx, console, a clock and random numbers that can be replayed, and refusals
// with a reason where other runtimes have files, timers and the network. It runs before the script and keeps the
// functions that it needs, so that a script which changes built-in objects harms itself alone.
// No parenthesis stands around it: the engine would read all of it twice, the first time in search of an arrow.
0, function (host, now, random, log) {
  "use strict";
  const { stringify } = JSON;
  const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf, prototype: objectPrototype } = Object;
  const { construct, apply, ownKeys } = Reflect;
  const tagOf = objectPrototype.toString;
  const toWellFormed = String.prototype.toWellFormed;
  const text = String;
  const Failure = Error;
  const TypeFailure = TypeError;

  const RESULT = 0, TEXT = 1, FILE = 2, PATHS = 3;

  // --- no code out of text -------------------------------------------------------------------------------------
  const refusing = (name, instead) => {
    const refused = function () { throw new TypeFailure(`${name} is not available in scripts: ${instead}`); };
    defineProperty(refused, "name", { value: name });
    return refused;
  };
  const noCode = refusing("Function", "write the code out in the script");
  const functionPrototype = getPrototypeOf(function () {});
  noCode.prototype = functionPrototype;
  for (const kind of [function () {}, async function () {}, function* () {}, async function* () {}]) {
    defineProperty(getPrototypeOf(kind), "constructor", { value: noCode, writable: false, configurable: false });
  }
  const global = globalThis;
  const put = (name, value) => defineProperty(global, name, { value, writable: true, configurable: true });
  put("Function", noCode);
  put("eval", refusing("eval", "write the code out in the script"));
  put("fetch", refusing("fetch", "call a tool such as ctx.tools.web_fetch"));
  put("require", refusing("require", "a script is one file; use ctx for files and commands"));
  for (const name of ["WebSocket", "Worker", "XMLHttpRequest"]) {
    put(name, refusing(name, "scripts reach the world through the tools of ctx only"));
  }
  for (const name of ["setTimeout", "setInterval", "setImmediate"]) {
    put(name, refusing(name, "there are no timers; await a tool call instead"));
  }

  // --- time and chance come from the host ----------------------------------------------------------------------
  defineProperty(Math, "random", { value: random, writable: true, configurable: true });
  const Clock = Date;
  const HostDate = function Date(...parts) {
    if (new.target === undefined) return text(new Clock(now()));
    return construct(Clock, parts.length === 0 ? [now()] : parts, new.target);
  };
  HostDate.prototype = Clock.prototype;
  defineProperty(HostDate, "length", { value: 7 });
  for (const name of ["parse", "UTC"]) {
    defineProperty(HostDate, name, { value: Clock[name], writable: true, configurable: true });
  }
  defineProperty(HostDate, "now", { value: () => now(), writable: true, configurable: true });
  defineProperty(Clock.prototype, "constructor", { value: HostDate, writable: true, configurable: true });
  put("Date", HostDate);

  // --- console -------------------------------------------------------------------------------------------------
  const shown = (value) => {
    switch (typeof value) {
      case "string": return value;
      case "bigint": return `${value}n`;
      case "function": return `[function ${value.name || "without a name"}]`;
      case "object": break;
      default: return text(value);
    }
    if (value === null) return "null";
    if (value instanceof Failure) return `${value.name}: ${value.message}`;
    try {
      const plain = stringify(value, (_, part) => (typeof part === "bigint" ? `${part}n` : part));
      return plain === undefined ? apply(tagOf, value, []) : plain;
    } catch {
      return apply(tagOf, value, []);
    }
  };
  let open = true;
  const printer = (mark) => (...values) => {
    if (!open) { log("", true); return; }
    let line = mark;
    for (let at = 0; at < values.length; at++) line += (at === 0 ? "" : " ") + shown(values[at]);
    open = log(line, false);
  };
  const nothing = () => {};
  put("console", {
    log: printer(""), info: printer(""), debug: printer(""), table: printer(""), dir: printer(""),
    warn: printer("warning: "), error: printer("error: "), trace: printer("trace: "),
    assert: (holds, ...values) => { if (!holds) printer("assertion failed: ")(...values); },
    group: printer(""), groupEnd: nothing, time: nothing, timeEnd: nothing,
  });

  // --- ctx -----------------------------------------------------------------------------------------------------
  const options = (given, short) => {
    if (given === undefined || given === null) return {};
    if (typeof given === "string") return { [short]: given };
    if (typeof given !== "object") throw new TypeFailure(`options must be an object, not a ${typeof given}`);
    return { ...given };
  };
  const searching = (mode, query, given) => {
    if (typeof query === "object" && query !== null) {
      const { query: words, pattern, ...rest } = query;
      return searching(mode, words ?? pattern, { ...rest, ...options(given, "path") });
    }
    const asked = options(given, "path");
    if (asked.glob !== undefined) { asked.include ??= asked.glob; delete asked.glob; }
    if (asked["-i"] !== undefined) { asked.case_sensitive ??= !asked["-i"]; delete asked["-i"]; }
    return { mode: mode ?? asked.mode ?? "grep", ...asked, query };
  };
  const command = (line, given) =>
    typeof line === "object" && line !== null ? line : { ...options(given, "cwd"), command: line };
  // A failure is told where the script asked, not where the answer came in.
  const located = async (asked, at) => {
    try {
      return await asked;
    } catch (error) {
      if (error instanceof Failure) error.stack = at.stack;
      throw error;
    }
  };
  const pages = async (asked, at) => {
    const paths = [];
    const one = asked.limit !== undefined || asked.cursor !== undefined;
    asked.limit ??= 1000;
    for (;;) {
      const page = await located(host(PATHS, "search", asked), at);
      for (let i = 0; i < page.paths.length; i++) paths[paths.length] = page.paths[i];
      if (one || page.cursor === null) return paths;
      asked.cursor = page.cursor;
    }
  };
  const ctx = {
    tool: (name, asked) => host(RESULT, name, asked),
    tools: new Proxy({}, {
      get: (_, name) => (typeof name === "string" && name !== "then" ? (asked) => host(RESULT, name, asked) : undefined),
    }),
    read: (path, given) =>
      host(RESULT, "read", typeof path === "object" && path !== null ? path : { ...options(given), file_path: path }),
    readFile: (path, given) => {
      const { limit, offset } = options(given);
      return located(host(FILE, "read", { file_path: path, offset, limit }), new Failure(""));
    },
    search: (query, given) => host(TEXT, "search", searching(undefined, query, given)),
    grep: (query, given) => host(TEXT, "search", searching("grep", query, given)),
    bm25: (query, given) => host(TEXT, "search", searching("bm25", query, given)),
    glob: (query, given) => pages(searching("glob", query, given), new Failure("")),
    ls: (path, given) =>
      host(TEXT, "ls", typeof path === "object" && path !== null ? path : { ...options(given), path }),
    bash: (line, given) => host(TEXT, "bash", command(line, given)),
    verify: (line, given) => host(TEXT, "bash", command(line, given)),
    git: (asked) => host(RESULT, "git", typeof asked === "string" ? { command: asked } : asked),
    webSearch: (asked) => host(RESULT, "web_search", typeof asked === "string" ? { query: asked } : asked),
  };
  Object.freeze(ctx);

  // --- what a script of a workflow may look at -----------------------------------------------------------------
  // A run can be long, and is decided on again and again: a step is made when it is looked at, and no other one.
  const lazily = (inputs, has, names, step, history) => {
    const made = {};
    const own = (name) => getOwnPropertyDescriptor(made, name);
    const find = (name) => {
      if (typeof name === "string" && own(name) === undefined && has(name)) {
        defineProperty(made, name, { value: step(name), writable: true, enumerable: true, configurable: true });
      }
    };
    const steps = new Proxy(made, {
      get: (target, name) => { find(name); return target[name]; },
      has: (target, name) => { find(name); return name in target; },
      ownKeys: () => {
        const all = names(), added = ownKeys(made);
        for (let at = 0; at < added.length; at++) {
          if (typeof added[at] !== "string" || !has(added[at])) all[all.length] = added[at];
        }
        return all;
      },
      getOwnPropertyDescriptor: (_, name) => {
        const found = own(name);
        if (found !== undefined || typeof name !== "string" || !has(name)) return found;
        return { get: () => steps[name], enumerable: true, configurable: true };
      },
    });
    defineProperty(inputs, "steps", { value: steps, writable: true, enumerable: true, configurable: true });
    const keep = (value) =>
      defineProperty(inputs, "history", { value, writable: true, enumerable: true, configurable: true });
    defineProperty(inputs, "history", {
      get: () => { const all = history(); keep(all); return all; }, set: keep, enumerable: true, configurable: true,
    });
    return inputs;
  };

  return {
    ctx,
    lazily,
    objectPrototype,
    failure: (message) => new Failure(message),
    wellFormed: (value) => apply(toWellFormed, value, []),
    tagOf: (value) => apply(tagOf, value, []),
    // Only what 64 bits hold: the digits of a huge number take longer to find than anybody waits.
    decimal: (value) => (value > 18446744073709551615n || value < -9223372036854775808n ? null : text(value)),
    define: (object, name, value) =>
      defineProperty(object, name, { value, writable: true, enumerable: true, configurable: true }),
    readable: (reason) => {
      if (typeof reason !== "object" || reason === null) return `${shown(reason)}`;
      const { name, message } = reason;
      return message === undefined ? shown(reason) : `${name === undefined ? "Error" : name}: ${message}`;
    },
  };
}
