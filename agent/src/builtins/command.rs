//! Running one of the few programs that a builtin needs: by its name, without a shell, with arguments that were checked,
//! a clean environment and nothing to read. What it writes is read to its end and kept up to a bound.

use std::{
    io,
    pin::pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    signal::unix::{SignalKind, signal},
    sync::{RwLock, RwLockReadGuard},
    time::timeout,
};

use super::{Failed, apart::Done};

/// Held for reading while there is leave to run programs.
static AT_WORK: RwLock<()> = RwLock::const_new(());
/// How long the pipes of a program that has ended are read on: a daemon that it started may keep them open for ever.
const DRAIN: Duration = Duration::from_millis(500);
/// What is kept of what a program complains about.
const COMPLAINT_BYTES_MAX: usize = 4096;
/// The supervisor has set them for this process.
const PASSED_ON: [&str; 5] = [
    "PATH",
    "HOME",
    "MUSTER_EXECUTION_ID",
    "APT_CONFIG",
    "DPKG_ADMINDIR",
];

/// Which end of an output is kept when it is longer than the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keep {
    Head(usize),
    Tail(usize),
}

#[derive(Debug)]
pub(super) struct Ran {
    pub(super) program: &'static str,
    pub(super) status: ExitStatus,
    pub(super) output: String,
    /// Less than everything.
    pub(super) output_cut: bool,
    pub(super) complaint: String,
}

impl Ran {
    pub(super) fn exit_code(&self) -> u8 {
        // Who was killed has no exit status of its own.
        self.status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1)
    }

    /// How it ended, and its last words.
    pub(super) fn why(&self) -> String {
        let words = self.complaint.trim();
        let words = if words.is_empty() {
            self.output.trim()
        } else {
            words
        };
        let mut last: Vec<&str> = words.lines().rev().take(6).collect();
        last.reverse();
        format!(
            "{} ended with {}: {}",
            self.program,
            self.status,
            last.join(" | ")
        )
    }
}

/// Leave to run programs. Who was asked to end gives it to nobody any more; whoever has it by then comes to the end of what
/// belongs together.
pub(super) struct Leave(#[expect(dead_code, reason = "it is there to be held")] RwLockReadGuard<'static, ()>);

impl Leave {
    pub(super) async fn given() -> Self {
        Self(AT_WORK.read().await)
    }
}

/// For work that must not be left half done. Whoever asks this process to end asks the program that it runs as well. That
/// one is waited for: it puts its things in order, and would be ended by its next word if nobody read it. What has no leave
/// yet is not begun.
pub(super) async fn to_its_end(work: impl Future<Output = Result<Done, Failed>>) -> Result<Done, Failed> {
    let mut asked = signal(SignalKind::terminate())
        .map_err(|err| Failed::Work(format!("signals cannot be heard: {err}")))?;
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        _ = asked.recv() => {}
    }
    tokio::select! {
        done = &mut work => done,
        // Whoever wants to begin another one comes after this.
        _nobody = AT_WORK.write() => Err(Failed::Work("it was asked to end, and began nothing more".to_owned())),
    }
}

