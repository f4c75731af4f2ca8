//! The directory of one attempt to run a hook or a builtin that works apart, and what can be told from it after a restart.
//!
//! **Why a hook runs at most once per request.** The first act of a supervisor is to create the file `claim`, which
//! exactly one process can do. A daemon that comes back and finds no claim creates it itself: then that attempt has
//! never run its hook and never will, because a supervisor that comes late loses the claim and leaves. Only then may
//! the daemon start another attempt. Where a supervisor holds the claim, its record decides, or its death does: no
//! record and no live process means that the hook may have run, so it is reported as lost and not run again.

mod examine;
mod spec;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use muster_shared::{ids::ExecutionId, time::Timestamp, wire::Parameters};
use serde::{Deserialize, Serialize};

use crate::{durable, effect, outcome::Outcome};
pub(crate) use examine::{DOWN_WITHIN, Found, Lost, may_pass};
pub(crate) use spec::{Spec, Work};

/// What a record may need.
const RECORD_BYTES: u64 = 4096;

/// Who owns the attempt.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(crate) enum Claim {
    Supervisor {
        pid: i32,
        started: u64,
        boot_id: String,
        /// Where the hook is, for the case that its supervisor cannot end it any more.
        #[serde(default)]
        cgroup: Option<PathBuf>,
    },
    /// A daemon that restarted or was asked to cancel, to prove that the hook never ran and never will.
    Daemon,
}

pub(crate) struct RunDir(PathBuf);

impl RunDir {
    pub(crate) fn of(state_dir: &Path, execution: ExecutionId, attempt: u32) -> Self {
        Self(runs_dir(state_dir).join(format!("{execution}-{attempt}")))
    }

    pub(crate) const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// That of the daemon whose run this is.
    pub(crate) fn state_dir(&self) -> &Path {
        let runs = self.0.parent().unwrap_or(&self.0);
        runs.parent().unwrap_or(runs)
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.0.join("output")
    }

    fn claim(&self) -> PathBuf {
        self.0.join("claim")
    }

    fn spec(&self) -> PathBuf {
        self.0.join("spec.json")
    }

    /// Where a version before this one had the parameters.
    fn earlier_parameters(&self) -> PathBuf {
        self.0.join("parameters.json")
    }

