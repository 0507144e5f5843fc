//! Builds the Lua script from the files in `lua/`, in two variants, and the scripts of the roster
//! and the overrides, and their SHA-1 hashes for `EVALSHA`.

use std::path::Path;
use std::{env, fs, io};

/// Modules that each call on the general path creates.
const EAGER: [&str; 3] = ["outcome", "number", "refunds"];

/// Modules that the general path creates only if a call needs its algorithm or lease. A module costs
/// about a microsecond, and most calls need only one.
const LAZY: [&str; 10] = [
    "fixed_window_counter",
    // `sliding_window_log` uses it.
    "long_log",
    "sliding_window_log",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
    "lease",
    // Uses `sliding_window_log`.
    "concurrent_requests",
    "calendar_window_counter",
    "penalty",
];

/// The functions that an algorithm exports, in the order of `Rule`. `block` and `last_instant` are optional, and
/// `sliding_window_log` writes its own table because it exports more.
const VERBS: [&str; 17] = [
    "fresh",
    "refresh",
    "assess",
    "charge",
    "give_back",
    "owe",
    "count",
    "consumed",
    "counts_from",
    "resume",
    "convert",
    "is_fresh",
    "block",
    "last_instant",
    "fresh_at",
    "encode",
    "decode",
];

/// The start of each call, and the fast path, which is enough for most calls.
const PLAIN: [&str; 2] = ["call", "plain"];

/// The general path. The files are concatenated, so each file sees the local names of the files before
/// it.
const GENERAL: [&str; 7] =
    ["rules", "keys", "operations", "decide", "settle", "lease_block", "batch"];

/// Allows keys of several slots. Redis before version 7 rejects this line, so only a variant of the
/// script has it.
const CROSS_SLOT: &str = "#!lua flags=allow-cross-slot-keys\n";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=lua");
    let read = |name: &str| {
        let path = format!("lua/{name}.lua");
        println!("cargo::rerun-if-changed={path}");
        fs::read_to_string(path)
    };
    let mut script = String::new();
    let mut add = |chunk: String| script.push_str(&chunk);
    for name in PLAIN {
        add(read(name)?);
    }
    for name in EAGER {
        add(format!("local {name} = (function()\n{}end)()\n", read(name)?));
    }
    for name in LAZY {
        let body = read(name)?;
        let exports = if body.contains("\nreturn ") { String::new() } else { exports(&body) };
        add(format!("local function {name}()\n{body}{exports}end\n"));
    }
    for name in GENERAL {
        add(read(name)?);
    }

    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let cross_slot = format!("{CROSS_SLOT}{script}");
    let (roster, overrides) = (read("roster")?, read("overrides")?);
    for (name, text) in [
        ("tollgate", script),
        ("cross_slot", cross_slot),
        ("roster", roster),
        ("overrides", overrides),
    ] {
        let path = Path::new(&out).join(name);
        let sha1 = sha1_smol::Sha1::from(&text).digest().to_string();
        fs::write(path.with_extension("lua"), text)?;
        fs::write(path.with_extension("sha1"), sha1)?;
    }
    Ok(())
}

/// The table of an algorithm's functions.
fn exports(algorithm: &str) -> String {
    let has = |verb: &&&str| algorithm.contains(&format!("\nlocal function {verb}("));
    let fields: Vec<_> = VERBS.iter().filter(has).map(|it| format!("{it} = {it}")).collect();
    format!("return {{ {} }}\n", fields.join(", "))
}
