//! Many machines become nodes, as cloud-init, an image or Ansible make them.

use muster_tests::{TestHost, operator::said_by, prelude::*};

const MANY: usize = 50;

/// All fifty and one more at the same time, with one token for fifty.
#[tokio::test(flavor = "multi_thread")]
async fn one_token_enrols_as_many_machines_as_it_was_issued_for_and_refuses_the_next() {
    let world = World::new().await;
    let uses = MANY.to_string();
    let issued = world
        .operator
        .muster(&[
            "tokens", "issue", "--labels", "role=web", "--uses", &uses, "--ttl", "10m",
        ])
        .await
        .expect(0);
    let ca = std::fs::read(&world.operator.ca_file).expect("the CA can be read");
    let ca = muster_tests::certificate_digest(&ca).to_string();
    let ca = ca.trim_start_matches("sha256:");
    // What an operator is told to type is what works.
    let told = format!(
        "musterd enroll --server {} --token-file FILE --ca-sha256 {ca}",
        world.operator.server
    );
    assert!(issued.stderr.contains(&told), "{}", issued.stderr);
    let token_file = world.dir().join("token");
    std::fs::write(&token_file, issued.stdout).expect("the token can be written");

    let machines: Vec<Musterd> = (0..=MANY)
        .map(|n| Musterd::new(&world.dir().join("nodes"), &format!("m{n}")))
        .collect();
    let asked: Vec<_> = machines
        .iter()
        .map(|machine| {
            let mut command = tokio::process::Command::from(machine.command("enroll"));
            command
                .env("MUSTER_SERVER", &world.operator.server)
                .env("MUSTER_CA_SHA256", ca)
                .arg("--token-file")
                .arg(&token_file)
                .args(["-o", "json"]);
            tokio::spawn(said_by(command))
        })
        .collect();
    let mut enrolled = std::collections::BTreeMap::new();
    let mut refused = Vec::new();
    for (n, said) in asked.into_iter().enumerate() {
        let said = said.await.expect("it was run");
        if said.code == 0 {
            let node = said.json()["node_id"].as_str().expect("an id").to_owned();
            assert_eq!(enrolled.insert(node, n), None, "two machines are one node");
        } else {
            refused.push((n, said));
        }
    }
    let [(late, said)] = &refused[..] else {
        panic!("one is too many: {refused:#?}")
    };
    assert_eq!(said.code, 6, "{said:?}");
    assert!(
        said.stderr.contains("as often as it may be (50 times)")
            && said.stderr.contains("bootstrap_token_used"),
        "{}",
        said.stderr
    );
    assert!(!machines[*late].state.join("identity.json").exists());

    let nodes = world.nodes("role=web").await;
    assert_eq!(nodes.len(), MANY);
    let names: std::collections::BTreeSet<_> = nodes.iter().map(|node| &node.name).collect();
    assert_eq!(names.len(), MANY, "two nodes have one name");
    for node in &nodes {
        assert!(
            enrolled.contains_key(&node.id.to_string()),
            "nobody got {}",
            node.id
        );
    }
    let tokens = world.operator.muster(&["tokens", "list"]).await.expect(0);
    assert!(tokens.stdout.contains("50 of 50 uses"), "{}", tokens.stdout);

    // They are nodes: those that are started do what they are asked.
    let mut started: Vec<Musterd> = machines
        .into_iter()
        .filter(|machine| machine.state.join("identity.json").exists())
        .take(3)
        .collect();
    started.iter_mut().for_each(Musterd::launch);
    until("three nodes are connected", async || {
        let nodes = world.nodes("role=web").await;
        let ready = |node: &NodeSummary| node.connected && !node.actions.is_empty();
        (nodes.iter().filter(|node| ready(node)).count() == 3).then_some(())
    })
    .await;
    let body = json!({"action": "ping", "selector": "role=web", "max_targets": 3});
    let ran = world.run(body).await;
    assert_eq!(
        (ran.status, ran.targets.len()),
        (Status::Succeeded, 3),
        "{ran:#?}"
    );
    for machine in &mut started {
        let _ = machine.stop().await;
    }
}

/// What `docs/enrolment.md` has an image and user data do, on a machine that boots.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_enrols_at_its_first_boot_and_never_again() {
    let Some(host) = TestHost::boot("image").await else {
        return;
    };
    host.serve().await;
    host.share(
        "musterd-enroll.service",
        include_str!("../../systemd/musterd-enroll.service"),
    );
    host.sh(
        "install -m 644 /host/musterd-enroll.service /usr/lib/systemd/system/
         install -d /etc/muster && systemctl daemon-reload
         systemctl enable musterd musterd-enroll 2>/dev/null",
    )
    .await;
    let skipped = "! systemctl -q is-active musterd && ! systemctl -q is-failed musterd musterd-enroll";
    // Nothing to enrol with: the image boots, and nothing is a failure.
    host.sh("systemctl start musterd-enroll musterd").await;
    host.sh(skipped).await;

    // What cloud-init's write_files leaves there, and the boot that follows.
    host.sh("umask 077
         muster tokens issue --labels role=story --ttl 1h >/etc/muster/bootstrap-token 2>/root/told
         digest=$(grep -o 'ca-sha256 [0-9a-f]*' /root/told | cut -d' ' -f2)
         printf 'MUSTER_SERVER=%s\\nMUSTER_CA_SHA256=%s\\n' $MUSTER_SERVER $digest >/etc/muster/enroll.env
         systemctl stop muster-control")
        .await;
    // Control is away at first.
    host.sh("systemctl start --no-block musterd-enroll").await;
    host.comes_true("journalctl -u musterd-enroll | grep -q 'cannot be reached'")
        .await;
    host.sh("systemctl start muster-control && systemctl restart --no-block musterd-enroll")
        .await;
    host.comes_true("systemctl -q is-active musterd").await;
    host.sh("[ ! -e /etc/muster/bootstrap-token ] && [ -e /var/lib/muster/identity.json ]")
        .await;
    host.sh("muster run ping -l role=story --wait").await;
    let who = host.sh("cat /var/lib/muster/identity.json").await;

    host.sh("systemctl enable muster-control 2>/dev/null; sync").await;
    host.power_cut().await;
    host.comes_true("systemctl -q is-active musterd").await;
    assert_eq!(host.sh("cat /var/lib/muster/identity.json").await, who);
    host.sh("systemctl show -P ConditionResult musterd-enroll | grep -qx no")
        .await;
}
