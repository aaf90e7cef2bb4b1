//! placeholder

mod cjk;
mod focus;
mod question;
mod term;
mod vocabulary;
