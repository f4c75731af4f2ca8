//! A node under a real systemd: hooks in units of their own, the daemon in its sandbox, and what is left of both when
//! either is killed.

use std::path::Path;

use muster_tests::{
    PgRelay, TestHost,
    postgres::{self, Cluster, PgDatabase},
    prelude::*,
};

const CONFIG: &str = "
cat >/etc/muster/agent.toml <<'END'
stop_grace_seconds = 1
[hooks]
memory_max_bytes = 67108864
END
systemctl restart musterd
";

const HOOKS: [(&str, &str); 6] = [
    (
        "free",
        "#!/bin/sh\ngrep -o 'muster-hook-.*' /proc/self/cgroup | sort -u\necho free >/etc/story && echo free >/home/story\n\
         grep -x 'NoNewPrivs:.0' /proc/self/status\n\
         echo free >>/etc/motd && sudo -n -u nobody id -un 2>/dev/null\n",
    ),
    (
        "slow",
        "#!/bin/sh\necho run >>/root/runs\necho begin\nuntil [ -e /root/go ]; do sleep 0.1; done\necho end\n",
    ),
    (
        "restarts",
        "#!/bin/sh\necho begin\nsystemctl restart musterd\necho end\n",
    ),
    ("hungry", "#!/bin/sh\necho begin\ntail /dev/zero\n"),
    (
        "tree",
        "#!/bin/sh\nsetsid sh -c 'trap \"\" TERM; echo $$ >>/root/tree; while :; do sleep 600; done' &\n\
         (setsid sleep 600 & echo $! >>/root/tree)\nsleep 600\n",
    ),
    ("reboots", "#!/bin/sh\necho begin\nsystemctl reboot\nsleep 600\n"),
];

const NO_UNIT_LEFT: &str =
    "[ -z \"$(systemctl list-units --all --plain --no-legend 'muster-hook-*' 'muster-builtin-*')\" ]";

fn unit(id: &str) -> String {
    format!("muster-hook-{id}.service")
}

async fn main_pid(host: &TestHost, unit: &str) -> String {
    host.sh(&format!("systemctl show -P MainPID {unit}")).await
}

/// Dispatches `slow` and waits until it runs.
async fn slow(host: &TestHost) -> String {
    host.sh("rm -f /root/runs /root/go").await;
    let id = host.dispatch("slow", "5m").await;
    host.said("/root/runs").await;
    id
}

async fn slow_succeeds(host: &TestHost, id: &str) {
    host.sh("touch /root/go").await;
    let target = host.ended(id).await;
    assert_eq!(
        (target.status, target.exit_code),
        (Status::Succeeded, Some(0)),
        "{target:#?}"
    );
    assert_eq!(host.output(id).await, "begin\nend");
    assert_eq!(host.sh("cat /root/runs").await, "run", "it ran once");
    host.comes_true(NO_UNIT_LEFT).await;
}

#[tokio::test]
async fn hooks_run_in_units_of_their_own() {
    let Some(host) = TestHost::with_node("units", &HOOKS).await else {
        return;
    };
    host.sh(CONFIG).await;
    a_reload_says_whether_the_configuration_is_sound(&host).await;
    a_hook_has_nothing_of_the_daemons_sandbox(&host).await;
    a_hook_outlives_its_daemon(&host).await;
    a_hook_may_restart_its_daemon(&host).await;
    a_hook_that_takes_too_much_memory_is_ended_alone(&host).await;
    nothing_is_left_of_a_tree(&host).await;
    a_supervisor_that_is_killed_is_told_as_that(&host).await;
    without_the_bus_no_hook_is_started(&host).await;
    the_journal_tells_the_story(&host).await;
    what_is_wedged_is_started_anew(&host).await;
    a_main_loop_that_hangs_is_started_anew(&host).await;
}

