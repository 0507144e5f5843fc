//! Another server takes over.

use tokio::task::block_in_place;
use tollgate_test_servers::Sentinels;

use super::scene::{Held, Scene, Told};

#[tokio::test(flavor = "multi_thread")]
async fn failover_only_loses_unreplicated_charges() {
    let sentinels = Sentinels::start();
    let scene = Scene::new(&sentinels.url()).await;
    let load = scene.load_under_way().await;
    let [master, replica] = [sentinels.node(0), sentinels.node(1)];
    // WAIT waits for the writes of its own connection, and therefore for all earlier writes.
    let mut writes = master.connect().expect("a connection");
    writes.cmd(&["SET", "mark", "1"]);
    assert_eq!(writes.cmd(&["WAIT", "1", "1000"]).number(), 1);
    // Later charges never reach the replica.
    replica.stop();
    master.cmd(&["CLIENT", "KILL", "TYPE", "REPLICA"]);
    load.goes_on().await;
    master.kill();
    replica.cont();
    scene.policies_fail().await;
    assert_eq!(block_in_place(|| sentinels.wait_for_failover(0)), 1);
    let report = scene.recovers(load).await;
    let lost = report.held.lost;
    assert!(lost > 0 && lost < report.count(Told::Admitted), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_old_master_charges_no_request() {
    let sentinels = Sentinels::start();
    let scene = Scene::new(&sentinels.url()).await;
    sentinels.node(0).stop();
    let load = scene.load();
    scene.policies_fail().await;
    let last = scene.next();
    assert_eq!(block_in_place(|| sentinels.wait_for_failover(0)), 1);
    // The connection to the old master is still open, but silent.
    scene.until_up().await;
    sentinels.node(0).cont();
    let report = scene.recovers(load).await;
    assert!(report.count(Told::MaybeCharged) > 0, "the fault did not happen");
    let Held { lost, ghosts } = report.held;
    assert!(lost == 0 && ghosts.iter().all(|id| *id >= last), "{ghosts:?}");
}

/// The Sentinels make the old master close its connections. A client that connects to it again finds
/// a replica.
#[tokio::test(flavor = "multi_thread")]
async fn demoted_master_is_abandoned() {
    let sentinels = Sentinels::start();
    let scene = Scene::patient(&sentinels.url()).await;
    let load = scene.load_under_way().await;
    let new = block_in_place(|| sentinels.fail_over());
    let calls = || sentinels.node(new).calls("evalsha");
    let before = calls();
    load.goes_on().await;
    assert!(calls() > before);
    let report = scene.recovers(load).await;
    // Charges that the old master accepted after its replacement are lost.
    assert!(report.held.lost < report.count(Told::Admitted), "{:?}", report.held);
}
