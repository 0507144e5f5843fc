-- A policy's answer to a request: Outcome in crates/tollgate-core/src/decision.rs.
return { ALLOW = 1, PASS = 2, DENY = 3, EXCEED = 4 }
