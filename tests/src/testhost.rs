//! A machine of its own with a real systemd: control, a node and their units installed as an admin would.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_shared::wire::{Execution, ExecutionTarget};

use crate::{Said, binaries::binary, operator::said_by, packages, until};

/// Set to `skip` where no such machine can be made. Nothing else makes these stories pass untold.
const VARIABLE: &str = "MUSTER_STORY_SYSTEMD";
const BINARIES: [&str; 3] = ["musterd", "muster-control", "muster"];
const UNITS: [&str; 2] = ["musterd.service", "muster-control.service"];

const INSTALL: &str = "
cd /host
install -m 755 musterd muster-control muster /usr/bin/
install -m 644 musterd.service muster-control.service /usr/lib/systemd/system/
useradd --system --home-dir /var/lib/muster-control --shell /usr/sbin/nologin muster-control
install -d -o muster-control -g muster-control -m 0700 /var/lib/muster-control
install -d /etc/muster/hooks.d
systemctl daemon-reload
";

const SERVE: &str = "
runuser -u muster-control -- muster-control init --data-dir /var/lib/muster-control --listen 127.0.0.1:7443 |
    grep '^export ' >/root/operator
systemctl start muster-control
";

const ENROL: &str = "
. /root/operator
umask 077
muster tokens issue --labels role=story --uses 1 --ttl 1h -o json | sed -n 's/.*\"token\": *\"\\([^\"]*\\)\".*/\\1/p' >/root/token
musterd enroll --server $MUSTER_SERVER --token-file /root/token --ca-file $MUSTER_CA_FILE
";

pub struct TestHost {
    name: String,
}

/// Whether stories of such a machine are not to be told here.
#[must_use]
pub fn left_out() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "skip")
}

fn script() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/testhost"))
}

async fn testhost(args: &[&str]) -> Said {
    let mut command = tokio::process::Command::new(script());
    command.args(args);
    said_by(command).await
}

impl TestHost {
    /// Boots one with nothing of ours on it; none where the story is to be left out.
    ///
    /// # Panics
    /// When there can be none here and nobody said to leave the story out.
    pub async fn bare(name: &str) -> Option<Self> {
        Self::on(name, None).await
    }

    /// Boots one with that layer of `scripts/testhost` on top of what every machine has.
    async fn on(name: &str, layer: Option<&str>) -> Option<Self> {
        if left_out() {
            return None;
        }
        let base = testhost(&["base"].into_iter().chain(layer).collect::<Vec<_>>()).await;
        assert!(
            base.code == 0,
            "this story needs root, namespaces and mmdebstrap; to leave it out, set {VARIABLE}=skip\n{}",
            base.stderr
        );
        let host = Self {
            name: format!("{name}-{}", std::process::id()),
        };
        let up = ["up", &host.name].into_iter().chain(layer);
        let _ = testhost(&up.collect::<Vec<_>>()).await.expect(0);
        Some(host)
    }

    /// The same with the packages under test in `/host/old` and `/host/new`, and none installed.
    ///
    /// # Panics
    /// When they cannot be made.
    pub async fn with_packages(name: &str) -> Option<Self> {
        let host = Self::bare(name).await?;
        host.bring_packages();
        Some(host)
    }

    /// The same, and the machine has dnf, Ansible and cloud-init.
    ///
    /// # Panics
    /// When they cannot be made.
    pub async fn with_tools_and_packages(name: &str) -> Option<Self> {
        let host = Self::on(name, Some("tools")).await?;
        host.bring_packages();
        Some(host)
    }

    fn bring_packages(&self) {
        let packages = packages::story_packages();
        for version in [packages::OLD, packages::NEW] {
            let to = self.shared().join(version);
            fs::create_dir(&to).expect("a directory can be made");
            for entry in fs::read_dir(packages.join(version)).expect("there are packages") {
                let from = entry.expect("they can be listed").path();
                // The machine reads them, and nothing writes them.
                let place = to.join(from.file_name().expect("it has a name"));
                fs::hard_link(&from, &place)
                    .or_else(|_other_disk| fs::copy(&from, &place).map(drop))
                    .expect("a package can be copied");
            }
        }
    }

    /// Boots one with the binaries and units installed and nothing started.
    ///
    /// # Panics
    /// When there can be none here and nobody said to leave the story out.
    pub async fn boot(name: &str) -> Option<Self> {
        let host = Self::bare(name).await?;
        let shared = host.shared();
        for name in BINARIES {
            fs::copy(binary(name), shared.join(name)).expect("a binary can be copied");
        }
        let units = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd"));
        for name in UNITS {
            fs::copy(units.join(name), shared.join(name)).expect("a unit can be copied");
        }
        host.sh(INSTALL).await;
        Some(host)
    }

    /// The same with a control that serves and a node that is enrolled, has these hooks and is connected.
    pub async fn with_node(name: &str, hooks: &[(&str, &str)]) -> Option<Self> {
        let host = Self::boot(name).await?;
        host.enrol(hooks).await;
        Some(host)
    }