async fn a_reload_says_whether_the_configuration_is_sound(host: &TestHost) {
    let before = main_pid(host, "musterd").await;
    host.sh("mkdir -p /etc/muster/agent.d; echo 'running_max = 7' >/etc/muster/agent.d/story.toml; systemctl reload musterd")
        .await;
    host.comes_true("journalctl -u musterd | grep -q 'Read the configuration again'")
        .await;
    host.sh("echo 'running_max = \"many\"' >/etc/muster/agent.d/story.toml; ! systemctl reload musterd")
        .await;
    host.sh("journalctl -u musterd | grep -q agent.d/story.toml")
        .await;
    // The daemon was not asked, and goes on with what it has.
    host.sh("! journalctl -u musterd | grep 'stays as it was'; rm /etc/muster/agent.d/story.toml; systemctl reload musterd")
        .await;
    assert_eq!(main_pid(host, "musterd").await, before);
}

async fn a_hook_has_nothing_of_the_daemons_sandbox(host: &TestHost) {
    assert_eq!(host.sh("systemctl show -P ProtectSystem musterd").await, "strict");
    let id = host.dispatch("free", "1m").await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Succeeded, "{target:#?}");
    assert_eq!(host.sh("cat /etc/story /home/story").await, "free\nfree");
    assert_eq!(host.sh("tail -n 1 /etc/motd").await, "free");
    let output = host.output(&id).await;
    assert_eq!(output.lines().last(), Some("nobody"), "sudo works: {output}");
    let groups: Vec<&str> = output
        .lines()
        .filter(|line| line.contains("muster-hook-"))
        .collect();
    assert!(
        !groups.is_empty() && groups.iter().all(|group| group.starts_with(&unit(&id))),
        "{output}"
    );
    // As the daemon itself would find it.
    let daemon = main_pid(host, "musterd").await;
    let denied = host
        .try_sh(&format!("nsenter --target {daemon} --mount touch /etc/story"))
        .await;
    assert!(
        denied.code != 0 && denied.stderr.contains("Read-only"),
        "{denied:?}"
    );
    host.sh(&format!("! grep -q muster-hook /proc/{daemon}/cgroup"))
        .await;
}

async fn a_hook_outlives_its_daemon(host: &TestHost) {
    let id = slow(host).await;
    let unit = unit(&id);
    let supervisor = main_pid(host, &unit).await;
    host.sh("systemctl restart musterd").await;
    host.sh("systemctl kill --signal=KILL --kill-whom=main musterd")
        .await;
    host.sh("systemctl reset-failed musterd; systemctl start musterd")
        .await;
    assert_eq!(main_pid(host, &unit).await, supervisor);
    slow_succeeds(host, &id).await;
}

async fn a_hook_may_restart_its_daemon(host: &TestHost) {
    let before = main_pid(host, "musterd").await;
    let id = host.dispatch("restarts", "1m").await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Succeeded, "{target:#?}");
    assert_eq!(host.output(&id).await, "begin\nend");
    assert_ne!(main_pid(host, "musterd").await, before);
}

async fn a_hook_that_takes_too_much_memory_is_ended_alone(host: &TestHost) {
    let before = main_pid(host, "musterd").await;
    let id = host.dispatch("hungry", "1m").await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Failed, "{target:#?}");
    let error = target.error.unwrap_or_default();
    assert!(
        error.starts_with("out_of_memory: ") && error.contains("memory_max_bytes 67108864"),
        "{error}"
    );
    assert_eq!(host.output(&id).await.lines().next(), Some("begin"));
    assert_eq!(main_pid(host, "musterd").await, before);
    host.comes_true(NO_UNIT_LEFT).await;
}

async fn nothing_is_left_of_a_tree(host: &TestHost) {
    for cancelled in [false, true] {
        host.sh("rm -f /root/tree").await;
        let id = host.dispatch("tree", if cancelled { "5m" } else { "3s" }).await;
        host.comes_true("[ $(wc -l </root/tree) = 2 ]").await;
        if cancelled {
            host.sh(&format!("muster execution cancel {id}")).await;
        }
        let target = host.ended(&id).await;
        let expected = if cancelled {
            Status::Cancelled
        } else {
            Status::Timeout
        };
        assert_eq!(target.status, expected, "{target:#?}");
        host.sh("for pid in $(cat /root/tree); do [ ! -e /proc/$pid ]; done")
            .await;
        host.comes_true(NO_UNIT_LEFT).await;
    }
}

