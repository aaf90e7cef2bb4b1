//! Settling: what every call goes through after its tool, in one order, whoever called and however it ended.

pub mod evidence;
pub mod projection;
pub mod projection_policy;
pub mod sanitise;
