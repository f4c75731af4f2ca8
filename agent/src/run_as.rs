//! As whom, where and within which limits a hook is started.
//!
//! [`RunAs`] is what its manifest asks for. [`RunAs::prepare`] looks up what has to be looked up; what it gives is
//! applied between fork and exec, where nothing may be allocated.

use std::{collections::BTreeMap, ffi::CString, fs, io};

use rustix::{
    fs::Mode,
    io::Errno,
    process::{Gid, Resource, Rlimit, Uid},
};
use serde::{Deserialize, Serialize};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RunAs {
    /// None: as the daemon itself.
    pub(crate) user: Option<String>,
    pub(crate) umask: Option<u32>,
    pub(crate) working_directory: Option<String>,
    pub(crate) no_new_privs: bool,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) limits: ManifestLimits,
}

/// What one hook may use. A value without a means: whoever starts the hook applies it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ManifestLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) cpu_seconds: Option<u64>,
    pub(crate) open_files: Option<u64>,
}

/// An account of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

impl Account {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        Some(Self {
            name: (*fields.first()?).to_owned(),
            uid: fields.get(2)?.parse().ok()?,
            gid: fields.get(3)?.parse().ok()?,
            home: (*fields.get(5)?).to_owned(),
        })
    }

    fn find(passwd: &str, wanted: impl Fn(&Self) -> bool) -> Option<Self> {
        passwd.lines().filter_map(Self::parse).find(wanted)
    }

    /// Its own group and every group that lists it.
    fn groups(&self, group_file: &str) -> Vec<u32> {
        let mut groups = vec![self.gid];
        for line in group_file.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if let [_, _, gid, members] = fields[..]
                && members.split(',').any(|member| member == self.name)
                && let Ok(gid) = gid.parse()
                && !groups.contains(&gid)
            {
                groups.push(gid);
            }
        }
        groups
    }
}

/// Another user than the daemon's.
struct Become {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// What can be applied without a further look at anything.
pub(crate) struct Prepared {
    account: Option<Account>,
    user: Option<Become>,
    umask: Option<Mode>,
    directory: CString,
    directory_text: String,
    no_new_privs: bool,
    limits: Vec<(Resource, Rlimit, &'static str, u64)>,
}

/// The step at which a start failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    User,
    Limit(usize),
    Directory,
    NoNewPrivs,
}

impl Step {
    const FIRST_LIMIT: u8 = 16;

    /// A byte, because between fork and exec little can be said.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::User => 0,
            Self::Directory => 1,
            Self::NoNewPrivs => 2,
            Self::Limit(index) => Self::FIRST_LIMIT.saturating_add(u8::try_from(index).unwrap_or(u8::MAX)),
        }
    }

    pub(crate) const fn of_byte(byte: u8) -> Self {
        match byte {
            0 => Self::User,
            1 => Self::Directory,
            2 => Self::NoNewPrivs,
            limit => Self::Limit((limit.saturating_sub(Self::FIRST_LIMIT)) as usize),
        }
    }
}

impl RunAs {
    /// The same with these variables too, where its manifest does not have them.
    pub(crate) fn on_top_of(&self, variables: &BTreeMap<String, String>) -> Self {
        let mut environment = variables.clone();
        environment.extend(self.environment.clone());
        Self {
            environment,
            ..self.clone()
        }
    }

    pub(crate) fn prepare(&self) -> Result<Prepared, String> {
        let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
        let me = rustix::process::geteuid();
        let (account, user) = match &self.user {
            None => (Account::find(&passwd, |account| account.uid == me.as_raw()), None),
            Some(name) => {
                let account = Account::find(&passwd, |account| account.name == *name)
                    .ok_or_else(|| format!("its manifest names the user {name}, who is not in {PASSWD}"))?;
                let user = becoming(&account, me)?;
                (Some(account), user)
            }
        };
        let directory_text = self.working_directory.clone().unwrap_or_else(|| "/".to_owned());
        Ok(Prepared {
            account,
            user,
            umask: self.umask.map(Mode::from_raw_mode),
            directory: CString::new(directory_text.clone()).map_err(|err| err.to_string())?,
            directory_text,
            no_new_privs: self.no_new_privs,
            limits: self.limits.as_resources(),
        })
    }
}

fn becoming(account: &Account, me: Uid) -> Result<Option<Become>, String> {
    if account.uid == me.as_raw() && !me.is_root() {
        return Ok(None);
    }
    if !me.is_root() {
        return Err(format!(
            "its manifest names the user {}, and musterd runs as user {} and can become no other",
            account.name,
            me.as_raw()
        ));
    }
    let groups = fs::read_to_string(GROUP).unwrap_or_default();
    Ok(Some(Become {
        uid: Uid::from_raw(account.uid),
        gid: Gid::from_raw(account.gid),
        groups: account.groups(&groups).into_iter().map(Gid::from_raw).collect(),
    }))
}

