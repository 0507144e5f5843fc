//! End-to-end tests; see the files under `tests/`.