async fn a_supervisor_that_is_killed_is_told_as_that(host: &TestHost) {
    for daemon_is_away in [false, true] {
        let id = slow(host).await;
        if daemon_is_away {
            host.sh("systemctl stop musterd").await;
        }
        let supervisor = main_pid(host, &unit(&id)).await;
        host.sh(&format!("kill -KILL {supervisor}")).await;
        if daemon_is_away {
            host.comes_true(&format!("systemctl is-failed {}", unit(&id)))
                .await;
            host.sh("systemctl start musterd").await;
        }
        let target = host.ended(&id).await;
        assert_eq!(target.status, Status::Failed, "{target:#?}");
        let error = target.error.unwrap_or_default();
        assert!(error.contains("it was killed by signal 9"), "{error}");
        host.comes_true(NO_UNIT_LEFT).await;
        assert_eq!(host.sh("cat /root/runs").await, "run", "it ran once");
    }
}

async fn without_the_bus_no_hook_is_started(host: &TestHost) {
    host.sh("systemctl stop dbus.socket dbus.service; rm -f /etc/story")
        .await;
    let id = host.dispatch("free", "1m").await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Failed, "{target:#?}");
    let error = target.error.unwrap_or_default();
    assert!(
        error.starts_with("hook_not_started: ") && error.contains("systemd"),
        "{error}"
    );
    host.sh("[ ! -e /etc/story ]; systemctl start dbus.socket").await;
    let id = host.dispatch("free", "1m").await;
    assert_eq!(host.ended(&id).await.status, Status::Succeeded);
}

async fn the_journal_tells_the_story(host: &TestHost) {
    let id = host.dispatch("free", "1m").await;
    assert_eq!(host.ended(&id).await.status, Status::Succeeded);
    let node = host.ended(&id).await.node_id.to_string();
    let wanted = [
        unit(&id),
        "musterd.service".to_owned(),
        "muster-control.service".to_owned(),
    ];
    until("all three have their lines in the journal", async || {
        let lines = journal(host, &id).await;
        wanted
            .iter()
            .all(|unit| lines.iter().any(|line| line["_SYSTEMD_UNIT"] == unit.as_str()))
            .then_some(())
    })
    .await;
    // No line of the node is left out of the story of an action, or of a node.
    for line in journal(host, &id).await {
        if line["_SYSTEMD_UNIT"] != "muster-control.service" {
            assert_eq!(
                (&line["ACTION"], &line["NODE_ID"]),
                (&json!("free"), &json!(node)),
                "{line}"
            );
        }
    }
}

async fn journal(host: &TestHost, id: &str) -> Vec<Value> {
    let lines = host.sh(&format!("journalctl -o json EXECUTION_ID={id}")).await;
    let line = |line: &str| serde_json::from_str(line).expect("a line of JSON");
    lines.lines().map(line).collect()
}

async fn what_is_wedged_is_started_anew(host: &TestHost) {
    for wedged in ["musterd", "muster-control"] {
        host.sh(&format!(
            "mkdir -p /run/systemd/system/{wedged}.service.d
             printf '[Service]\\nWatchdogSec=2s\\nTimeoutAbortSec=1s\\nRestartSec=100ms\\n' \
                 >/run/systemd/system/{wedged}.service.d/story.conf
             systemctl daemon-reload
             systemctl restart {wedged}"
        ))
        .await;
        let id = slow(host).await;
        let (daemon, supervisor) = (main_pid(host, wedged).await, main_pid(host, &unit(&id)).await);
        host.sh(&format!("kill -STOP {daemon}")).await;
        host.comes_true(&format!(
            "new=$(systemctl show -P MainPID {wedged}); [ $new != 0 ]; [ $new != {daemon} ]; systemctl is-active {wedged}"
        ))
        .await;
        host.sh(&format!("journalctl -u {wedged} | grep -q 'Watchdog timeout'"))
            .await;
        assert_eq!(main_pid(host, &unit(&id)).await, supervisor);
        slow_succeeds(host, &id).await;
    }
}