impl ManifestLimits {
    fn as_resources(&self) -> Vec<(Resource, Rlimit, &'static str, u64)> {
        let hard = |value| Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        // The first limit of the two is a signal that names its reason, the second one kills.
        let cpu = |value: u64| Rlimit {
            current: Some(value),
            maximum: Some(value.saturating_add(1)),
        };
        let each = [
            self.memory_bytes
                .map(|n| (Resource::As, hard(n), "memory_bytes", n)),
            self.pids.map(|n| (Resource::Nproc, hard(n), "pids", n)),
            self.cpu_seconds
                .map(|n| (Resource::Cpu, cpu(n), "cpu_seconds", n)),
            self.open_files
                .map(|n| (Resource::Nofile, hard(n), "open_files", n)),
        ];
        each.into_iter().flatten().collect()
    }
}

impl Prepared {
    /// `HOME`, `USER` and `LOGNAME` of whoever the hook runs as.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let home = self.account.as_ref().map_or("/", |account| &account.home);
        let mut variables = vec![("HOME", home.to_owned())];
        if let Some(account) = &self.account {
            variables.push(("USER", account.name.clone()));
            variables.push(("LOGNAME", account.name.clone()));
        }
        variables
    }

    /// Makes this process what the hook is to be. Only system calls, and nothing that allocates: it runs between fork
    /// and exec. The limits come before the user, who might not be allowed to raise one.
    pub(crate) fn apply(&self) -> Result<(), (Step, Errno)> {
        for (index, (resource, limit, _, _)) in self.limits.iter().enumerate() {
            rustix::process::setrlimit(*resource, *limit).map_err(|err| (Step::Limit(index), err))?;
        }
        if let Some(user) = &self.user {
            rustix::thread::set_thread_groups(&user.groups)
                .and_then(|()| rustix::thread::set_thread_res_gid(user.gid, user.gid, user.gid))
                .and_then(|()| rustix::thread::set_thread_res_uid(user.uid, user.uid, user.uid))
                .map_err(|err| (Step::User, err))?;
        }
        rustix::process::chdir(self.directory.as_c_str()).map_err(|err| (Step::Directory, err))?;
        if let Some(umask) = self.umask {
            rustix::process::umask(umask);
        }
        if self.no_new_privs {
            rustix::thread::set_no_new_privs(true).map_err(|err| (Step::NoNewPrivs, err))?;
        }
        Ok(())
    }

    /// What an operator is told of a start that failed at this step.
    pub(crate) fn explain(&self, step: Step, err: &io::Error) -> String {
        let user = self.account.as_ref().map_or("?", |account| &account.name);
        match step {
            Step::User => format!("it could not become user {user}: {err}"),
            Step::Directory => {
                format!(
                    "user {user} could not enter the working directory {}: {err}",
                    self.directory_text
                )
            }
            Step::NoNewPrivs => format!("no_new_privs could not be set: {err}"),
            Step::Limit(index) => match self.limits.get(index) {
                Some((_, _, name, value)) => format!("limits.{name} = {value} could not be set: {err}"),
                None => format!("it could not be started: {err}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\n# a comment\nbackup:x:34:35::/var/backups:/bin/sh\n";

    #[test]
    fn an_account_is_found_with_its_groups() {
        let backup = Account::find(PASSWD, |account| account.name == "backup").unwrap();
        assert_eq!(
            (backup.uid, backup.gid, backup.home.as_str()),
            (34, 35, "/var/backups")
        );
        let groups =
            "root:x:0:\nbackup:x:35:\ndisk:x:6:root,backup\ndisks:x:7:backups\nbad\nown:x:35:backup\n";
        assert_eq!(backup.groups(groups), [35, 6]);
        assert_eq!(Account::find(PASSWD, |account| account.name == "nobody"), None);
    }

    #[test]
    fn a_user_that_is_not_there_is_named() {
        let run_as = RunAs {
            user: Some("no-such-user".to_owned()),
            ..RunAs::default()
        };
        let why = run_as.prepare().err().unwrap();
        assert!(why.contains("no-such-user"), "{why}");
    }

    #[test]
    fn a_step_survives_as_a_byte() {
        for step in [
            Step::User,
            Step::Directory,
            Step::NoNewPrivs,
            Step::Limit(0),
            Step::Limit(3),
        ] {
            assert_eq!(Step::of_byte(step.byte()), step);
        }
    }
}
