//! `file.read` and `file.digest`: only what every user of the machine may read anyway, or what the node's admin has
//! opened with `readable_paths`. What holds the node's own keys, and what is no file at all, stays closed.
//!
//! Apart from the daemon: its sandbox has a `/tmp` of its own and may not read what belongs to other users, so in there
//! files would be said to be missing that are not.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use muster_shared::{ids::Digester, time::Timestamp, wire::Base64};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::{
    Failed,
    apart::Done,
    parameter::{Arguments, Parameter, absolute_path},
};
use crate::run_dir::{RunDir, Work};

/// Not files of a disk: their length is unknown, and they show or do what no file should.
const NEVER: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Where systemd puts the secrets of services, the node's own key among them.
const CREDENTIALS: &str = "/run/credentials";
const READ_BYTES_MAX: u64 = 1024 * 1024;

const PATH: Parameter =
    Parameter::text("path", absolute_path, "The absolute path of a regular file").required();

pub(super) const READ: &[Parameter] = &[
    PATH,
    Parameter::number("offset", (0, 1 << 53), "0", "The first byte that is read"),
    Parameter::number(
        "max_bytes",
        (1, READ_BYTES_MAX),
        "65536",
        "How many bytes are read at most, up to 1048576",
    ),
];
pub(super) const DIGEST: &[Parameter] = &[PATH];

/// What the node's admin has said.
pub(super) struct Rules {
    state_dir: PathBuf,
    readable_paths: Vec<PathBuf>,
    /// Where the daemon itself was given its secrets.
    credentials: Option<PathBuf>,
}

impl Rules {
    /// As the daemon wrote them down when it started this.
    fn of(run: &RunDir) -> Result<Self, Failed> {
        let spec = run
            .read_spec()
            .map_err(|err| Failed::Work(format!("the rules of this node cannot be read: {err}")))?;
        let (readable_paths, credentials) = match spec.work {
            Work::Builtin {
                readable_paths,
                credentials,
                ..
            } => (readable_paths, credentials),
            Work::Hook { .. } => (Vec::new(), None),
        };
        let state_dir = run.state_dir().to_owned();
        Ok(Self {
            state_dir,
            readable_paths,
            credentials,
        })
    }
}

/// Either of the two, where it works apart.
pub(super) fn apart(
    work: fn(&Arguments, &Rules) -> Result<Value, Failed>,
    arguments: &Arguments,
    run: &RunDir,
) -> Result<Done, Failed> {
    work(arguments, &Rules::of(run)?).map(Done::well)
}

pub(super) fn read(arguments: &Arguments, rules: &Rules) -> Result<Value, Failed> {
    let mut found = open(arguments, rules)?;
    let failed =
        |err: std::io::Error| Failed::Work(format!("{} cannot be read: {err}", found.path.display()));
    let offset = arguments.number("offset");
    found.file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let max = arguments.number("max_bytes");
    let mut bytes = Vec::new();
    // One byte more tells whether there is more.
    (&found.file)
        .take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let truncated = bytes.len() as u64 > max;
    bytes.truncate(usize::try_from(max).unwrap_or(usize::MAX));
    let mut answer = found.describe(offset, bytes.len());
    answer["truncated"] = json!(truncated);
    match String::from_utf8(bytes) {
        Ok(text) => answer["content"] = json!(text),
        Err(err) => answer["content_base64"] = json!(Base64(err.into_bytes())),
    }
    Ok(answer)
}

pub(super) fn digest(arguments: &Arguments, rules: &Rules) -> Result<Value, Failed> {
    let found = open(arguments, rules)?;
    let failed =
        |err: std::io::Error| Failed::Work(format!("{} cannot be read: {err}", found.path.display()));
    let (mut digester, mut total) = (Digester::default(), 0);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match (&found.file).read(&mut buffer).map_err(failed)? {
            0 => break,
            count => {
                digester.update(&buffer[..count]);
                total += count;
            }
        }
    }
    let mut answer = found.describe(0, total);
    answer["sha256"] = json!(digester.finish().to_string());
    Ok(answer)
}

struct Found {
    file: File,
    /// Where it really is.
    path: PathBuf,
    about: fs::Metadata,
}