/// The loop hangs and nothing else does: no watchdog that is fed beside it would tell.
async fn a_main_loop_that_hangs_is_started_anew(host: &TestHost) {
    host.sh(
        "printf '[Service]\\nWatchdogSec=2s\\nTimeoutAbortSec=1s\\nRestartSec=100ms\\n\
             Environment=\"MUSTER_HOLD_AFTER_EFFECT=a callback answered:/var/lib/muster/held\"\\n' \
             >/run/systemd/system/musterd.service.d/story.conf
         systemctl daemon-reload
         systemctl restart musterd",
    )
    .await;
    let daemon = main_pid(host, "musterd").await;
    let id = slow(host).await;
    host.comes_true(&format!(
        "new=$(systemctl show -P MainPID musterd); [ $new != 0 ]; [ $new != {daemon} ]; systemctl is-active musterd"
    ))
    .await;
    host.sh("[ -e /var/lib/muster/held ]").await;
    slow_succeeds(host, &id).await;
}

const FILES: &str = "
cat >/etc/systemd/system/story.service <<'END'
[Service]
ExecStart=/bin/sh -c 'echo story begins; exec sleep infinity'
END
systemctl daemon-reload
echo open >/tmp/story && echo closed >/home/story && chown daemon /home/story && chmod 600 /home/story
printf 'readable_paths = [\"/home\"]\n' >/etc/muster/agent.toml
systemctl restart musterd
";

#[tokio::test]
async fn builtins_see_and_change_the_machine_as_it_is() {
    let Some(host) = TestHost::with_node("builtins", &HOOKS).await else {
        return;
    };
    host.sh(FILES).await;
    services_are_those_of_systemd(&host).await;
    the_journal_is_that_of_the_machine(&host).await;
    packages_are_those_of_dpkg(&host).await;
    what_the_sandbox_hides_is_seen(&host).await;
    a_restart_of_the_daemon_is_no_end_of_the_restart(&host).await;
    host.comes_true(NO_UNIT_LEFT).await;
}

/// Runs a builtin that has to succeed, and gives its document.
async fn answer(host: &TestHost, builtin: &str, parameters: &str) -> Value {
    let id = host
        .sh(&format!(
            "muster run {builtin} -l role=story --timeout 2m {parameters}"
        ))
        .await;
    let target = host.ended(&id).await;
    assert_eq!(
        (target.status, target.exit_code),
        (Status::Succeeded, Some(0)),
        "{builtin} {target:#?}"
    );
    serde_json::from_str(&host.output(&id).await).expect("a document")
}

async fn services_are_those_of_systemd(host: &TestHost) {
    let state = answer(host, "services.start", "-p unit=story").await;
    assert_eq!(state["job_result"], "done", "{state}");
    let before = main_pid(host, "story").await;
    let state = answer(host, "services.restart", "-p unit=story").await;
    let after = main_pid(host, "story").await;
    assert_ne!(after, before);
    assert_eq!(state["main_pid"].to_string(), after, "{state}");
    let list = answer(host, "services.list", "-p state=active").await;
    let services = list["services"].as_array().expect("a list");
    for unit in ["story.service", "dbus.service", "musterd.service"] {
        assert!(services.iter().any(|service| service["unit"] == unit), "{list}");
    }
    // Those that do more than look are in units of their own themselves.
    assert!(
        services.iter().any(|service| service["unit"]
            .as_str()
            .is_some_and(|unit| unit.starts_with("muster-builtin-"))),
        "{list}"
    );
}

async fn the_journal_is_that_of_the_machine(host: &TestHost) {
    let read = answer(host, "journal.read", "-p unit=story -p grep=begins -p boot=true").await;
    let entries = read["entries"].as_array().expect("a list");
    assert_eq!(entries.len(), 2, "{read}");
    for entry in entries {
        assert_eq!(
            (&entry["message"], &entry["unit"]),
            (&json!("story begins"), &json!("story.service"))
        );
    }
}

async fn packages_are_those_of_dpkg(host: &TestHost) {
    let list = answer(host, "packages.list", "").await;
    let count = host.sh("dpkg-query -W | wc -l").await;
    assert_eq!(
        (&list["manager"], list["total"].to_string()),
        (&json!("apt"), count)
    );
    let version = host.sh("dpkg-query -W -f '${Version}' systemd").await;
    let packages = list["packages"].as_array().expect("a list");
    assert!(
        packages
            .iter()
            .any(|package| package["name"] == "systemd" && package["version"] == version),
        "{list}"
    );
}

