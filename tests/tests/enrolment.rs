//! Many machines become nodes, as cloud-init, an image or Ansible make them.

use muster_tests::{TestHost, operator::said_by, packages::REPOSITORY, prelude::*};

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

/// What the packages bring, on a machine where a fleet is kept with it.
const CONTROL: &str = "
muster tokens issue --ttl 5m >/dev/null 2>/root/told
grep -o 'ca-sha256 [0-9a-f]*' /root/told | cut -d' ' -f2 >/root/digest
";

/// The user data that a package brings, given to cloud-init as a cloud gives it, and carried out at the boot that follows.
#[tokio::test]
async fn cloud_init_makes_a_node_of_the_user_data() {
    let Some(host) = TestHost::with_tools_and_packages("cloud").await else {
        return;
    };
    host.sh("dpkg --install --force-unsafe-io --path-include=/usr/share/* /host/old/*.deb")
        .await;
    host.serve().await;
    host.sh(CONTROL).await;
    host.sh("cloud-init schema --config-file /usr/share/doc/muster/examples/user-data.yaml")
        .await;
    // The image. Control is on this machine for once, and there before anybody asks for it; and there are no locales.
    host.sh("systemctl enable --quiet muster-control musterd musterd-enroll
         mkdir /etc/systemd/system/musterd-enroll.service.d
         printf '[Unit]\\nAfter=muster-control.service\\n' >/etc/systemd/system/musterd-enroll.service.d/story.conf
         echo 'locale: false' >/etc/cloud/cloud.cfg.d/story.cfg")
        .await;
    // The three words of it that whoever makes the machine puts in.
    host.sh(
        "seed=/var/lib/cloud/seed/nocloud
         token=$(muster tokens issue --labels role=story --ttl 1h 2>/dev/null)
         mkdir -p $seed
         sed \"s|https://control.example:7443|$MUSTER_SERVER|; s|=0\\{64\\}|=$(cat /root/digest)|; s|mbt_REPLACE_ME|$token|\" \
             /usr/share/doc/muster/examples/user-data.yaml >$seed/user-data
         echo 'instance-id: story' >$seed/meta-data
         sync",
    )
    .await;
    host.power_cut().await;
    host.sh("cloud-init status --wait").await;
    host.comes_true("systemctl -q is-active musterd").await;
    host.sh("[ ! -e /etc/muster/bootstrap-token ] && muster run ping -l role=story --wait")
        .await;
}

/// The role that a package brings, played with the play that it brings.
#[tokio::test]
async fn ansible_makes_nodes_of_debian_machines_and_changes_nothing_the_second_time() {
    let Some(host) = TestHost::with_tools_and_packages("ansible-deb").await else {
        return;
    };
    host.sh("dpkg --install --force-unsafe-io --path-include=/usr/share/* \
             /host/old/muster-control_*.deb /host/old/muster_*.deb")
        .await;
    the_role_does_what_it_says(&host, "deb").await;
}

#[tokio::test]
async fn ansible_makes_nodes_of_machines_with_rpms_and_changes_nothing_the_second_time() {
    let Some(host) = TestHost::with_tools_and_packages("ansible-rpm").await else {
        return;
    };
    host.sh(REPOSITORY).await;
    host.sh("dnf -y install /host/old/muster-control-*.rpm /host/old/muster-[0-9]*.rpm")
        .await;
    the_role_does_what_it_says(&host, "rpm").await;
}

async fn the_role_does_what_it_says(host: &TestHost, format: &str) {
    host.serve().await;
    host.sh(CONTROL).await;
    host.sh(&format!(
        "mkdir /root/files
         printf '#!/bin/sh\\necho hello\\n' >/root/files/greet
         printf 'description = \"says hello\"\\n' >/root/files/greet.toml
         cat >/root/vars.yml <<END
muster_node_server: $MUSTER_SERVER
muster_node_ca_sha256: $(cat /root/digest)
muster_node_labels: role=story
muster_node_package_file: $(echo /host/old/musterd[-_][0-9]*.{format})
muster_node_config: |
  running_max = 4
muster_node_hooks: [/root/files/greet]
muster_node_manifests: [/root/files/greet.toml]
END"
    ))
    .await;
    let played = play(host, "").await;
    assert_eq!(played.failed, 0, "{played:#?}");
    host.comes_true("muster hooks -o json | grep -q greet").await;
    host.sh("muster run greet -l role=story --wait").await;
    host.sh("grep -x 'running_max = 4' /etc/muster/agent.toml").await;
    host.sh("systemctl is-enabled musterd").await;
    let node = host.sh("muster nodes -o name").await;

    let again = play(host, "").await;
    assert_eq!((again.failed, again.changed), (0, 0), "{again:#?}");

    // Another version is all that changes, and the node stays the one it is.
    let file = format!("-e muster_node_package_file=$(echo /host/new/musterd[-_][0-9]*.{format})");
    let newer = play(host, &file).await;
    assert_eq!((newer.failed, newer.changed), (0, 1), "{newer:#?}");
    host.comes_true("systemctl -q is-active musterd").await;
    assert_eq!(host.sh("muster nodes -o name").await, node);

    // As after control was lost.
    let anew = play(host, &format!("{file} -e muster_node_enroll_anew=true")).await;
    assert_eq!(anew.failed, 0, "{anew:#?}");
    host.comes_true("[ $(muster nodes -o name | wc -l) = 2 ]").await;
    host.sh("[ -z \"$(find /root /tmp -name 'muster-token-*' -o -name 'muster-package-*')\" ]")
        .await;
}

#[derive(Debug)]
struct Played {
    changed: u32,
    failed: u32,
    #[expect(dead_code, reason = "it is for the person who reads a failure")]
    said: String,
}

/// Plays it with what is in `/root/vars.yml`, and reads its last line.
async fn play(host: &TestHost, extra: &str) -> Played {
    let said = host
        .try_sh(&format!(
            "ansible-playbook --inventory localhost, --connection local -e @/root/vars.yml {extra} \
                 /usr/share/doc/muster/examples/nodes.yml"
        ))
        .await;
    let recap = said
        .stdout
        .lines()
        .rfind(|line| line.starts_with("localhost "))
        .unwrap_or_else(|| panic!("{}\n{}", said.stdout, said.stderr));
    let count = |name: &str| {
        let word = recap
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.and_then(|count| count.parse().ok())
            .unwrap_or_else(|| panic!("{recap}"))
    };
    Played {
        changed: count("changed"),
        failed: count("failed"),
        said: said.stdout.clone(),
    }
}
