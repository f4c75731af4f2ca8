//! The packages, as an admin meets them: on a machine without a network, over upgrades, and until they are gone.

use muster_shared::message_id::{ACTION_ENDED, HOOK_CHANGED, HOOK_DIFFERS};
use muster_tests::{
    TestHost,
    binaries::tool,
    packages::{NAMES, NEW, OLD, REPOSITORY, made_packages, make_again},
    prelude::*,
    s3::{ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY},
    testhost::left_out,
};

const HOOKS: [(&str, &str); 3] = [
    ("greet", "#!/bin/sh\necho hello\n"),
    (
        "slow",
        "#!/bin/sh\necho run >>/root/runs\necho begin\nuntil [ -e /root/go ]; do sleep 0.1; done\necho end\n",
    ),
    (
        "upgrades",
        "#!/bin/sh\necho run >>/root/runs\n$(cat /root/upgrade) >/root/upgraded 2>&1\necho done\n",
    ),
];

/// The two formats, by what an admin types: files for dpkg and rpm, or names that dnf looks for in a repository.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Deb,
    Rpm,
    Dnf,
}

impl Format {
    /// Where a package of ours is that was made for this machine.
    fn file(self, name: &str, version: &str) -> String {
        match self {
            Self::Deb => format!("/host/{version}/{name}_[0-9]*.deb"),
            Self::Rpm | Self::Dnf => format!("/host/{version}/{name}-[0-9]*.rpm"),
        }
    }

    /// What puts packages there for the first time, and what puts another version in their place.
    fn install(self, names: &[&str], version: &str) -> String {
        let files: Vec<String> = names.iter().map(|name| self.file(name, version)).collect();
        let files = files.join(" ");
        match self {
            // This machine leaves out documents otherwise.
            Self::Deb => format!("dpkg --install --force-unsafe-io --path-include=/usr/share/* {files}"),
            // This machine's rpm knows nothing of what dpkg has installed.
            Self::Rpm => format!("rpm --upgrade --oldpackage --nodeps {files}"),
            Self::Dnf => format!(
                "dnf -y install $(rpm --query --package --queryformat '%{{NAME}}-%{{VERSION}} ' {files})"
            ),
        }
    }

    /// What brings packages that are there to the newest version there is.
    fn upgrade(self, names: &[&str]) -> String {
        match self {
            Self::Deb | Self::Rpm => self.install(names, NEW),
            Self::Dnf => format!("dnf -y upgrade {}", names.join(" ")),
        }
    }

    /// Fails unless that version is what is installed.
    fn is_installed(self, name: &str, version: &str) -> String {
        let file = self.file(name, version);
        match self {
            Self::Deb => format!(
                "[ $(dpkg-query --show --showformat '${{Version}}' {name}) = $(dpkg-deb --field {file} Version) ]"
            ),
            Self::Rpm | Self::Dnf => format!("[ $(rpm --query {name}) = $(rpm --query --package {file}) ]"),
        }
    }

    fn remove(self, names: &[&str]) -> String {
        let command = match self {
            Self::Deb => "dpkg --remove",
            Self::Rpm => "rpm --erase --nodeps",
            Self::Dnf => "dnf -y remove",
        };
        format!("{command} {}", names.join(" "))
    }
}

const ACTIVE: &str = "systemctl is-active --quiet musterd";
/// Every file of ours, wherever a package, a script or a daemon may have put it. The journal is systemd's.
const OURS: &str = "find /etc /usr /var /run /tmp -xdev \\( -name '*muster*' -o -path '*muster*/*' \\) \
    -not -path '/var/log/*' -not -path '/run/log/*' -not -path '/var/lib/dpkg/*' -not -path '/run/systemd/*' | sort";

async fn main_pid(host: &TestHost, unit: &str) -> String {
    host.sh(&format!("systemctl show -P MainPID {unit}")).await
}

async fn greets(host: &TestHost) {
    let id = host.dispatch("greet", "1m").await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Succeeded, "{target:#?}");
    assert_eq!(host.output(&id).await, "hello");
}

/// Dispatches a hook that waits, and gives its execution and its supervisor.
async fn slow(host: &TestHost) -> (String, String) {
    host.sh("rm -f /root/runs /root/go").await;
    let id = host.dispatch("slow", "10m").await;
    host.said("/root/runs").await;
    let supervisor = main_pid(host, &format!("muster-hook-{id}.service")).await;
    (id, supervisor)
}

