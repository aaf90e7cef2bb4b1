//! What a tool is, what it may touch, and every built-in tool.
//!
//! The ground floor of toolwarden: a tool author needs no other crate. Nothing here knows actors, sessions or
//! policy, so a tool cannot go round governance even by mistake: what must go up (a nested call, a child run)
//! goes through the ports that its [`context::ToolContext`] was given.

pub mod canonical_json;

pub mod cancellation;
pub mod digest;
pub mod ids;
pub mod json_depth;
pub mod pagination;
pub mod screen_text;
pub mod text;
pub mod workspace_path;

pub mod exact_number;
pub mod json_text;

pub mod json_tree;

pub mod effects;
pub mod outcome;

pub mod web;

pub mod download;

pub mod capture;
pub mod declaration;
pub mod schema;
pub mod workspace;

pub mod offer;

pub mod background;
pub mod generation;

pub mod context;

pub mod tool;

pub mod registry;
pub mod search;
pub mod workflow;

pub mod builtin;

pub mod catalog;
