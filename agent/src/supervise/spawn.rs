//! The hook's process: forked into its group, made what its manifest wants, and executed.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs::File,
    io::{self, PipeWriter, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use rustix::{
    fs::{MemfdFlags, Mode, OFlags},
    io::{Errno, FdFlags},
    process::{Pid, Signal, WaitOptions, getppid, waitpid},
};

use super::{
    fork::{Forked, fork},
    image::Image,
};
use crate::{
    cgroup::Cgroup,
    effect,
    hooks::hold::{Held, Way},
    parameters,
    run_as::{Prepared, Step},
    run_dir::{RunDir, Spec, Work},
};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts the hook from the very bytes that were hashed, or this program as a builtin, in a session, process group and
/// control group of its own. A failure says what failed and why.
pub(super) fn spawn(
    run: &RunDir,
    spec: &Spec,
    hook: Option<&Held>,
    output: OwnedFd,
    group: Option<&Cgroup>,
) -> Result<Pid, String> {
    let run_as = spec.run_as.prepare()?;
    let make = || -> Result<Pid, Failure> {
        let hook = hook.map(|hook| inheritable(&hook.fd)).transpose()?;
        let child = Child {
            input: parameters_file(spec)?,
            output,
            group: group.map(Group::open).transpose()?,
            run_as: &run_as,
            image: image(run, spec, hook.as_ref(), &run_as)?,
            supervisor: rustix::process::getpid(),
        };
        child.start()
    };
    make().map_err(|failure| match failure.step {
        Some(step) => run_as.explain(step, &failure.err),
        None => not_started(&failure.err, hook.map(|hook| hook.way)),
    })
}

fn image(run: &RunDir, spec: &Spec, hook: Option<&OwnedFd>, run_as: &Prepared) -> io::Result<Image> {
    let environment = environment(spec, run_as);
    match hook {
        Some(hook) => {
            let program = format!("/proc/self/fd/{}", hook.as_raw_fd());
            Image::new(&[program.as_bytes()], &environment)
        }
        None => {
            let (action, run) = (spec.action.as_str().as_bytes(), run.path().as_os_str().as_bytes());
            Image::new(&[b"/proc/self/exe", b"builtin", action, run], &environment)
        }
    }
}

/// Why there is no hook: at a step of what its manifest wants, or anywhere else.
struct Failure {
    step: Option<Step>,
    err: io::Error,
}

impl From<io::Error> for Failure {
    fn from(err: io::Error) -> Self {
        Self { step: None, err }
    }
}

/// How the child tells the same: a byte, and the number of the error.
type Told = [u8; 5];
/// No step has this byte.
const NO_STEP: u8 = u8::MAX;

fn told(step: Option<Step>, err: Errno) -> Told {
    let [a, b, c, d] = err.raw_os_error().to_le_bytes();
    [step.map_or(NO_STEP, Step::byte), a, b, c, d]
}

fn understood([step, number @ ..]: Told) -> Failure {
    Failure {
        step: (step != NO_STEP).then(|| Step::of_byte(step)),
        err: io::Error::from_raw_os_error(i32::from_le_bytes(number)),
    }
}

struct Group {
    /// Where a child can be born.
    itself: OwnedFd,
    /// Where one that was born elsewhere can come in.
    entrance: OwnedFd,
}

impl Group {
    fn open(group: &Cgroup) -> io::Result<Self> {
        Ok(Self {
            itself: group.open()?,
            entrance: group.entrance()?,
        })
    }
}

/// All that the hook's process is to be, made before the fork: in there nothing may be allocated.
struct Child<'a> {
    input: File,
    output: OwnedFd,
    group: Option<Group>,
    run_as: &'a Prepared,
    image: Image,
    supervisor: Pid,
}