async fn slow_went_through(host: &TestHost, id: &str) {
    host.sh("touch /root/go").await;
    let target = host.ended(id).await;
    assert_eq!(
        (target.status, target.exit_code),
        (Status::Succeeded, Some(0)),
        "{target:#?}"
    );
    assert_eq!(host.output(id).await, "begin\nend");
    assert_eq!(host.sh("cat /root/runs").await, "run", "it ran once");
}

async fn still_runs(host: &TestHost, id: &str, supervisor: &str) {
    assert_eq!(
        main_pid(host, &format!("muster-hook-{id}.service")).await,
        supervisor
    );
}

#[tokio::test]
async fn debian_packages_are_installed_used_upgraded_and_purged() {
    let Some(host) = TestHost::with_packages("deb").await else {
        return;
    };
    a_node_is_made_of_them(&host, Format::Deb).await;
    dpkg_knows_what_an_admin_may_change(&host).await;
    an_upgrade_leaves_hooks_and_settings_alone(&host, Format::Deb).await;
    a_hook_upgrades_its_own_daemon(&host, Format::Deb).await;
    a_downgrade_is_an_upgrade(&host, Format::Deb).await;
    what_was_stopped_stays_stopped(&host, Format::Deb).await;
    the_packages_settings_meet_the_admins(&host).await;
    the_environment_is_the_admins(&host).await;
    the_journal_explains_what_happened(&host).await;
    a_removal_ends_no_hook_and_forgets_nothing(&host, Format::Deb).await;
    what_was_disabled_is_so_when_it_comes_back(&host, Format::Deb).await;
    nothing_is_left_by_a_purge(&host).await;
}

#[tokio::test]
async fn rpm_packages_are_installed_used_upgraded_and_erased() {
    let Some(host) = TestHost::with_packages("rpm").await else {
        return;
    };
    what_they_need_is_in_every_distribution(&host).await;
    a_node_is_made_of_them(&host, Format::Rpm).await;
    let configs = host.sh("rpm --query --configfiles musterd muster-control").await;
    assert_eq!(configs, "/etc/muster/agent.toml\n/etc/muster/control.toml");
    an_upgrade_leaves_hooks_and_settings_alone(&host, Format::Rpm).await;
    a_hook_upgrades_its_own_daemon(&host, Format::Rpm).await;
    a_downgrade_is_an_upgrade(&host, Format::Rpm).await;
    what_was_stopped_stays_stopped(&host, Format::Rpm).await;
    a_removal_ends_no_hook_and_forgets_nothing(&host, Format::Rpm).await;
    what_was_disabled_is_so_when_it_comes_back(&host, Format::Rpm).await;
    // What an admin has changed is kept beside.
    host.sh(&Format::Rpm.remove(&NAMES)).await;
    assert_eq!(
        host.sh("ls /etc/muster/agent.toml.rpmsave").await,
        "/etc/muster/agent.toml.rpmsave"
    );
    host.sh("[ -d /var/lib/muster ] && [ ! -e /usr/bin/musterd ]")
        .await;
    host.sh("! systemctl cat musterd muster-control 2>/dev/null")
        .await;
}

/// As where rpms are what everything is made of: by name, from a repository, with what they need.
#[tokio::test]
async fn dnf_installs_upgrades_and_removes_what_a_repository_has() {
    let Some(host) = TestHost::with_tools_and_packages("dnf").await else {
        return;
    };
    host.sh(REPOSITORY).await;
    a_node_is_made_of_them(&host, Format::Dnf).await;
    // What is required, and what is recommended.
    host.sh("rpm --query glibc bash shadow-utils systemd dbus").await;
    host.sh("! systemctl is-enabled --quiet musterd; ! systemctl is-enabled --quiet muster-control")
        .await;
    host.sh("systemctl enable --quiet musterd muster-control").await;
    an_upgrade_leaves_hooks_and_settings_alone(&host, Format::Dnf).await;
    a_hook_upgrades_its_own_daemon(&host, Format::Dnf).await;
    a_downgrade_is_an_upgrade(&host, Format::Dnf).await;
    a_builtin_upgrades_its_own_daemon(&host).await;
    the_same_version_once_more(&host).await;
    what_was_stopped_stays_stopped(&host, Format::Dnf).await;
    a_removal_ends_no_hook_and_forgets_nothing(&host, Format::Dnf).await;
    what_was_disabled_is_so_when_it_comes_back(&host, Format::Dnf).await;
    host.sh(&Format::Dnf.remove(&NAMES)).await;
    host.sh("[ -d /var/lib/muster ] && [ ! -e /usr/bin/musterd ]")
        .await;
    host.sh("! systemctl cat musterd muster-control 2>/dev/null")
        .await;
}

