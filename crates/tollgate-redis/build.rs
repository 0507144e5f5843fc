//! Builds the Lua script from the files in `lua/`, in two variants, and the roster's script, and
//! their SHA-1 hashes for `EVALSHA`.

use std::path::Path;
use std::{env, fs, io};

/// Made by every call of the general path.
const EAGER: [&str; 2] = ["outcome", "number"];

/// Functions that the general path calls for the algorithms it needs, and where something is
/// leased: to make one costs about a microsecond, and most calls need one of them.
const LAZY: [&str; 10] = [
    "fixed_window_counter",
    // A log is made of it, so it comes before that.
    "long_log",
    "sliding_window_log",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
    "lease",
    // Made of a log, so it comes after that.
    "concurrent_requests",
    "calendar_window_counter",
    "penalty",
];

/// The start of every call, and the path that ends most calls.
const PLAIN: [&str; 2] = ["call", "plain"];

/// The general path, one file after the other as they are: each uses what stands before it, and
/// finds it as if it were one file.
const GENERAL: [&str; 7] =
    ["rules", "keys", "operations", "decide", "settle", "lease_block", "batch"];

/// Has Redis from version 7 on accept keys of several slots. Without it no flag is set, and older
/// servers do not know the line.
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
        add(format!("local function {name}()\n{}end\n", read(name)?));
    }
    for name in GENERAL {
        add(read(name)?);
    }

    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let cross_slot = format!("{CROSS_SLOT}{script}");
    let roster = read("roster")?;
    for (name, text) in [("tollgate", script), ("cross_slot", cross_slot), ("roster", roster)] {
        let path = Path::new(&out).join(name);
        let sha1 = sha1_smol::Sha1::from(&text).digest().to_string();
        fs::write(path.with_extension("lua"), text)?;
        fs::write(path.with_extension("sha1"), sha1)?;
    }
    Ok(())
}