impl Found {
    fn describe(&self, offset: u64, bytes: usize) -> Value {
        json!({
            "path": self.path.to_string_lossy(),
            "size_bytes": self.about.len(),
            "mode": format!("{:04o}", self.about.mode() & 0o7777),
            "uid": self.about.uid(),
            "gid": self.about.gid(),
            "modified_at": Timestamp::from_millis(self.about.mtime().saturating_mul(1000)),
            "offset": offset,
            "bytes": bytes,
        })
    }
}

/// Everything is judged by the descriptor that is read, so that nobody can put another file in its place meanwhile.
fn open(arguments: &Arguments, rules: &Rules) -> Result<Found, Failed> {
    let asked = arguments.text("path").unwrap_or_default();
    let failed = |err: std::io::Error| Failed::Work(format!("{asked} cannot be opened: {err}"));
    // Not blocking: a pipe by that name must not hold us before it is seen to be one.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Even opening can act, where the path leads to a device.
    if let Some(tree) = NEVER.iter().find(|tree| Path::new(asked).starts_with(tree)) {
        return Err(refused(asked, &format!("what is under {tree} is no file")));
    }
    let file = match rustix::fs::open(asked, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::LOOP) => {
            let target = fs::read_link(asked).map_err(failed)?;
            let why = format!(
                "it is a symbolic link to {}: name the file itself",
                target.display()
            );
            return Err(refused(asked, &why));
        }
        Err(err) => return Err(failed(err.into())),
    };
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(refused(asked, "it is not a regular file"));
    }
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(failed)?;
    may_read(&path, about.mode(), rules).map_err(|why| refused(asked, &why))?;
    Ok(Found { file, path, about })
}

fn refused(asked: &str, why: &str) -> Failed {
    Failed::Work(format!("file_refused: {asked}: {why}"))
}

