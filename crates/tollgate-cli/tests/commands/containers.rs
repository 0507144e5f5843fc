//! Checks the containers of examples/gateway without starting them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use saphyr::{LoadableYamlNode, Yaml};
use tollgate_config::{Source, read};

use crate::support::root;

const ROOT: &str = "docker-compose.yml";
const EXAMPLE: &str = "examples/gateway/docker-compose.yml";

/// The Dockerfile's stages.
fn stages() -> Vec<String> {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let stages = dockerfile.lines().filter(|line| line.starts_with("FROM "));
    stages.filter_map(|line| Some(line.split_once(" AS ")?.1.to_owned())).collect()
}

fn texts(list: &Yaml<'_>) -> Vec<String> {
    list.as_vec().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

#[test]
fn docker_compose_accepts_the_files() {
    for file in [ROOT, EXAMPLE] {
        let output = Command::new("docker-compose")
            .args(["--file", file, "config", "--quiet"])
            .env_remove("COMPOSE_FILE")
            .current_dir(root())
            .output()
            .expect("docker-compose; cure: apt-get install --no-install-recommends docker-compose");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {error}");
    }
}

#[test]
fn build_targets_are_dockerfile_stages() {
    for (file, context, expected) in [(ROOT, ".", 1), (EXAMPLE, "../..", 2)] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let builds: Vec<_> = text.split(" build:\n").skip(1).collect();
        assert_eq!(builds.len(), expected, "{file}");
        for build in builds {
            let mut lines = build.lines().map(str::trim);
            assert_eq!(lines.next(), Some(&*format!("context: {context}")), "{file}");
            let target = lines.next().unwrap().strip_prefix("target: ").unwrap();
            assert!(stages().iter().any(|stage| stage == target), "{file}: {target}");
        }
    }
}

#[test]
fn example_gateways_set_all_variables() {
    let text = fs::read_to_string(root().join(EXAMPLE)).unwrap();
    let compose = &Yaml::load_from_str(&text).unwrap()[0];
    let services = compose["services"].as_mapping().unwrap();
    let is_service = |host: &str| services.keys().any(|name| name.as_str() == Some(host));
    let command = texts(&compose["x-gateway"]["command"]);
    assert_eq!(command[..3], ["tollgate", "serve", "--config"]);
    assert_eq!(texts(&compose["x-gateway"]["volumes"]), [".:/etc/tollgate:ro"]);
    let file = command[3].strip_prefix("/etc/tollgate/").unwrap();
    let source = Source::read(&root().join("examples/gateway").join(file)).unwrap();

    let environment = &compose["x-environment"];
    let told =
        |name: &str| environment.as_mapping_get(name).and_then(Yaml::as_str).map(str::to_owned);
    for variable in ["TARGET", "REDIS_URL", "LISTEN", "ADMIN"] {
        let told = told(variable).unwrap_or_else(|| panic!("{variable} is not set"));
        let host = told.split_once("://").map(|(_, host)| host.split(':').next().unwrap());
        assert!(host.is_none_or(is_service), "{variable}: {told}");
        assert!(source.text.contains(&format!("${{{variable}:-")), "{variable} is not used");
    }
    let outcome = read(&source, &told);
    let plan = outcome.plan.unwrap_or_else(|| panic!("{}", outcome.report));
    assert_eq!(plan.listen[0].1.address.to_string(), "0.0.0.0:8080");
    assert_eq!(
        plan.routes[0].target.as_ref().unwrap().upstream.servers.addresses[0]
            .endpoint
            .authority
            .as_str(),
        "upstream:3000"
    );
    // Docker must not kill a gateway that is still draining.
    let patience = compose["x-gateway"]["stop_grace_period"].as_str().unwrap();
    let patience = patience.strip_suffix('s').unwrap().parse().map(Duration::from_secs).unwrap();
    assert!(patience > plan.timeouts.drain, "{patience:?}");
    // The only warning: inside the container, the admin address is not loopback.
    let odd: Vec<_> = outcome.report.problems().iter().map(|it| &*it.place.path).collect();
    assert_eq!(odd, ["rateLimiter.admin"], "{}", outcome.report);
    // Outside, the published port must be loopback.
    for (name, service) in services {
        let Some(ports) = service.as_mapping_get("ports") else { continue };
        for port in texts(ports).iter().filter(|port| port.ends_with(":8081")) {
            assert!(port.starts_with("127.0.0.1:"), "{name:?}: {port}");
        }
    }
}
