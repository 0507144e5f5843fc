//! What only the whole can show; see the files under `tests/`.
