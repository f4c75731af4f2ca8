//! Where a control is, and how its program is called there.

use std::{net::TcpListener, path::PathBuf, process::Command};

use serde_json::Value;

use crate::chance;

/// Where one control is: its own directory and port, and what it shares with others.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) binary: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) port: u16,
    pub(crate) front: Option<u16>,
    /// What `--database-url` takes, if that is to be said.
    pub(crate) database_url: Option<String>,
}

impl Place {
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// `muster-control` with these words, this place's data and database, and nothing of whoever runs the tests.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .args(words)
            .arg("--data-dir")
            .arg(&self.data);
        if let Some(url) = &self.database_url {
            command.env("MUSTER_CONTROL_DATABASE_URL", url);
        }
        if let Some(front) = self.front {
            command.env("MUSTER_CONTROL_SERVER_URL", format!("https://127.0.0.1:{front}"));
        }
        command
    }
}

pub(super) fn init_control(at: &Place) -> Value {
    let out = at
        .command(&[
            "init",
            "-o",
            "json",
            "--listen",
            &format!("127.0.0.1:{}", at.port),
        ])
        .output()
        .expect("muster-control starts");
    assert!(
        out.status.success(),
        "init: {}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).expect("init prints what a client needs")
}

/// A port that nothing listens on, outside the range from which the system serves connections: control has to get the
/// same one again after a restart.
#[must_use]
pub fn free_port() -> u16 {
    for _ in 0..1000 {
        let [high, low] = chance();
        let port = 12_000 + u16::from_be_bytes([high, low]) % 18_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port on the loopback interface");
}