pub(super) async fn run(
    _leave: &Leave,
    program: &'static str,
    arguments: &[&str],
    keep: Keep,
) -> Result<Ran, Failed> {
    let failed = |err: io::Error| {
        Failed::Work(if err.kind() == io::ErrorKind::NotFound {
            format!("{program} is not on this node")
        } else {
            format!("{program} could not be run: {err}")
        })
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(
            PASSED_ON
                .iter()
                .filter_map(|name| Some((*name, std::env::var_os(name)?))),
        )
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (output, complaint) = (child.stdout.take(), child.stderr.take());
    let mut said = Said::nothing(keep);
    let mut complained = Said::nothing(Keep::Tail(COMPLAINT_BYTES_MAX));
    let status = {
        let mut reads = pin!(async { tokio::try_join!(said.hear(output), complained.hear(complaint)) });
        let mut read_whole = None;
        let status = loop {
            tokio::select! {
                read = &mut reads, if read_whole.is_none() => read_whole = Some(read),
                status = child.wait() => break status,
            }
        };
        if read_whole.is_none() {
            // Whoever still holds them is not the program.
            read_whole = timeout(DRAIN, &mut reads).await.ok();
        }
        read_whole.transpose().map_err(failed)?;
        status.map_err(failed)?
    };
    Ok(Ran {
        program,
        status,
        output_cut: said.is_cut(),
        output: said.text(),
        complaint: complained.text(),
    })
}

/// What came through a pipe, as far as it is kept.
struct Said {
    keep: Keep,
    kept: Vec<u8>,
    total: usize,
}

impl Said {
    const fn nothing(keep: Keep) -> Self {
        Self {
            keep,
            kept: Vec::new(),
            total: 0,
        }
    }

    /// Reads to the end, whatever is kept: a program whose pipe is full would wait for ever.
    async fn hear(&mut self, from: Option<impl AsyncRead + Unpin>) -> io::Result<()> {
        let Some(mut from) = from else { return Ok(()) };
        let mut buffer = vec![0; 16 * 1024];
        loop {
            match from.read(&mut buffer).await? {
                0 => return Ok(()),
                count => {
                    self.total += count;
                    take(&mut self.kept, &buffer[..count], self.keep);
                }
            }
        }
    }

    const fn is_cut(&self) -> bool {
        self.total > self.kept.len()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

fn take(kept: &mut Vec<u8>, bytes: &[u8], keep: Keep) {
    match keep {
        Keep::Head(max) => {
            let room = max.saturating_sub(kept.len()).min(bytes.len());
            kept.extend(&bytes[..room]);
        }
        Keep::Tail(max) => {
            kept.extend(bytes);
            let surplus = kept.len().saturating_sub(max);
            kept.drain(..surplus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str, keep: Keep) -> Result<Ran, Failed> {
        run(&Leave::given().await, "sh", &["-c", script], keep).await
    }

    #[tokio::test]
    async fn a_program_has_no_input_and_its_ending_and_words_are_kept() {
        let script = "read line && echo got; echo \"$MUSTER_SECRET$LC_ALL\"; echo no >&2; exit 7";
        let ran = sh(script, Keep::Head(100)).await.unwrap();
        assert_eq!((ran.exit_code(), ran.output.as_str()), (7, "C.UTF-8\n"));
        assert_eq!(ran.why(), "sh ended with exit status: 7: no");
        let leave = Leave::given().await;
        let missing = run(&leave, "muster-no-such-program", &[], Keep::Head(1))
            .await
            .unwrap_err();
        assert!(matches!(missing, Failed::Work(why) if why.contains("is not on this node")));
    }

    #[tokio::test]
    async fn a_program_is_waited_for_by_whoever_is_asked_to_end_and_no_other_is_begun() {
        let dir = tempfile::tempdir().unwrap();
        let (begun, ended) = (dir.path().join("begun"), dir.path().join("ended"));
        let first = format!(
            "echo >{}; sleep 0.5; echo word; echo >{}",
            begun.display(),
            ended.display()
        );
        let second = format!("echo >{}", dir.path().join("second").display());
        let looked = dir.path().join("looked");
        let look = format!("echo >{}", looked.display());
        let work = async {
            {
                let leave = Leave::given().await;
                let ran = run(&leave, "sh", &["-c", &first], Keep::Head(100)).await?;
                assert_eq!(ran.output, "word\n");
                // The first one is not done without this.
                run(&leave, "sh", &["-c", &look], Keep::Head(100)).await?;
            }
            sh(&second, Keep::Head(100)).await?;
            Ok(Done::well(serde_json::Value::Null))
        };
        let ask = async {
            while !begun.exists() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        };
        let (done, ()) = tokio::join!(to_its_end(work), ask);
        assert!(matches!(done, Err(Failed::Work(why)) if why.contains("asked to end")));
        assert!(ended.exists() && looked.exists());
        assert!(!dir.path().join("second").exists());
    }

    #[tokio::test]
    async fn a_daemon_that_a_program_started_keeps_nobody_waiting_for_its_pipes() {
        let ran = sh("sleep 600 & echo $!; echo no >&2; exit 3", Keep::Head(100))
            .await
            .unwrap();
        let pid = ran
            .output
            .trim()
            .parse()
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
        assert_eq!((ran.exit_code(), ran.complaint.as_str()), (3, "no\n"));
    }

    #[tokio::test]
    async fn of_a_long_output_the_asked_end_is_kept() {
        let ask = async |keep| sh("seq 1 30000", keep).await.unwrap();
        let head = ask(Keep::Head(4)).await;
        assert_eq!((head.output.as_str(), head.output_cut), ("1\n2\n", true));
        let tail = ask(Keep::Tail(6)).await;
        assert_eq!((tail.output.as_str(), tail.output_cut), ("30000\n", true));
    }
}
