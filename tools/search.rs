//! Searching a workspace: walking it, matching lines, matching paths, ranking passages.
//!
//! Everything is read afresh through the files port, in path order (bytes), so a search sees every write that had
//! returned before it started, and the same tree gives the same result.
//!
//! One rule decides what is looked at, in every mode: what an ignore file hides stays out (tracked by git or not),
//! hidden names stay out unless the pattern or the path names them, `.git` always stays out, and a path that is
//! named explicitly is always searched. What stayed out is counted, so that "nothing found" is not taken for
//! "not there".

pub mod stop;

mod definition;
pub mod gram;
pub mod ignore_rules;
pub(crate) mod packed;
pub mod text;

pub mod glob;
pub mod ranked_text;
pub mod requirement;
pub mod rule_stack;
pub mod term_finder;
pub mod terms;

pub mod segment;
pub mod walk;
pub mod words;

pub mod segment_builder;
pub mod word_cache;

pub mod segment_cache;
pub mod tree;

pub mod told_files;

pub mod trigram;

pub mod stamp_index;

mod index_state;

mod indexer;

pub mod resident_index;

pub mod scan;

pub mod bm25;
pub mod grep;

pub mod passages;

#[cfg(test)]
mod git_agreement;
#[cfg(test)]
mod ignore_rules_fuzz;
#[cfg(test)]
pub(crate) mod twin;