/// The daemon has a `/tmp` of its own, and may not read what belongs to others.
async fn what_the_sandbox_hides_is_seen(host: &TestHost) {
    for (path, content) in [("/tmp/story", "open\n"), ("/home/story", "closed\n")] {
        let file = answer(host, "file.read", &format!("-p path={path}")).await;
        assert_eq!(file["content"], content, "{file}");
    }
    let disk = answer(host, "disk.usage", "-p path=/tmp/story").await;
    assert_eq!(disk["file_systems"][0]["mounted_on"], "/", "{disk}");
    let list = answer(host, "processes.list", "-p limit=1000").await;
    let story: u32 = main_pid(host, "story").await.parse().expect("a pid");
    let processes = list["processes"].as_array().expect("a list");
    for pid in [1, story] {
        assert!(
            processes.iter().any(|process| process["pid"] == pid),
            "{pid} {list}"
        );
    }
    assert!(
        processes
            .iter()
            .any(|process| process["pid"] == story && process["command"] == "sleep infinity"),
        "{list}"
    );
}

async fn a_restart_of_the_daemon_is_no_end_of_the_restart(host: &TestHost) {
    let before = main_pid(host, "musterd").await;
    let state = answer(host, "services.restart", "-p unit=musterd").await;
    assert_eq!(state["job_result"], "done", "{state}");
    assert_ne!(main_pid(host, "musterd").await, before);
}

/// The kernel is that of the machine outside and knows nothing of these boots.
const BOOT_IDS: &str = "
cat >/etc/systemd/system/story-boot.service <<'END'
[Unit]
Before=musterd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'cat /proc/sys/kernel/random/uuid >/run/story-boot-id'
[Install]
WantedBy=multi-user.target
END
mkdir -p /etc/systemd/system/musterd.service.d
printf '[Service]\\nEnvironment=MUSTER_BOOT_ID_FILE=/run/story-boot-id\\n' >/etc/systemd/system/musterd.service.d/story.conf
systemctl daemon-reload
systemctl enable --now story-boot
systemctl enable muster-control musterd
systemctl restart musterd
";

#[tokio::test]
async fn a_hook_that_a_boot_cut_off_is_told_as_that() {
    let Some(host) = TestHost::with_node("boots", &HOOKS).await else {
        return;
    };
    host.sh(BOOT_IDS).await;

    let id = slow(&host).await;
    host.power_cut().await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Failed, "{target:#?}");
    assert_eq!(
        target.error.as_deref(),
        Some("node rebooted: the action was cut off")
    );
    assert_eq!(host.sh("cat /root/runs").await, "run", "it ran once");

    // The machine itself is told to, and has done so when it is back.
    let id = host.dispatch("reboot", "5m").await;
    until("the machine goes down", async || {
        (host.try_sh("true").await.code != 0).then_some(())
    })
    .await;
    host.power_cut().await;
    let target = host.ended(&id).await;
    assert_eq!(
        (target.status, target.exit_code),
        (Status::Succeeded, Some(0)),
        "{target:#?}"
    );
    let answer: Value = serde_json::from_str(&host.output(&id).await).expect("a document");
    assert_eq!(
        (&answer["rebooted"], &answer["boot_id"]),
        (&json!(true), &json!(host.sh("cat /run/story-boot-id").await)),
        "{answer}"
    );
    assert_ne!(answer["boot_id_before"], answer["boot_id"]);

    // A hook that reboots is cut off, though, as an admin's hook or an upgrade does it.
    let id = host.dispatch("reboots", "5m").await;
    until("the machine goes down", async || {
        (host.try_sh("true").await.code != 0).then_some(())
    })
    .await;
    host.power_cut().await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Failed, "{target:#?}");
    let error = target.error.clone().unwrap_or_default();
    assert!(
        error.starts_with("node rebooted: the action was cut off"),
        "{target:#?}"
    );
    // What it asked may say that the bus went away under it.
    assert_eq!(host.output(&id).await.lines().next(), Some("begin"));
}

/// The drop-in for a daemon of another user, as the documentation has it.
fn documented_drop_in() -> &'static str {
    let documentation = include_str!("../../docs/configuration.md");
    let (_, after) = documentation
        .split_once("```ini\n# /etc/systemd/system/musterd.service.d/user.conf\n")
        .expect("there is such a drop-in");
    after.split_once("```").expect("it ends").0
}

