//! The swarm of the bench plays nodes that control cannot tell from real ones.

use muster_tests::{bench::fleet::SwarmProcess, prelude::*, swarm::identity::Fleet, world::on};

#[tokio::test(flavor = "multi_thread")]
async fn a_swarm_ends_what_it_is_asked_and_comes_back_after_a_restart() {
    let mut world = World::new().await;
    let server = world
        .operator
        .server
        .trim_start_matches("https://")
        .parse()
        .expect("an address");
    let file = world.dir().join("fleet.json");
    let mut fleet = Fleet::default();
    fleet.grow(&world.operator, 10).await.expect("nodes enrol");
    fleet.grow(&world.operator, 25).await.expect("and more of them");
    fleet.save(&file).expect("identities can be kept");
    assert_eq!(Fleet::load(&file).expect("and read").nodes.len(), 25);

    for reporting in [["--own-connection-seconds", "15"], ["--pool", "4"]] {
        let mut swarm = SwarmProcess::start(world.dir(), server, 25, &reporting).expect("it starts");
        for restart in [false, true] {
            if restart {
                world.kill9();
                world.start().await;
            }
            tokio::task::block_in_place(|| swarm.connected(25)).expect("all come back");
            swarm.expect(25).expect("it listens");
            let execution = world.dispatch(on("ping", "swarm=yes")).await;
            let (_, done) = tokio::task::block_in_place(|| swarm.settled()).expect("all end");
            assert_eq!(done.nodes, 25);
            let end = world.settled(execution.id).await;
            assert_eq!(end.target_counts.get(&Status::Succeeded), Some(&25));
        }
        let counts = swarm.counts().expect("it counts");
        assert!(counts.trouble.is_empty(), "{:?}", counts.trouble);
        assert!(counts.journal_syncs > 0);
    }
}
