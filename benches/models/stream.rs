//! Streams that are read: for each protocol its events of each kind, and a mixture of them as an answer has it.
//!
//! Words have now and then something escaped in them, as prose with code has, and arguments nearly always, for they are
//! JSON within JSON.

use serde_json::{Value, json};
use toolwarden::models::claude_messages::ClaudeMessages;
use toolwarden::models::openai_chat::OpenAiChat;
use toolwarden::models::openai_responses::OpenAiResponses;
use toolwarden::models::wire::Protocol;

/// Pieces of text and of thought.
const WORDS: [&str; 12] = [
    " some words",
    " the",
    " file",
    ".\n\n",
    " \"quoted\"",
    " naïve",
    " is",
    " read",
    " `fn main()`",
    " and",
    " then",
    "\n- ",
];
/// Pieces of a call's arguments.
const ARGUMENTS: [&str; 10] = [
    "{\"pa",
    "th\": \"src/",
    "models",
    "/wire.rs",
    "\", \"old_",
    "text\": \"let",
    " x = 5;\\n",
    "    foo(",
    "bar)",
    "\"}",
];

/// One protocol.
pub(crate) struct Dialect {
    /// Its name.
    pub(crate) name: &'static str,
    /// Itself.
    pub(crate) protocol: Box<dyn Protocol>,
    /// What stands before all pieces.
    begin: String,
    text: fn(&str) -> String,
    thought: fn(&str) -> String,
    arguments: fn(&str) -> String,
    /// The last word.
    end: String,
}

impl Dialect {
    /// All of them.
    pub(crate) fn all() -> [Self; 3] {
        [chat(), responses(), claude()]
    }

    /// Streams of about this many bytes, by what they consist of.
    pub(crate) fn streams(&self, bytes: usize) -> [(&'static str, String); 5] {
        let of =
            |pieces: &[&str], event: fn(&str) -> String| pieces.iter().map(|piece| event(piece)).collect::<String>();
        let (text, thought) = (of(&WORDS, self.text), of(&WORDS, self.thought));
        let arguments = of(&ARGUMENTS, self.arguments);
        let mixture = [thought.as_str(), &text, &arguments].concat();
        [
            ("same text", (self.text)(" some words")),
            ("text", text),
            ("thought", thought),
            ("arguments", arguments),
            ("mixture", mixture),
        ]
        .map(|(kind, unit)| (kind, [self.begin.as_str(), &unit.repeat(bytes / unit.len()), &self.end].concat()))
    }
}

fn chat() -> Dialect {
    fn chunk(delta: Value, reason: Value) -> String {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason, "logprobs": null});
        let chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [choice]});
        format!("data: {chunk}\n\n")
    }
    let call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "edit", "arguments": ""}});
    Dialect {
        name: "openai_chat",
        protocol: Box::new(OpenAiChat),
        begin: chunk(json!({"tool_calls": [call]}), Value::Null),
        text: |piece| chunk(json!({"content": piece}), Value::Null),
        thought: |piece| chunk(json!({"reasoning_content": piece}), Value::Null),
        arguments: |piece| chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}), Value::Null),
        end: chunk(json!({}), json!("tool_calls")),
    }
}

fn responses() -> Dialect {
    fn event(value: &Value) -> String {
        format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default())
    }
    let call = json!({"type": "function_call", "id": "fc_2", "call_id": "c", "name": "edit", "arguments": ""});
    Dialect {
        name: "openai_responses",
        protocol: Box::new(OpenAiResponses),
        begin: event(
            &json!({"type": "response.output_item.added", "sequence_number": 1, "output_index": 2, "item": call}),
        ),
        text: |piece| {
            event(&json!({"type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1",
                "output_index": 1, "content_index": 0, "delta": piece, "logprobs": []}))
        },
        thought: |piece| {
            event(&json!({"type": "response.reasoning_summary_text.delta", "sequence_number": 1, "item_id": "rs_0",
                "output_index": 0, "summary_index": 0, "delta": piece}))
        },
        arguments: |piece| {
            event(&json!({"type": "response.function_call_arguments.delta", "sequence_number": 1, "item_id": "fc_2",
                "output_index": 2, "delta": piece}))
        },
        end: event(&json!({"type": "response.completed", "response": {"status": "completed"}})),
    }
}

fn claude() -> Dialect {
    fn event(kind: &str, value: &Value) -> String {
        format!("event: {kind}\ndata: {value}\n\n")
    }
    fn delta(index: u64, delta: Value) -> String {
        event("content_block_delta", &json!({"type": "content_block_delta", "index": index, "delta": delta}))
    }
    let blocks = [
        json!({"type": "thinking", "thinking": "", "signature": ""}),
        json!({"type": "text", "text": ""}),
        json!({"type": "tool_use", "id": "c", "name": "edit", "input": {}}),
    ];
    let begin = (0_u64..).zip(&blocks).map(|(index, block)| {
        event("content_block_start", &json!({"type": "content_block_start", "index": index, "content_block": block}))
    });
    let stop = json!({"type": "content_block_stop", "index": 2});
    let last = json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}});
    Dialect {
        name: "claude_messages",
        protocol: Box::new(ClaudeMessages),
        begin: begin.collect(),
        text: |piece| delta(1, json!({"type": "text_delta", "text": piece})),
        thought: |piece| delta(0, json!({"type": "thinking_delta", "thinking": piece})),
        arguments: |piece| delta(2, json!({"type": "input_json_delta", "partial_json": piece})),
        end: [event("content_block_stop", &stop), event("message_delta", &last)].concat(),
    }
}