/// The daemon asks for what apt would do where there is apt.
async fn a_builtin_upgrades_its_own_daemon(host: &TestHost) {
    host.sh("mv /usr/bin/apt-get /root/").await;
    let daemon = main_pid(host, "musterd").await;
    let id = host
        .sh("muster run packages.list -l role=story -p state=upgradable")
        .await;
    host.ended(&id).await;
    let asked = host.output(&id).await;
    let listed: Value = serde_json::from_str(&asked).expect("an answer");
    assert_eq!(listed["manager"], "dnf", "{listed}");
    let names: Vec<&str> = listed["packages"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|package| package["name"].as_str())
        .collect();
    assert_eq!(names, ["muster", "muster-control", "musterd"], "{listed}");
    let id = host
        .sh("muster run packages.upgrade -l role=story -p packages=musterd")
        .await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Succeeded, "{target:#?}");
    let done: Value = serde_json::from_str(&host.output(&id).await).expect("an answer");
    assert_eq!(done["upgraded"][0]["name"], "musterd", "{done}");
    host.sh(&Format::Dnf.is_installed("musterd", NEW)).await;
    assert_ne!(main_pid(host, "musterd").await, daemon);
    host.sh("mv /root/apt-get /usr/bin/").await;
}

async fn the_same_version_once_more(host: &TestHost) {
    let (id, supervisor) = slow(host).await;
    host.sh("dnf -y reinstall musterd").await;
    host.sh(&format!("{ACTIVE} && systemctl is-enabled --quiet musterd"))
        .await;
    still_runs(host, &id, &supervisor).await;
    slow_went_through(host, &id).await;
}

/// This machine has all of it by its other manager.
async fn what_they_need_is_in_every_distribution(host: &TestHost) {
    let unmet = host
        .sh(&format!(
            "rpm --install --test /host/{OLD}/*.rpm 2>&1 | grep ' is needed by ' | \
             grep -v '\\.so[.(]\\|\\.so$\\|rtld(GNU_HASH)\\|/bin/sh\\|shadow-utils' || true"
        ))
        .await;
    assert_eq!(unmet, "");
}

/// There is no network but the loopback, and nothing that the packages recommend.
async fn a_node_is_made_of_them(host: &TestHost, format: Format) {
    let said = host.sh(&format.install(&NAMES, OLD)).await;
    for hint in ["musterd enroll --server", "muster-control init"] {
        assert!(said.contains(hint), "{said}");
    }
    for name in NAMES {
        host.sh(&format.is_installed(name, OLD)).await;
    }
    let wanted = "/etc/muster root:root 755\n/etc/muster/agent.d root:root 755\n/etc/muster/agent.toml root:root 644\n\
        /etc/muster/control.d root:root 755\n/etc/muster/control.toml root:root 644\n/etc/muster/hooks.d root:root 755\n/usr/bin/musterd root:root 755\n\
        /var/lib/muster root:root 700\n/var/lib/muster-control muster-control:muster-control 700";
    let found = host
        .sh("stat -c '%n %U:%G %a' /etc/muster /etc/muster/* /usr/bin/musterd /var/lib/muster /var/lib/muster-control | sort")
        .await;
    assert_eq!(found, wanted);
    for unit in ["musterd", "muster-control"] {
        host.sh(&format!("systemctl start {unit}; ! systemctl is-active {unit}"))
            .await;
        let said = host.try_sh(&format!("systemctl status {unit}")).await.expect(3);
        assert!(said.stdout.contains("unmet condition check"), "{}", said.stdout);
    }
    host.enrol(&HOOKS).await;
    greets(host).await;
}