/// As the documentation says: the user first, and what it is to own; and what it may do by `sudo`.
const OF_ANOTHER_USER: &str = "
systemctl stop musterd
useradd --system --home-dir /var/lib/muster --shell /usr/sbin/nologin muster
chown -R muster: /var/lib/muster
install -d /etc/systemd/system/musterd.service.d
install -m 644 /host/user.conf /etc/systemd/system/musterd.service.d/user.conf
echo 'muster ALL=(root) NOPASSWD: /usr/bin/tee /etc/story' >/etc/sudoers.d/muster
chmod 440 /etc/sudoers.d/muster
systemctl daemon-reload
systemctl start musterd
";

#[tokio::test]
async fn a_daemon_of_another_user_does_what_sudoers_lets_it() {
    let hooks = [
        (
            "may",
            "#!/bin/sh\nid -un\necho by sudo | sudo -n /usr/bin/tee /etc/story 2>/dev/null\n",
        ),
        (
            "may-not",
            "#!/bin/sh\necho x >/etc/other || sudo -n /usr/bin/touch /etc/other\n",
        ),
    ];
    let Some(host) = TestHost::with_node("user", &hooks).await else {
        return;
    };
    host.share("user.conf", documented_drop_in());
    host.sh(OF_ANOTHER_USER).await;
    let daemon = main_pid(&host, "musterd").await;
    assert_eq!(host.sh(&format!("ps -o user= -p {daemon}")).await, "muster");
    let id = host.dispatch("may", "1m").await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Succeeded, "{target:#?}");
    assert_eq!(host.output(&id).await, "muster\nby sudo");
    assert_eq!(
        host.sh("stat -c %U /etc/story; cat /etc/story").await,
        "root\nby sudo"
    );
    let id = host.dispatch("may-not", "1m").await;
    assert_eq!(host.ended(&id).await.status, Status::Failed);
    host.sh("[ ! -e /etc/other ]").await;
}

#[tokio::test]
async fn a_daemon_that_starts_without_a_network_connects_once_there_is_one() {
    let hooks = [("free", "#!/bin/sh\necho free\n")];
    let Some(host) = TestHost::with_node("network", &hooks).await else {
        return;
    };
    host.sh("systemctl stop musterd; ip address flush dev lo; ip link set lo down")
        .await;
    // Ready is a daemon also where nobody can be reached: a boot must not wait for control.
    host.sh("systemctl start musterd").await;
    let said = host.try_sh("musterd status").await.expect(7);
    assert!(
        said.stdout.contains("not connected") && said.stdout.contains("unreachable"),
        "{}",
        said.stdout
    );
    host.sh("musterd run-local free").await;
    let before = main_pid(&host, "musterd").await;
    host.sh("ip link set lo up; ip address replace 127.0.0.1/8 dev lo")
        .await;
    host.comes_true("musterd status").await;
    let id = host.dispatch("free", "1m").await;
    assert_eq!(host.ended(&id).await.status, Status::Succeeded);
    assert_eq!(main_pid(&host, "musterd").await, before, "by the same daemon");
}

#[tokio::test]
async fn units_are_sound_and_wait_for_enrolment() {
    let Some(host) = TestHost::boot("unenrolled").await else {
        return;
    };
    // As packaging/README.md states it.
    for (unit, file, exposure_tenths_max) in [
        ("musterd", "/var/lib/muster/identity.json", 22),
        ("muster-control", "/var/lib/muster-control/control.toml", 12),
    ] {
        let said = host
            .try_sh(&format!("systemd-analyze verify --man=no {unit}.service"))
            .await
            .expect(0);
        // An older systemd says so of the two, and does without.
        let faults: Vec<&str> = said
            .stderr
            .lines()
            .filter(|line| !line.contains("'RestartSteps'") && !line.contains("'RestartMaxDelaySec'"))
            .collect();
        assert_eq!(faults, [""; 0], "systemd finds fault with {unit}.service");
        let _ = host
            .try_sh(&format!(
                "systemd-analyze security --threshold={exposure_tenths_max} {unit}.service"
            ))
            .await
            .expect(0);
        host.sh(&format!("systemctl start {unit}")).await;
        let said = host.try_sh(&format!("systemctl status {unit}")).await.expect(3);
        let why = format!("unmet condition check (ConditionPathExists={file})");
        assert!(said.stdout.contains(&why), "{}", said.stdout);
    }
}