    /// Initialises and starts what is installed, enrols the node with these hooks, and waits until it is connected.
    pub async fn enrol(&self, hooks: &[(&str, &str)]) {
        self.serve().await;
        self.sh(ENROL).await;
        for (name, script) in hooks {
            self.hook(name, script);
        }
        self.sh(
            "for hook in /host/hook-*; do install -m 755 $hook /etc/muster/hooks.d/${hook#/host/hook-}; done",
        )
        .await;
        // What systemd takes for started has opened its stream.
        self.sh("systemctl start musterd").await;
        for (name, _) in hooks {
            until("control knows the hooks", async || {
                self.sh("muster hooks -o json").await.contains(name).then_some(())
            })
            .await;
        }
    }

    /// Starts a control inside.
    pub async fn serve(&self) {
        self.sh(SERVE).await;
    }

    /// Puts a file where it is `/host/NAME` inside.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn share(&self, name: &str, text: &str) {
        fs::write(self.shared().join(name), text).expect("a file can be written");
    }

    /// The directory that is `/host` inside.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        let home = std::env::var_os("TESTHOST_DIR").map_or_else(
            || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/testhost")),
            PathBuf::from,
        );
        home.join(&self.name).join("shared")
    }

    fn hook(&self, name: &str, script: &str) {
        let path = self.shared().join(format!("hook-{name}"));
        fs::write(&path, script).expect("a hook can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
    }

    /// Runs a script inside, with the operator's access, whatever becomes of it.
    pub async fn try_sh(&self, script: &str) -> Said {
        let script = format!("[ ! -e /root/operator ] || . /root/operator\n{script}");
        testhost(&["run", &self.name, "sh", "-euc", &script]).await
    }

    /// Runs a script inside that has to succeed, and gives what it printed.
    pub async fn sh(&self, script: &str) -> String {
        let said = self.try_sh(script).await;
        assert_eq!(said.code, 0, "{script}\n{}\n{}", said.stdout, said.stderr);
        said.stdout.trim().to_owned()
    }

    /// Dispatches a hook to the node and gives the id.
    pub async fn dispatch(&self, hook: &str, timeout: &str) -> String {
        self.sh(&format!("muster run {hook} -l role=story --timeout {timeout}"))
            .await
    }

    /// Waits until an execution is settled.
    pub async fn settled(&self, id: &str) -> Execution {
        until("the execution is settled", async || {
            let shown = self.sh(&format!("muster execution show {id} -o json")).await;
            let execution: Execution = serde_json::from_str(&shown).expect("an execution");
            execution.status.is_terminal().then_some(execution)
        })
        .await
    }

    /// What became of it on the node.
    pub async fn ended(&self, id: &str) -> ExecutionTarget {
        let mut targets = self.settled(id).await.targets;
        assert_eq!(targets.len(), 1, "{targets:#?}");
        targets.remove(0)
    }

    pub async fn output(&self, id: &str) -> String {
        self.sh(&format!("muster execution output {id}")).await
    }

    /// Waits until a file inside has something to say.
    pub async fn said(&self, file: &str) -> String {
        until(&format!("{file} is written"), async || {
            let said = self.try_sh(&format!("cat {file}")).await;
            Some(said.stdout.trim().to_owned()).filter(|text| said.code == 0 && !text.is_empty())
        })
        .await
    }

    /// Waits until a script succeeds.
    pub async fn comes_true(&self, script: &str) {
        until(script, async || {
            (self.try_sh(script).await.code == 0).then_some(())
        })
        .await;
    }

    /// Cuts the power and boots the same disk again.
    pub async fn power_cut(&self) {
        let _ = testhost(&["crash", &self.name]).await.expect(0);
        let _ = testhost(&["up", &self.name]).await.expect(0);
    }
}

/// How long a machine may take to go away.
const GONE_WITHIN: Duration = Duration::from_secs(20);

impl Drop for TestHost {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_journal();
        }
        let down = std::process::Command::new(script())
            .args(["down", &self.name])
            .spawn();
        if let Ok(mut down) = down {
            let give_up = std::time::Instant::now() + GONE_WITHIN;
            while matches!(down.try_wait(), Ok(None)) && std::time::Instant::now() < give_up {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl TestHost {
    #[expect(
        clippy::print_stderr,
        reason = "the journal of a failed story is for the person who reads the failure"
    )]
    fn print_journal(&self) {
        let journal = ["journalctl", "--no-pager", "-n", "150", "-o", "short-precise"];
        let said = std::process::Command::new(script())
            .args(["run", &self.name])
            .args(journal)
            .output();
        if let Ok(said) = said {
            eprintln!(
                "--- the journal of {}\n{}",
                self.name,
                String::from_utf8_lossy(&said.stdout)
            );
        }
    }
}
