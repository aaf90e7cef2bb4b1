//! Which built-in tools a workspace gets: those whose needs its capabilities cover.
