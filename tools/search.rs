//! Searching a workspace: walking it, matching lines, matching paths, ranking passages.
