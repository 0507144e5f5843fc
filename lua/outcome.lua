-- A policy's answer to a request: `Outcome` in crates/tollgate-core/src/decision.rs. PASS means
-- that the policy would allow the request, but another policy denies it.
return { ALLOW = 1, PASS = 2, DENY = 3, EXCEED = 4 }