    fn exit(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    /// What the supervisor says when it cannot do its work.
    pub(crate) fn complaint(&self) -> PathBuf {
        self.0.join("supervisor.err")
    }

    /// Why a builtin failed, in words.
    fn reason(&self) -> PathBuf {
        self.0.join("reason")
    }

    pub(crate) fn write_reason(&self, why: &str) -> io::Result<()> {
        durable::write(&self.reason(), why.as_bytes())
    }

    pub(crate) fn read_reason(&self) -> Option<String> {
        fs::read_to_string(self.reason()).ok()
    }

    fn reboot_mark(&self) -> PathBuf {
        self.0.join("reboot-asked")
    }

    /// Durable before the reboot is asked for: whoever finds this under another boot id knows that it came to pass.
    pub(crate) fn mark_reboot(&self) -> io::Result<()> {
        durable::write(&self.reboot_mark(), b"")
    }

    pub(crate) fn unmark_reboot(&self) -> io::Result<()> {
        fs::remove_file(self.reboot_mark())?;
        durable::sync_parent(&self.reboot_mark())
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        durable::private_dir(&self.0)
    }

    /// The room for what comes after is taken first: on a full disk nothing is even begun. A supervisor reads the spec, and
    /// whoever ends what one has left behind. After a power cut nobody needs it, because the claim alone decides.
    ///
    /// The parameters are a line of their own behind it, which can be cut off.
    pub(crate) fn write_spec(&self, spec: &Spec) -> io::Result<()> {
        drop(self.reserve_record()?);
        let lines = [
            serde_json::to_vec(spec)?,
            serde_json::to_vec(&spec.parameters)?,
            vec![],
        ];
        durable::write_for_this_boot(&self.spec(), &lines.join(&b'\n'))
    }

    /// Without the parameters.
    pub(crate) fn read_spec(&self) -> io::Result<Spec> {
        let text = fs::read(self.spec())?;
        let (spec, _) = lines_of(&text);
        Ok(serde_json::from_slice(spec)?)
    }

    /// Whom a line of the log about it is about. Only what is no directory of a run has no words for that.
    pub(crate) fn about(&self) -> About {
        let spec = self.read_spec().ok();
        let of = |text: fn(&Spec) -> String| spec.as_ref().map(text).unwrap_or_default();
        About {
            execution: of(|spec| spec.execution_id.to_string()),
            action: of(|spec| spec.action.to_string()),
            node: of(|spec| spec.node_id.to_string()),
        }
    }

    pub(crate) fn read_parameters(&self) -> io::Result<Parameters> {
        let text = fs::read(self.spec())?;
        Ok(match lines_of(&text) {
            (_, []) => serde_json::from_slice(&fs::read(self.earlier_parameters())?)?,
            (_, parameters) => serde_json::from_slice(parameters)?,
        })
    }

    /// Nobody needs them again once an attempt has its owner, and they may be secret.
    pub(crate) fn remove_parameters(&self) -> io::Result<()> {
        for path in [durable::beside(&self.spec()), self.earlier_parameters()] {
            gone(fs::remove_file(path))?;
        }
        let mut file = match File::options().read(true).write(true).open(self.spec()) {
            Ok(file) => file,
            Err(err) => return gone(Err(err)),
        };
        let mut text = Vec::new();
        io::Read::read_to_end(&mut file, &mut text)?;
        let (spec, parameters) = lines_of(&text);
        if serde_json::from_slice::<Spec>(spec).is_err() {
            // What a power cut has left may be in any order, and nobody can use it.
            return file.set_len(0);
        }
        if parameters.is_empty() {
            return Ok(());
        }
        file.set_len(spec.len() as u64)
    }

    /// Whether the attempt is now the caller's.
    pub(crate) fn take_claim(&self, claim: &Claim) -> io::Result<bool> {
        durable::create_first(&self.claim(), &serde_json::to_vec(claim)?)
    }

    /// Room for the record, and for the journal's word about it, is taken before the hook starts: a hook whose output
    /// fills the disk can neither hide how it ended nor keep its node from saying so.
    pub(crate) fn reserve_record(&self) -> io::Result<File> {
        const JOURNAL_BYTES: u64 = 256 * 1024;
        let record = durable::reserve(&self.reserved(), RECORD_BYTES + JOURNAL_BYTES)?;
        effect::done("room for the record");
        Ok(record)
    }

    fn reserved(&self) -> PathBuf {
        self.0.join("exit.json.tmp")
    }

    /// All but what the record itself may need, once nobody holds the attempt who could write one. Where nothing was reserved
    /// there is nothing to give.
    fn give_room(&self) -> io::Result<()> {
        // A version before this one had it there.
        gone(fs::remove_file(self.0.join("room")))?;
        match File::options().write(true).open(self.reserved()) {
            Ok(reserved) => reserved.set_len(RECORD_BYTES),
            Err(err) => gone(Err(err)),
        }
    }

    /// What was reserved for others is given to them with it.
    pub(crate) fn write_record(&self, mut reserved: File, outcome: &Outcome) -> io::Result<()> {
        let bytes = serde_json::to_vec(outcome)?;
        io::Write::write_all(&mut reserved, &bytes)?;
        reserved.set_len(bytes.len() as u64)?;
        reserved.sync_all()?;
        effect::done("the record beside");
        fs::rename(self.reserved(), self.exit())?;
        effect::done("the record");
        durable::sync_parent(&self.exit())
    }

    fn read_record(&self) -> io::Result<Option<Outcome>> {
        match fs::read(self.exit()) {
            // A daemon that does not know the attempt takes room for it anew before it finds the claim. That may be behind
            // the record, while it is being written or after: zeros, and nothing of it is lost.
            Ok(raw) => {
                let length = raw.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                Ok(Some(serde_json::from_slice(&raw[..length])?))
            }
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Whether somebody has taken the attempt. A `false` says nothing a moment later: see [`Self::take_claim`].
    pub(crate) fn has_owner(&self) -> io::Result<bool> {
        self.claim().try_exists()
    }

    fn read_claim(&self) -> io::Result<Option<Claim>> {
        match fs::read(self.claim()) {
            Ok(raw) => Ok(Some(serde_json::from_slice(&raw)?)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// The group that the hook was in, where a supervisor made one.
    pub(crate) fn cgroup(&self) -> Option<PathBuf> {
        match self.read_claim().ok()?? {
            Claim::Supervisor { cgroup, .. } => cgroup,
            Claim::Daemon => None,
        }
    }

    /// The run is told and its directory of no more use. One that is gone already is as good.
    pub(crate) fn remove(&self) -> io::Result<()> {
        gone(fs::remove_dir_all(&self.0))?;
        effect::done("a run directory removed");
        Ok(())
    }
}

/// What is not there is as good as what was done away with.
fn gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Spec and parameters, which are JSON without line breaks.
fn lines_of(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == b'\n');
    text.split_at(end.map_or(text.len(), |at| at + 1))
}

pub(crate) fn runs_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("runs")
}

/// The fields of the journal by which an action's story is found.
pub(crate) struct About {
    pub(crate) execution: String,
    pub(crate) action: String,
    pub(crate) node: String,
}

/// A directory of an attempt that lies there from before.
pub(crate) struct Old {
    pub(crate) execution: ExecutionId,
    pub(crate) run: RunDir,
    /// When something last appeared in it or went.
    pub(crate) changed: Timestamp,
}

pub(crate) fn old_runs(runs: &Path) -> io::Result<Vec<Old>> {
    let entries = match fs::read_dir(runs) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut old = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let attempt = name.to_str().and_then(|name| name.rsplit_once('-'));
        if let Some(Ok(execution)) = attempt.map(|(execution, _)| execution.parse()) {
            let since = entry
                .metadata()?
                .modified()?
                .duration_since(std::time::UNIX_EPOCH);
            let changed = Timestamp::from_millis(0).plus(since.unwrap_or_default());
            let run = RunDir(entry.path());
            old.push(Old {
                execution,
                run,
                changed,
            });
        }
    }
    Ok(old)
}

/// The kernel's name for the time since it booted. Tests put a file in its place, which a release does not know.
pub(crate) fn boot_id() -> io::Result<String> {
    const KERNEL: &str = "/proc/sys/kernel/random/boot_id";
    let path = if cfg!(debug_assertions) {
        std::env::var("MUSTER_BOOT_ID_FILE").unwrap_or_else(|_| KERNEL.to_owned())
    } else {
        KERNEL.to_owned()
    };
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_until_they_are_removed_and_the_spec_after_that_too() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().join("run"));
        run.create().unwrap();
        let mut spec = Spec::of_hook(b"x");
        spec.parameters.insert("key".into(), "hunter\n2".into());
        run.write_spec(&spec).unwrap();
        assert_eq!(run.read_parameters().unwrap(), spec.parameters);
        assert_eq!(run.read_spec().unwrap().execution_id, spec.execution_id);
        // What a stop before the rename has left.
        let torn = durable::beside(&run.spec());
        fs::copy(run.spec(), &torn).unwrap();
        for _ in 0..2 {
            run.remove_parameters().unwrap();
            assert!(!torn.exists());
            assert!(run.read_parameters().is_err());
            assert_eq!(run.read_spec().unwrap().execution_id, spec.execution_id);
        }
        let left = fs::read_to_string(run.spec()).unwrap();
        assert!(!left.contains("hunter"), "{left}");
    }

    #[test]
    fn parameters_are_found_where_an_earlier_version_had_them() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().to_owned());
        fs::write(run.spec(), serde_json::to_vec(&Spec::of_hook(b"x")).unwrap()).unwrap();
        fs::write(run.earlier_parameters(), "{\"key\":\"hunter2\"}").unwrap();
        assert_eq!(run.read_parameters().unwrap()["key"], "hunter2");
        run.remove_parameters().unwrap();
        assert!(run.read_parameters().is_err());
        run.read_spec().unwrap();
    }

    #[test]
    fn what_was_reserved_is_given_to_whoever_needs_it_and_the_record_has_room_still() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path().to_owned());
        run.give_room().unwrap();
        drop(run.reserve_record().unwrap());
        let bytes = || fs::metadata(run.reserved()).unwrap().len();
        assert!(bytes() > RECORD_BYTES);
        let of_an_earlier_version = dir.path().join("room");
        fs::write(&of_an_earlier_version, [0; 64]).unwrap();
        run.give_room().unwrap();
        assert_eq!(bytes(), RECORD_BYTES);
        assert!(!of_an_earlier_version.exists());
    }
}
