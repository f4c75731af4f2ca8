//! One real `musterd` with directories of its own.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::{Mutex, MutexGuard, PoisonError},
};

use muster_shared::{ids::Digest, wire::hook_digest};

use crate::{Daemon, binaries::binary, operator::Said};

/// What a hook script may write instead of the directory of its node, which it cannot know beforehand.
pub const DIR_MARK: &str = "@DIR@";

pub struct Musterd {
    pub name: String,
    /// Where hooks of stories leave their traces.
    pub dir: PathBuf,
    pub state: PathBuf,
    pub hooks: PathBuf,
    config: PathBuf,
    binary: PathBuf,
    environment: Mutex<Vec<(String, String)>>,
    daemon: Option<Daemon>,
}

impl Musterd {
    /// Makes the directories of a node that is not enrolled yet.
    ///
    /// # Panics
    /// When they cannot be made.
    #[must_use]
    pub fn new(under: &Path, name: &str) -> Self {
        let dir = under.join(name);
        let (state, hooks) = (dir.join("state"), dir.join("hooks.d"));
        fs::create_dir_all(&hooks).expect("directories can be made");
        // Empty, and named: this machine may be a node itself, with a configuration of its own.
        let config = dir.join("agent.toml");
        fs::write(&config, "").expect("the configuration can be written");
        Self {
            name: name.to_owned(),
            dir,
            state,
            hooks,
            config,
            binary: binary("musterd"),
            environment: Mutex::default(),
            daemon: None,
        }
    }

    /// Gives it a configuration file, read at its next start.
    pub fn configure(&self, toml: &str) {
        fs::write(&self.config, toml).expect("the configuration can be written");
    }

    /// What is started from now on as `musterd`.
    pub fn install(&mut self, binary: PathBuf) {
        self.binary = binary;
    }

    /// Sets a variable of its environment, which is empty but for `PATH`.
    pub fn set_variable(&self, name: &str, value: &str) {
        self.variables().push((name.to_owned(), value.to_owned()));
    }

    fn variables(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.environment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a hook as an admin would: written beside, then renamed into place with its mode.
    pub fn install_hook(&self, name: &str, script: impl AsRef<[u8]>) {
        let script = script.as_ref();
        let script = match std::str::from_utf8(script) {
            Ok(text) => text.replace(DIR_MARK, &self.dir.to_string_lossy()).into_bytes(),
            Err(_) => script.to_owned(),
        };
        let aside = self.dir.join(format!("{name}.new"));
        fs::write(&aside, script).expect("a hook can be written");
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
        fs::rename(aside, self.hook_path(name)).expect("it can be installed");
    }

    /// Installs the manifest of a hook in the same way.
    pub fn install_manifest(&self, hook: &str, toml: &str) {
        let toml = toml.replace(DIR_MARK, &self.dir.to_string_lossy());
        let aside = self.dir.join("manifest.new");
        fs::write(&aside, toml).expect("a manifest can be written");
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o644)).expect("its mode can be set");
        fs::rename(aside, self.hooks.join(format!("{hook}.toml"))).expect("it can be installed");
    }

    /// Puts a file into `agent.d`, read at the next start or reload.
    pub fn drop_in(&self, name: &str, toml: &str) {
        let dir = self.config.with_extension("d");
        fs::create_dir_all(&dir).expect("a directory can be made");
        fs::write(dir.join(name), toml).expect("a configuration can be written");
    }

    #[must_use]
    pub fn hook_path(&self, name: &str) -> PathBuf {
        self.hooks.join(name)
    }

    /// The digest of the hook and its manifest as they lie there now.
    #[must_use]
    pub fn hook_digest(&self, name: &str) -> Digest {
        let file = Digest::of(&fs::read(self.hook_path(name)).expect("the hook can be read"));
        let manifest = fs::read(self.hooks.join(format!("{name}.toml"))).ok();
        hook_digest(file, manifest.map(|bytes| Digest::of(&bytes)))
    }

    /// Tries to enrol.
    pub async fn try_enroll(&self, server: &str, token: &str, ca_file: &Path) -> Said {
        let ca_file = ca_file.to_string_lossy();
        self.try_enroll_trusting(server, token, &["--ca-file", &ca_file])
            .await
    }

    /// The same with other words on whom to trust.
    pub async fn try_enroll_trusting(&self, server: &str, token: &str, trust: &[&str]) -> Said {
        let token_file = self.dir.join("bootstrap-token");
        fs::write(&token_file, token).expect("the token can be written");
        fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).expect("its mode can be set");
        let mut command = tokio::process::Command::from(self.command("enroll"));
        command
            .args(["--server", server, "--token-file"])
            .arg(token_file)
            .arg("--config")
            .arg(&self.config)
            .args(trust);
        crate::operator::said_by(command).await
    }

    /// A command line of `musterd` with this node's state directory.
    #[must_use]
    pub fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(self.variables().iter().cloned());
        command.arg(verb).arg("--state-dir").arg(&self.state);
        command
    }

    /// A command line of `musterd run` as this node is started.
    #[must_use]
    pub fn run_command(&self) -> Command {
        let mut command = self.command("run");
        command
            .arg("--hooks-dir")
            .arg(&self.hooks)
            .arg("--config")
            .arg(&self.config);
        command
    }

    /// A command line of `musterd` that looks at this node: its verbs, then where everything of it is.
    #[must_use]
    pub fn tool_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .args(words)
            .arg("--state-dir")
            .arg(&self.state)
            .arg("--hooks-dir")
            .arg(&self.hooks)
            .arg("--config")
            .arg(&self.config);
        command
    }

    /// Runs it to its end.
    pub async fn tool(&self, words: &[&str]) -> Said {
        crate::operator::said_by(tokio::process::Command::from(self.tool_command(words))).await
    }

    /// Starts the daemon, without waiting for anything.
    ///
    /// # Panics
    /// When it runs already.
    pub fn launch(&mut self) {
        self.launch_with(|_| ());
    }

    /// The same with something changed about how it is started.
    ///
    /// # Panics
    /// When it runs already.
    pub fn launch_with(&mut self, change: impl FnOnce(&mut Command)) {
        assert!(self.daemon.is_none(), "{} runs already", self.name);
        let mut command = self.run_command();
        change(&mut command);
        self.daemon = Some(Daemon::start(&self.name, command, &self.dir.join("log")));
    }

    pub fn kill9(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill9();
        }
    }

    /// Stops it in the polite way.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn stop(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().expect("a stopped node was running");
        daemon.stop().await
    }

    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("the node runs")
    }

    /// What the daemon logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }

    /// A file that hooks of a story append to; nothing when none did yet.
    #[must_use]
    pub fn trace(&self, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join(file)).unwrap_or_default()).into_owned()
    }

    /// The lines of such a file.
    #[must_use]
    pub fn trace_lines(&self, file: &str) -> Vec<String> {
        self.trace(file).lines().map(str::to_owned).collect()
    }
}
