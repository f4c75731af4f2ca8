//! Running one of the few programs that a builtin needs: by its name, without a shell, with arguments that were checked,
//! a clean environment and nothing to read. What it writes is read to its end and kept up to a bound.

use std::{
    io,
    process::{ExitStatus, Stdio},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    signal::unix::{SignalKind, signal},
    sync::RwLock,
};

use super::{Failed, apart::Done};

/// Held for reading by every program that runs.
static AT_WORK: RwLock<()> = RwLock::const_new(());
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

/// For work that must not be left half done. Whoever asks this process to end asks the program that it runs as well. That
/// one is waited for: it puts its things in order, and would be ended by its next word if nobody read it. No further one is
/// begun.
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

pub(super) async fn run(program: &'static str, arguments: &[&str], keep: Keep) -> Result<Ran, Failed> {
    let _at_work = AT_WORK.read().await;
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
    let output = child.stdout.take();
    let complaint = child.stderr.take();
    let (output, complaint, status) = tokio::join!(
        read(output, keep),
        read(complaint, Keep::Tail(COMPLAINT_BYTES_MAX)),
        child.wait()
    );
    let (output, output_cut) = output.map_err(failed)?;
    Ok(Ran {
        program,
        status: status.map_err(failed)?,
        output: String::from_utf8_lossy(&output).into_owned(),
        output_cut,
        complaint: String::from_utf8_lossy(&complaint.map_err(failed)?.0).into_owned(),
    })
}

/// Reads to the end, whatever is kept: a program whose pipe is full would wait for ever.
async fn read(from: Option<impl AsyncRead + Unpin>, keep: Keep) -> io::Result<(Vec<u8>, bool)> {
    let (mut kept, mut total) = (Vec::new(), 0);
    let Some(mut from) = from else {
        return Ok((kept, false));
    };
    let mut buffer = vec![0; 16 * 1024];
    loop {
        match from.read(&mut buffer).await? {
            0 => break,
            count => {
                total += count;
                take(&mut kept, &buffer[..count], keep);
            }
        }
    }
    let cut = total > kept.len();
    Ok((kept, cut))
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

    #[tokio::test]
    async fn a_program_has_no_input_and_its_ending_and_words_are_kept() {
        let script = "read line && echo got; echo \"$MUSTER_SECRET$LC_ALL\"; echo no >&2; exit 7";
        let ran = run("sh", &["-c", script], Keep::Head(100)).await.unwrap();
        assert_eq!((ran.exit_code(), ran.output.as_str()), (7, "C.UTF-8\n"));
        assert_eq!(ran.why(), "sh ended with exit status: 7: no");
        let missing = run("muster-no-such-program", &[], Keep::Head(1))
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
        let work = async {
            let ran = run("sh", &["-c", &first], Keep::Head(100)).await?;
            assert_eq!(ran.output, "word\n");
            run("sh", &["-c", &second], Keep::Head(100)).await?;
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
        assert!(ended.exists());
        assert!(!dir.path().join("second").exists());
    }

    #[tokio::test]
    async fn of_a_long_output_the_asked_end_is_kept() {
        let ask = async |keep| run("sh", &["-c", "seq 1 30000"], keep).await.unwrap();
        let head = ask(Keep::Head(4)).await;
        assert_eq!((head.output.as_str(), head.output_cut), ("1\n2\n", true));
        let tail = ask(Keep::Tail(6)).await;
        assert_eq!((tail.output.as_str(), tail.output_cut), ("30000\n", true));
    }
}