impl Child<'_> {
    /// It goes with this: what it holds of the pipe would keep whoever reads there waiting.
    fn start(self) -> Result<Pid, Failure> {
        // Both ends close when the hook is executed: then the other side reads that there is nothing to tell.
        let (mut reads, tells) = io::pipe()?;
        let group = self.group.as_ref().map(|group| group.itself.as_fd());
        #[expect(unsafe_code, reason = "the standard library has no way to be born in a group")]
        // SAFETY: the child makes only system calls, and those of the C library that are async-signal-safe, and allocates
        // nothing.
        let forked = unsafe { fork(group) }?;
        let pid = match forked {
            Forked::Child { placed } => self.live(placed, &tells),
            Forked::Parent(pid) => pid,
        };
        drop(tells);
        let mut bytes = Vec::new();
        // Where nothing can be read it is taken for started, and how it ends will tell.
        let _ = reads.read_to_end(&mut bytes);
        if let Ok(told) = Told::try_from(bytes) {
            // It has told why, and ends.
            let _ = waitpid(Some(pid), WaitOptions::empty());
            return Err(understood(told));
        }
        effect::done("the hook spawned");
        Ok(pid)
    }

    /// What the child does. There is nobody to tell a failure to tell.
    fn live(&self, placed: bool, mut tells: &PipeWriter) -> ! {
        let Err((step, err)) = self.become_the_hook(placed);
        let _ = tells.write_all(&told(step, err));
        #[expect(unsafe_code, reason = "exit(3) would run what is the supervisor's to run")]
        // SAFETY: it only ends this process.
        unsafe {
            libc::_exit(127)
        }
    }

    fn become_the_hook(&self, placed: bool) -> Result<Infallible, (Option<Step>, Errno)> {
        let no_step = |err| (None, err);
        rustix::stdio::dup2_stdin(&self.input).map_err(no_step)?;
        rustix::stdio::dup2_stdout(&self.output).map_err(no_step)?;
        rustix::stdio::dup2_stderr(&self.output).map_err(no_step)?;
        hear_signals_as_usual();
        if let (Some(group), false) = (&self.group, placed) {
            // Where it is refused, the tree is still ended by descent, and a unit's limits hold all the same.
            let _ = rustix::io::write(&group.entrance, b"0");
        }
        be_as_killable_as_others();
        rustix::process::setsid().map_err(no_step)?;
        self.run_as.apply().map_err(|(step, err)| (Some(step), err))?;
        // After the change of user, which would undo it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(no_step)?;
        // The supervisor may have died before the line above could take effect.
        if getppid() == Some(self.supervisor) {
            Err(no_step(self.image.exec()))
        } else {
            Err(no_step(Errno::PIPE))
        }
    }
}

/// The runtime ignores broken pipes, and what is ignored stays so when a program is executed.
fn hear_signals_as_usual() {
    #[expect(unsafe_code, reason = "no safe wrapper sets what a signal does")]
    // SAFETY: both calls are async-signal-safe, and the set is made before it is used.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// The supervisor may be one that the kernel spares when memory is short, so that somebody is left to tell. Its hook
/// is not to be spared. Anybody may raise this number.
fn be_as_killable_as_others() {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(score) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
        let _ = rustix::io::write(&score, b"0");
    }
}

fn not_started(err: &io::Error, way: Option<Way>) -> String {
    let hint = match err.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => ": the interpreter that its #! line names is not there",
        Some(Errno::ACCESS) => match way {
            Some(Way::UnnamedFile) => {
                ": it is held in a file of the state directory: see how that is mounted, and the rules of SELinux or AppArmor"
            }
            Some(Way::SealedMemory) | None => {
                ": see the interpreter that its #! line names, the sysctl vm.memfd_noexec and the rules of SELinux or AppArmor"
            }
        },
        Some(Errno::NOEXEC) => ": it is no program that this machine can run",
        Some(_) | None => "",
    };
    format!("the system would not run it: {err}{hint}")
}

/// Without close-on-exec: the interpreter of a script opens it by its number after the exec.
fn inheritable(hook: &OwnedFd) -> io::Result<OwnedFd> {
    let inheritable = hook.try_clone()?;
    rustix::io::fcntl_setfd(&inheritable, FdFlags::empty())?;
    Ok(inheritable)
}

/// A file rather than a pipe: it has an end, and nobody has to feed it.
fn parameters_file(spec: &Spec) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("parameters", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(&spec.parameters)?)?;
    io::Seek::rewind(&mut file)?;
    Ok(file)
}

/// What every action finds, what its manifest or its builtin says on top, and what neither can change.
fn environment(spec: &Spec, run_as: &Prepared) -> BTreeMap<String, String> {
    let owned = |(name, value): (&str, String)| (name.to_owned(), value);
    let usual = [("PATH", PATH.to_owned()), ("LANG", "C.UTF-8".to_owned())];
    let ours = [
        ("MUSTER_EXECUTION_ID", spec.execution_id.to_string()),
        ("MUSTER_NODE_ID", spec.node_id.to_string()),
        ("MUSTER_ACTION", spec.action.to_string()),
    ];
    let mut variables: BTreeMap<String, String> =
        usual.into_iter().chain(run_as.variables()).map(owned).collect();
    variables.extend(spec.run_as.environment.clone());
    variables.extend(match &spec.work {
        // The daemon has checked the parameters; what it would have refused never gets here.
        Work::Hook { .. } => parameters::variables(&spec.parameters).unwrap_or_default(),
        Work::Builtin { environment, .. } => environment.clone(),
    });
    variables.extend(ours.map(owned));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_child_tells_is_understood() {
        for step in [
            None,
            Some(Step::User),
            Some(Step::Directory),
            Some(Step::Limit(3)),
        ] {
            let failure = understood(told(step, Errno::ACCESS));
            assert_eq!(failure.step, step);
            assert_eq!(failure.err.raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
        }
    }
}
