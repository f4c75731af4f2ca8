//! The swarm as the bench drives it: a process of its own, so that its CPU is not control's.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    binaries::binary,
    swarm::tally::{Counts, RoundDone},
};

/// What a swarm may take to come to what is waited for, on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct SwarmProcess {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<(Instant, Value)>,
}

impl SwarmProcess {
    /// # Errors
    /// When it does not start.
    pub fn start(dir: &Path, server: SocketAddr, nodes: usize, more: &[&str]) -> Result<Self, String> {
        let mut command = Command::new(binary("muster-swarm"));
        let mut child = command
            .arg("--identities")
            .arg(dir.join("fleet.json"))
            .args(["--server", &server.to_string(), "--nodes", &nodes.to_string()])
            .arg("--journal")
            .arg(dir.join("swarm-journal"))
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| format!("muster-swarm does not start: {err}"))?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = child.stdout.take().ok_or("no output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(value) = serde_json::from_str(&line) else {
                    continue;
                };
                if sender.send((Instant::now(), value)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, input, lines })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.input, "{line}").map_err(|err| format!("the swarm does not listen: {err}"))
    }

    fn heard<T>(&self, what: &str, mut of: impl FnMut(&Value) -> Option<T>) -> Result<(Instant, T), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (at, line) = self
                .lines
                .recv_timeout(left)
                .map_err(|err| format!("waited in vain: {what}: {err}"))?;
            if let Some(found) = of(&line) {
                return Ok((at, found));
            }
        }
    }

    /// Waits until so many streams are open; answers with when that was.
    ///
    /// # Errors
    /// When it never is.
    pub fn connected(&mut self, nodes: usize) -> Result<Instant, String> {
        let wanted = nodes as u64;
        // One that was told before somebody asked is asked for.
        self.tell("connected")?;
        let (at, _) = self.heard("all streams are open", |line| {
            (line["connected"].as_u64()? == wanted).then_some(())
        })?;
        Ok(at)
    }

    /// Waits until fewer are open, as after control has gone.
    ///
    /// # Errors
    /// When that never happens.
    pub fn lost(&mut self, nodes: usize) -> Result<Instant, String> {
        let wanted = nodes as u64;
        let (at, _) = self.heard("streams end", |line| {
            (line["connected"].as_u64()? < wanted).then_some(())
        })?;
        Ok(at)
    }

    /// # Errors
    /// When the swarm is gone.
    pub fn expect(&mut self, invocations: usize) -> Result<(), String> {
        self.tell(&format!("expect {invocations}"))
    }

    /// Waits for the end of the round.
    ///
    /// # Errors
    /// When it does not end.
    pub fn settled(&mut self) -> Result<(Instant, RoundDone), String> {
        let heard = self.heard("the round ends", |line| {
            serde_json::from_value(line.get("settled")?.clone()).ok()
        });
        heard.map_err(|err| match self.counts() {
            Ok(counts) => format!("{err}; {counts:?}"),
            Err(_) => err,
        })
    }

    /// # Errors
    /// When the swarm is gone.
    pub fn counts(&mut self) -> Result<Counts, String> {
        self.tell("counts")?;
        let (_, counts) = self.heard("counts", |line| {
            serde_json::from_value(line.get("counts")?.clone()).ok()
        })?;
        Ok(counts)
    }
}

impl Drop for SwarmProcess {
    fn drop(&mut self) {
        // Ours, and it keeps nothing that is worth an orderly end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