async fn dpkg_knows_what_an_admin_may_change(host: &TestHost) {
    let conffiles = host
        .sh("dpkg-query --show --showformat '${Conffiles}\\n' musterd muster-control | awk 'NF { print $1 }' | sort")
        .await;
    assert_eq!(conffiles, "/etc/muster/agent.toml\n/etc/muster/control.toml");
    assert_eq!(host.sh("dpkg --verify musterd muster-control muster").await, "");
    for unit in ["musterd", "muster-control"] {
        assert_eq!(host.sh(&format!("systemctl is-enabled {unit}")).await, "enabled");
    }
}

async fn an_upgrade_leaves_hooks_and_settings_alone(host: &TestHost, format: Format) {
    host.sh("echo 'running_max = 3' >>/etc/muster/agent.toml
         echo 'queue_max = 5' >/etc/muster/agent.d/story.toml
         printf '[limits]\\nrequests_burst = 199\\n' >>/etc/muster/control.toml
         printf '[limits]\\nrequests_burst = 198\\n' >/etc/muster/control.d/story.toml")
        .await;
    // As before a password goes in there.
    host.sh("chgrp muster-control /etc/muster/control.toml && chmod 0640 /etc/muster/control.toml")
        .await;
    let before = host.sh("sha256sum /etc/muster/*.toml /etc/muster/*.d/*").await;
    let (id, supervisor) = slow(host).await;
    let daemons = (
        main_pid(host, "musterd").await,
        main_pid(host, "muster-control").await,
    );
    host.sh(&format.upgrade(&NAMES)).await;
    host.sh(&format.is_installed("musterd", NEW)).await;
    assert_ne!(main_pid(host, "musterd").await, daemons.0);
    assert_ne!(main_pid(host, "muster-control").await, daemons.1);
    host.comes_true(ACTIVE).await;
    assert_eq!(
        host.sh("sha256sum /etc/muster/*.toml /etc/muster/*.d/*").await,
        before
    );
    let about = host.sh("stat -c '%U:%G %a' /etc/muster/control.toml").await;
    assert_eq!(about, "root:muster-control 640");
    still_runs(host, &id, &supervisor).await;
    slow_went_through(host, &id).await;
    // A drop-in counts, and one that is not sound is named.
    host.sh(
        "muster-control doctor >/root/doctor 2>&1 || true; ! grep -q story.toml /root/doctor
         echo 'listne = 1' >>/etc/muster/control.d/story.toml
         ! muster-control doctor >/root/doctor 2>&1; grep control.d/story.toml /root/doctor
         rm /etc/muster/control.d/story.toml",
    )
    .await;
}

/// Where admins of Debian and of Fedora look for it.
async fn the_environment_is_the_admins(host: &TestHost) {
    for (dir, unit) in [("default", "musterd"), ("sysconfig", "muster-control")] {
        host.sh(&format!(
            "mkdir -p /etc/{dir} && echo MUSTER_LOG=debug >/etc/{dir}/{unit} && systemctl restart {unit}
             tr '\\0' '\\n' </proc/$(systemctl show -P MainPID {unit})/environ | grep -x MUSTER_LOG=debug
             rm /etc/{dir}/{unit} && systemctl restart {unit}"
        ))
        .await;
    }
}

/// By its id, with what the catalog of the package says of it.
async fn the_journal_explains_what_happened(host: &TestHost) {
    let id = host.dispatch("greet", "1m").await;
    host.ended(&id).await;
    host.comes_true(&format!(
        "journalctl --catalog MESSAGE_ID={ACTION_ENDED} EXECUTION_ID={id} >/root/told
         grep 'An action of Muster ended: greet (succeeded)' /root/told && grep 'muster execution show {id}' /root/told"
    ))
    .await;
    host.sh("echo '# changed' >>/etc/muster/hooks.d/greet").await;
    for (message, unit) in [(HOOK_CHANGED, "musterd"), (HOOK_DIFFERS, "muster-control")] {
        host.comes_true(&format!(
            "journalctl --catalog --unit {unit} MESSAGE_ID={message} | grep 'muster hooks approve'"
        ))
        .await;
    }
    host.sh("sed -i '/^# changed/d' /etc/muster/hooks.d/greet").await;
    until("the hook runs again", async || {
        let hooks = host.sh("muster hooks -o json").await;
        (!hooks.contains("drift")).then_some(())
    })
    .await;
}

async fn a_hook_upgrades_its_own_daemon(host: &TestHost, format: Format) {
    host.sh(&format.install(&["musterd"], OLD)).await;
    let before = main_pid(host, "musterd").await;
    let command = format.upgrade(&["musterd"]);
    host.sh(&format!("rm -f /root/runs; echo {command} >/root/upgrade"))
        .await;
    let id = host.dispatch("upgrades", "5m").await;
    let target = host.ended(&id).await;
    assert_eq!(
        (target.status, target.exit_code),
        (Status::Succeeded, Some(0)),
        "{target:#?} {}",
        host.sh("cat /root/upgraded").await
    );
    assert_eq!(host.output(&id).await, "done");
    assert_eq!(host.sh("cat /root/runs").await, "run", "it ran once");
    host.sh(&format.is_installed("musterd", NEW)).await;
    assert_ne!(main_pid(host, "musterd").await, before);
}

async fn a_downgrade_is_an_upgrade(host: &TestHost, format: Format) {
    let (id, supervisor) = slow(host).await;
    host.sh(&format.install(&NAMES, OLD)).await;
    host.sh(&format.is_installed("musterd", OLD)).await;
    still_runs(host, &id, &supervisor).await;
    slow_went_through(host, &id).await;
}

async fn what_was_stopped_stays_stopped(host: &TestHost, format: Format) {
    host.sh("systemctl disable --now musterd").await;
    host.sh(&format.install(&["musterd"], NEW)).await;
    host.sh(&format!("! {ACTIVE}; ! systemctl is-enabled --quiet musterd"))
        .await;
    host.sh("systemctl enable --now musterd").await;
    greets(host).await;
}

/// A version whose own settings differ, as `apt-get upgrade` would install it where nobody is there to be asked.
async fn the_packages_settings_meet_the_admins(host: &TestHost) {
    host.sh(&format!(
        "dpkg-deb --raw-extract {0} /tmp/newer
         echo '# newer' | tee -a /tmp/newer/etc/muster/agent.toml
         sed -i 's/^Version: .*/&+newer/' /tmp/newer/DEBIAN/control
         dpkg-deb -Znone --root-owner-group --build /tmp/newer /tmp/newer.deb
         dpkg --install --force-unsafe-io --force-confdef --force-confold /tmp/newer.deb
         grep -x 'running_max = 3' /etc/muster/agent.toml
         grep -x '# newer' /etc/muster/agent.toml.dpkg-dist
         rm -r /tmp/newer /tmp/newer.deb
         dpkg --install --force-unsafe-io --force-confold {0}",
        Format::Deb.file("musterd", NEW)
    ))
    .await;
    greets(host).await;
}

async fn a_removal_ends_no_hook_and_forgets_nothing(host: &TestHost, format: Format) {
    let (id, supervisor) = slow(host).await;
    host.sh(&format.remove(&["musterd"])).await;
    host.sh(&format!(
        "! {ACTIVE}; [ ! -e /usr/bin/musterd ]; [ -e /var/lib/muster/identity.json ]"
    ))
    .await;
    host.sh("[ -x /etc/muster/hooks.d/slow ] && [ -e /etc/muster/agent.d/story.toml ]")
        .await;
    still_runs(host, &id, &supervisor).await;
    host.sh("touch /root/go").await;
    host.comes_true(&format!("! systemctl is-active --quiet muster-hook-{id}"))
        .await;
    // It is told by whoever comes next.
    host.sh(&format.install(&["musterd"], NEW)).await;
    host.sh(
        "[ ! -e /run/musterd.installed-again ] && [ -z \"$(ls -d /var/lib/muster/.*abled.* 2>/dev/null)\" ]",
    )
    .await;
    host.sh("systemctl is-enabled --quiet musterd").await;
    slow_went_through(host, &id).await;
}

/// Both are as they were: a removal is no reason to run what an admin has taken out of service.
async fn what_was_disabled_is_so_when_it_comes_back(host: &TestHost, format: Format) {
    host.sh("systemctl disable --now musterd; systemctl enable --quiet musterd-enroll")
        .await;
    host.sh(&format.remove(&["musterd"])).await;
    host.sh(&format.install(&["musterd"], NEW)).await;
    host.sh(&format!(
        "! {ACTIVE}; ! systemctl is-enabled --quiet musterd; systemctl is-enabled --quiet musterd-enroll"
    ))
    .await;
    host.sh("systemctl disable musterd-enroll; systemctl enable --now musterd")
        .await;
    greets(host).await;
}

async fn nothing_is_left_by_a_purge(host: &TestHost) {
    // What an image has, and what user data leaves there.
    host.sh("systemctl enable musterd-enroll 2>/dev/null
         touch /etc/muster/enroll.env /etc/muster/bootstrap-token /etc/default/musterd")
        .await;
    host.sh("dpkg --purge musterd muster").await;
    // The other service has its own.
    host.sh("[ -e /etc/muster/control.toml ] && systemctl is-active muster-control")
        .await;
    host.sh("dpkg --purge muster-control").await;
    assert_eq!(host.sh(OURS).await, "");
    host.sh("! getent passwd muster-control && ! getent group muster-control")
        .await;
    // And all of it can begin again.
    host.sh(&Format::Deb.install(&NAMES, NEW)).await;
    host.sh("getent passwd muster-control && [ -d /var/lib/muster ]")
        .await;
}

/// As in the making of an image: no PID 1 of systemd's, and none of its tools that work.
#[tokio::test]
async fn packages_need_no_systemd_to_be_installed() {
    let Some(host) = TestHost::with_packages("image").await else {
        return;
    };
    for format in [Format::Deb, Format::Rpm] {
        let (install, upgrade) = (format.install(&NAMES, OLD), format.install(&NAMES, NEW));
        let remove = format.remove(&NAMES);
        host.sh(&format!(
            "cat >/root/image <<'END'
             set -eu
             mount -t tmpfs tmpfs /run
             for tool in systemctl systemd-sysusers systemd-tmpfiles; do mount --bind /bin/false $(command -v $tool); done
             {install}
             stat -c %U:%a /var/lib/muster /var/lib/muster-control | tr '\\n' ' '
             {upgrade} >/dev/null
             {remove} >/dev/null
END
             unshare --mount sh /root/image >/root/said"
        ))
        .await;
        let said = host.sh("tail -n 1 /root/said").await;
        assert_eq!(said, "root:700 muster-control:700");
        host.sh("userdel muster-control; rm -rf /var/lib/muster /var/lib/muster-control /etc/muster")
            .await;
        if format == Format::Deb {
            host.sh("dpkg --purge musterd muster muster-control").await;
        }
    }
}

/// The daemon crashes as soon as it is started, for as long as there is no `/root/mended`.
const BROKEN: &str = "
mkdir -p /var/lib/muster && touch /var/lib/muster/identity.json
mkdir -p /run/systemd/system/musterd.service.d
printf '[Service]\\nType=exec\\nExecStart=\\nExecStart=/bin/sh -c \"[ -e /root/mended ] || kill -KILL $$$$; exec sleep infinity\"\\nLoadCredential=\\n' \
    >/run/systemd/system/musterd.service.d/story.conf
systemctl daemon-reload
";

#[tokio::test]
async fn a_crash_loop_backs_off() {
    let Some(host) = TestHost::with_packages("crashes").await else {
        return;
    };
    host.sh(&Format::Deb.install(&["musterd"], OLD)).await;
    host.sh(BROKEN).await;
    assert_eq!(
        host.sh("systemctl show -P StartLimitIntervalUSec musterd").await,
        "0"
    );
    if host
        .sh("systemctl --version | awk 'NR == 1 { print $2 }'")
        .await
        .parse::<u32>()
        .expect("a version")
        >= 254
    {
        assert_eq!(host.sh("systemctl show -P RestartSteps musterd").await, "10");
        assert_eq!(
            host.sh("systemctl show -P RestartMaxDelayUSec musterd").await,
            "5min"
        );
        return;
    }
    assert_eq!(host.sh("systemctl show -P RestartUSec musterd").await, "5s");
    // Quicker, and by the same rules.
    host.sh(
        "printf '[Service]\\nRestartSec=20ms\\n' >/run/systemd/system/musterd.service.d/quick.conf
         systemctl daemon-reload; systemctl start musterd || true",
    )
    .await;
    host.comes_true("[ $(systemctl show -P NRestarts musterd) -gt 25 ]")
        .await;
    // Once it is mended, nobody has to come by.
    host.sh("touch /root/mended").await;
    host.comes_true("[ $(cat /proc/$(systemctl show -P MainPID musterd)/comm) = sleep ]")
        .await;
}

/// The key in a file that only this machine can open, as the unit says.
#[tokio::test]
async fn the_nodes_key_may_lie_encrypted() {
    let Some(host) = TestHost::with_packages("credential").await else {
        return;
    };
    host.sh(&Format::Deb.install(&NAMES, OLD)).await;
    host.enrol(&HOOKS).await;
    host.sh("systemctl stop musterd
         systemd-creds setup
         systemd-creds encrypt --with-key=host --name=nsk /var/lib/muster/nsk /etc/muster/nsk.cred
         rm /var/lib/muster/nsk
         mkdir -p /etc/systemd/system/musterd.service.d
         printf '[Service]\\nLoadCredential=\\nLoadCredentialEncrypted=nsk:/etc/muster/nsk.cred\\n' \
             >/etc/systemd/system/musterd.service.d/key.conf
         systemctl daemon-reload
         systemctl start musterd")
        .await;
    greets(&host).await;
    host.sh("[ ! -e /var/lib/muster/nsk ]").await;
}

/// The same for control, whose secret opens a store that checks every signature. In the drop-in and the settings of
/// docs/configuration.md.
#[tokio::test]
async fn the_secret_of_controls_store_may_lie_encrypted() {
    let Some(host) = TestHost::with_tools_and_packages("store").await else {
        return;
    };
    std::fs::copy(tool("s3s-fs", "S3S_FS"), host.shared().join("s3s-fs")).expect("it can be copied");
    host.sh(&Format::Deb.install(&NAMES, OLD)).await;
    host.sh(&format!(
        "mkdir -p /srv/s3/{BUCKET}
         systemd-run --unit store /host/s3s-fs --host 127.0.0.1 --port 9000 \\
             --access-key {ACCESS_KEY_ID} --secret-key {SECRET_ACCESS_KEY} /srv/s3
         systemd-creds setup
         printf {SECRET_ACCESS_KEY} | systemd-creds encrypt --with-key=host --name=s3 - /etc/muster/s3.cred
         mkdir -p /etc/systemd/system/muster-control.service.d
         printf '[Service]\\nLoadCredentialEncrypted=s3:/etc/muster/s3.cred\\n' \\
             >/etc/systemd/system/muster-control.service.d/s3.conf
         cat >/etc/muster/control.d/s3.toml <<END
[output.s3]
endpoint = \"http://127.0.0.1:9000\"
region = \"us-east-1\"
bucket = \"{BUCKET}\"
access_key_id = \"{ACCESS_KEY_ID}\"
secret_access_key_file = \"/run/credentials/muster-control.service/s3\"
path_style = true
END
         systemctl daemon-reload"
    ))
    .await;
    host.comes_true("systemctl -q is-active store").await;
    host.enrol(&[("large", "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x\n")])
        .await;
    let id = host.dispatch("large", "1m").await;
    let target = host.ended(&id).await;
    assert_eq!(target.status, Status::Succeeded, "{target:#?}");
    assert_eq!(host.output(&id).await.len(), 100_000);
    // It is where control was told to put it, and the secret is nowhere in plain but where systemd hands it over.
    host.sh(&format!("[ -n \"$(find /srv/s3/{BUCKET} -size +90k)\" ]"))
        .await;
    host.sh(&format!(
        "! grep -rl {SECRET_ACCESS_KEY} /etc /var/lib/muster-control /var/lib/muster"
    ))
    .await;
    // As root, while the service runs.
    host.sh("muster-control doctor").await;
}

#[test]
fn two_builds_give_the_same_bytes() {
    if left_out() {
        return;
    }
    let (made, again) = (
        made_packages().join(OLD),
        tempfile::tempdir().expect("a directory"),
    );
    make_again(again.path());
    let mut count = 0;
    for entry in std::fs::read_dir(&made).expect("there are packages") {
        let name = entry.expect("they can be listed").file_name();
        let [one, other] =
            [made.join(&name), again.path().join(&name)].map(|path| std::fs::read(path).expect("a package"));
        assert!(one == other, "{name:?} has other bytes when it is made again");
        count += 1;
    }
    assert_eq!(count, 2 * NAMES.len());
}