fn may_read(path: &Path, mode: u32, rules: &Rules) -> Result<(), String> {
    if let Some(tree) = NEVER.iter().find(|tree| path.starts_with(tree)) {
        return Err(format!("what is under {tree} is no file"));
    }
    let is_below = |dir: &PathBuf| path.starts_with(fs::canonicalize(dir).unwrap_or_else(|_| dir.clone()));
    if is_below(&rules.state_dir) {
        return Err("the node's own keys are beside it".to_owned());
    }
    if path.starts_with(CREDENTIALS) || rules.credentials.as_ref().is_some_and(is_below) {
        return Err("the secrets of services are there, the node's own key among them".to_owned());
    }
    let opened = |open: &PathBuf| fs::canonicalize(open).is_ok_and(|open| path.starts_with(open));
    if rules.readable_paths.iter().any(opened) {
        return Ok(());
    }
    let everybody_enters = |dir: &Path| fs::metadata(dir).is_ok_and(|about| about.mode() & 0o001 != 0);
    if mode & 0o004 != 0 && path.ancestors().skip(1).all(everybody_enters) {
        return Ok(());
    }
    Err(
        "not every user of the machine may read it, and readable_paths in agent.toml does not open it"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    struct Here {
        dir: tempfile::TempDir,
        rules: Rules,
    }

    fn here() -> Here {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let state_dir = dir.path().join("state");
        fs::create_dir(&state_dir).unwrap();
        let rules = Rules {
            state_dir,
            readable_paths: Vec::new(),
            credentials: None,
        };
        Here { dir, rules }
    }

    impl Here {
        fn file(&self, name: &str, mode: u32, bytes: &[u8]) -> String {
            let path = self.dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.to_string_lossy().into_owned()
        }

        fn ask(
            &self,
            run: fn(&Arguments, &Rules) -> Result<Value, Failed>,
            known: &'static [Parameter],
            given: &Value,
        ) -> Result<Value, String> {
            let arguments = Arguments::check("file", known, given.as_object().unwrap()).unwrap();
            run(&arguments, &self.rules).map_err(|err| match err {
                Failed::Work(why) => why,
                other @ (Failed::Unknown | Failed::Parameters(_)) => panic!("{other:?}"),
            })
        }

        fn read(&self, given: &Value) -> Result<Value, String> {
            self.ask(read, READ, given)
        }
    }

    #[test]
    fn a_piece_of_a_file_is_read_and_the_rest_is_said_to_be_there() {
        let here = here();
        let path = here.file("f", 0o644, b"0123456789");
        let answer = here
            .read(&json!({"path": path, "offset": 2, "max_bytes": 3}))
            .unwrap();
        assert_eq!(
            (&answer["content"], &answer["truncated"]),
            (&json!("234"), &json!(true))
        );
        assert_eq!((&answer["size_bytes"], &answer["bytes"]), (&json!(10), &json!(3)));
        let answer = here.read(&json!({"path": path, "offset": 7})).unwrap();
        assert_eq!(
            (&answer["content"], &answer["truncated"]),
            (&json!("789"), &json!(false))
        );
        let answer = here.read(&json!({"path": path, "offset": 99})).unwrap();
        assert_eq!(answer["content"], json!(""));
    }

    #[test]
    fn bytes_that_are_no_text_come_as_base64() {
        let here = here();
        let path = here.file("f", 0o644, &[0xff, 0x00]);
        let answer = here.read(&json!({"path": path})).unwrap();
        assert_eq!(
            (&answer["content_base64"], answer.get("content")),
            (&json!("/wA="), None)
        );
    }

    #[test]
    fn a_digest_is_of_the_whole_file() {
        let here = here();
        let path = here.file("f", 0o644, &[7; 600_000]);
        let given = json!({"path": path});
        let answer = here.ask(digest, DIGEST, &given).unwrap();
        let expected = muster_shared::ids::Digest::of(&[7; 600_000]).to_string();
        assert_eq!(
            (&answer["sha256"], &answer["bytes"]),
            (&json!(expected), &json!(600_000))
        );
    }

    #[test]
    fn what_not_everybody_may_read_is_refused_until_the_admin_opens_it() {
        let mut here = here();
        let secret = here.file("secret", 0o640, b"s");
        let inner = here.dir.path().join("closed");
        fs::create_dir(&inner).unwrap();
        let hidden = here.file("closed/f", 0o644, b"h");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
        for path in [&secret, &hidden] {
            let why = here.read(&json!({"path": path})).unwrap_err();
            assert!(
                why.starts_with("file_refused") && why.contains("readable_paths"),
                "{why}"
            );
            assert!(here.ask(digest, DIGEST, &json!({"path": path})).is_err());
        }
        here.rules.readable_paths = vec![fs::canonicalize(here.dir.path()).unwrap()];
        for path in [&secret, &hidden] {
            assert!(here.read(&json!({"path": path})).is_ok());
        }
    }

    #[test]
    fn the_nodes_keys_stay_closed_whatever_is_open() {
        let mut here = here();
        let key = here.file("state/nsk", 0o644, b"k");
        here.rules.readable_paths = vec![PathBuf::from("/")];
        assert!(here.read(&json!({"path": key})).unwrap_err().contains("keys"));
        // Nor through a directory that leads there.
        symlink(here.dir.path().join("state"), here.dir.path().join("way")).unwrap();
        let around = here.dir.path().join("way/nsk");
        assert!(here.read(&json!({"path": around})).unwrap_err().contains("keys"));
    }

    #[test]
    fn the_secrets_of_services_stay_closed_whatever_is_open() {
        let mut here = here();
        fs::create_dir(here.dir.path().join("given")).unwrap();
        let key = here.file("given/nsk", 0o644, b"k");
        here.rules.readable_paths = vec![PathBuf::from("/")];
        assert!(here.read(&json!({"path": key})).is_ok());
        here.rules.credentials = Some(here.dir.path().join("given"));
        assert!(here.read(&json!({"path": key})).unwrap_err().contains("secrets"));
        for open in ["/", "/run", "/run/credentials"] {
            here.rules.readable_paths = vec![PathBuf::from(open)];
            let theirs = Path::new("/run/credentials/musterd.service/nsk");
            assert!(
                may_read(theirs, 0o444, &here.rules)
                    .unwrap_err()
                    .contains("secrets"),
                "{open}"
            );
        }
    }

    #[test]
    fn a_link_a_directory_a_pipe_and_the_kernels_files_are_none() {
        let here = here();
        let file = here.file("f", 0o644, b"x");
        symlink(&file, here.dir.path().join("link")).unwrap();
        let pipe = here.dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        let why = here
            .read(&json!({"path": here.dir.path().join("link")}))
            .unwrap_err();
        assert!(why.contains("symbolic link") && why.contains(&file), "{why}");
        for path in [
            here.dir.path().to_owned(),
            pipe,
            "/proc/self/environ".into(),
            "/dev/zero".into(),
        ] {
            let why = here.read(&json!({"path": path})).unwrap_err();
            assert!(why.starts_with("file_refused"), "{why}");
        }
        assert!(
            here.read(&json!({"path": "/nowhere/at/all"}))
                .unwrap_err()
                .contains("opened")
        );
    }
}