/// As root, which is nobody that the service could read from, and with the password's file there before.
const INIT_BY_ROOT: &str = "
install -m 0600 /dev/null /var/lib/muster-control/.pgpass
muster-control init --listen 127.0.0.1:7443 --database-url \"$(cat /host/database)\" >/root/init
grep '^export ' /root/init >/root/operator
systemctl start muster-control
";

#[tokio::test(flavor = "multi_thread")]
async fn a_control_whose_rows_are_elsewhere_is_started_by_its_unit() {
    if postgres::left_out() {
        return;
    }
    let Some(host) = TestHost::boot("postgres").await else {
        return;
    };
    let database = PgDatabase::made(Cluster::shared().await).await;
    let shared = host.shared().canonicalize().expect("it is there");
    let _relay = PgRelay::within(&shared, database.cluster.socket());
    host.share("database", &database.url_by(Path::new("/host")));
    host.sh(INIT_BY_ROOT).await;
    host.sh("systemctl is-active muster-control && [ ! -e /var/lib/muster-control/control.db ]")
        .await;
    assert_eq!(host.sh("muster nodes -o name").await, "");
    let hint = "Initialised. Start it with: systemctl enable --now muster-control";
    assert_eq!(host.sh("head -n 1 /root/init").await, hint);
    let others = "find /var/lib/muster-control ! -user muster-control -o ! -group muster-control";
    assert_eq!(host.sh(others).await, "");
    host.sh("[ -e /var/lib/muster-control/.pgpass ]").await;

    // A stop may last as long as the nodes need to move, whatever the unit allows.
    host.sh("systemd-analyze log-level debug; systemctl stop muster-control; systemd-analyze log-level info")
        .await;
    host.comes_true(
        "journalctl -u muster-control | grep -q 'notification message.*EXTEND_TIMEOUT_USEC=40000000'",
    )
    .await;
}

/// Nobody gets in without the password but the story itself.
const HBA: &str = "local all postgres trust\nlocal all all scram-sha-256\n";

/// As in docs/keys.md: a credential for the service, and before there is one a file for whoever initialises.
const PASSWORD: &str = "
umask 077
echo '*:*:*:muster:open sesame' >/root/pgpass
PGPASSFILE=/root/pgpass muster-control init --listen 127.0.0.1:7443 --database-url \"$(cat /host/database)\" >/root/init
grep '^export ' /root/init >/root/operator
rm /root/pgpass
! systemctl start muster-control
systemd-creds setup
mkdir -p /etc/muster/control.d /etc/systemd/system/muster-control.service.d
printf 'open sesame' | systemd-creds encrypt --with-key=host --name=postgres - /etc/muster/postgres.cred
printf '[Service]\\nLoadCredentialEncrypted=postgres:/etc/muster/postgres.cred\\n' \\
    >/etc/systemd/system/muster-control.service.d/postgres.conf
echo 'database_password_file = \"/run/credentials/muster-control.service/postgres\"' >/etc/muster/control.d/postgres.toml
chmod 0755 /etc/muster /etc/muster/control.d
chmod 0644 /etc/muster/control.d/postgres.toml
systemctl daemon-reload
systemctl start muster-control
";

#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_the_database_may_lie_encrypted() {
    if postgres::left_out() {
        return;
    }
    let Some(host) = TestHost::boot("password").await else {
        return;
    };
    let shared = host.shared().canonicalize().expect("it is there");
    host.share("pg_hba.conf", HBA);
    let hba = format!("hba_file={}", shared.join("pg_hba.conf").display());
    let database = PgDatabase::made(Cluster::own(&[&hba]).await).await;
    database.may_be_used_by("muster", "open sesame").await;
    let _relay = PgRelay::within(&shared, database.cluster.socket());
    let url = database.url_by(Path::new("/host"));
    host.share("database", &url.replace("postgres@", "muster@"));
    host.sh(PASSWORD).await;
    assert_eq!(host.sh("muster nodes -o name").await, "");
    // As root, while the service runs.
    host.sh("muster-control doctor").await;
    host.sh("! grep -rl 'open sesame' /etc /var/lib/muster-control")
        .await;
}
