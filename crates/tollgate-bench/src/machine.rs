//! The environment in which a benchmark ran.

use std::fs;
use std::process::Command;

use crate::Failure;

/// The lock file of this build, for the versions.
const LOCK: &str = include_str!("../../../Cargo.lock");

/// Tollgate, its peers, and the stack below them.
const SHOWN: [&str; 6] = ["tollgate", "governor", "tower_governor", "axum", "hyper", "tokio"];

/// Describes date, command, machine, compiler and versions in a line.
pub(crate) fn describe(bench: &str) -> Result<String, Failure> {
    let cpu = field("/proc/cpuinfo", "model name")?;
    let cores = std::thread::available_parallelism()?;
    let kib: u64 = field("/proc/meminfo", "MemTotal")?.trim_end_matches(" kB").parse()?;
    let system = field("/etc/os-release", "PRETTY_NAME")?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let versions: Vec<_> = SHOWN.iter().filter_map(|name| version(name)).collect();
    Ok(format!(
        "{date}, `cargo xtask bench {bench}`: {cpu}, {cores} cores, {gib} GiB, {system}, Linux \
         {kernel}; {rustc}; {versions}.",
        date = output("date", &["-u", "+%F"])?,
        gib = kib.div_ceil(1 << 20),
        system = system.trim_matches('"'),
        kernel = kernel.trim(),
        rustc = output("rustc", &["--version"])?,
        versions = versions.join(", "),
    ))
}

/// The processor's maker. Ratios of locked operations differ between makers.
pub(crate) fn maker() -> &'static str {
    match &*field("/proc/cpuinfo", "vendor_id").unwrap_or_default() {
        "AuthenticAMD" => "amd",
        "GenuineIntel" => "intel",
        _ => "other",
    }
}

/// The value in a file's first line `name : value` or `name=value`.
fn field(path: &str, name: &str) -> Result<String, Failure> {
    let text = fs::read_to_string(path)?;
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once([':', '='])?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    value.ok_or_else(|| format!("{path} has no {name}").into())
}

fn version(package: &str) -> Option<String> {
    let entry = LOCK.split_once(&format!("name = \"{package}\"\nversion = \""))?.1;
    Some(format!("{package} {}", entry.split_once('"')?.0))
}

fn output(program: &str, args: &[&str]) -> Result<String, Failure> {
    let output = Command::new(program).args(args).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
