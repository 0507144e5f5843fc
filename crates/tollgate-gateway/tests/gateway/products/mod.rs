//! Policies for API products.

mod lists;
mod quotas;
mod settling;

fn sha256(text: &str) -> String {
    let sum = std::process::Command::new("bash")
        .args(["-c", &format!("printf %s {text} | sha256sum")])
        .output()
        .unwrap();
    String::from_utf8(sum.stdout).unwrap()[..64].to_owned()
}
