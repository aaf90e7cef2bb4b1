//! A folder on this machine, held by descriptor.
