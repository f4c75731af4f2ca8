//! One control and its nodes, from an empty directory to a checked end.

use std::{
    cell::Cell,
    collections::BTreeMap,
    net::TcpListener,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_shared::{
    ids::{ExecutionId, NodeId},
    wire::{ActionKind, Execution, NodeSummary, Page},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Daemon, Database, Engine, Musterd, Operator,
    binaries::binary,
    chance,
    daemon::{end_supervisors_under, supervisors_under},
    hex,
    operator::{Said, encoded, said_by},
    postgres::Cluster,
    until,
};

/// The label by which a world finds a node that it named.
const NAME_LABEL: &str = "story-node";
/// How long a supervisor may take to leave after its invocation was settled.
const SUPERVISOR_LEAVES_WITHIN: Duration = Duration::from_secs(15);

/// Stories ask far more often than operators do.
pub const OFTEN: &str = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\n";

pub struct World {
    pub operator: Operator,
    control: Option<Daemon>,
    at: Place,
    config: Option<PathBuf>,
    open_is_fine: Cell<bool>,
    // After what uses it.
    database: Database,
    // Last, so that it outlives everything that writes into it.
    dir: TempDir,
}

/// What a world is to be.
pub struct Setup<'a> {
    /// A configuration file; `{dir}` in it stands for the world's directory.
    pub config: Option<&'a str>,
    pub engine: Engine,
    /// A cluster of the story's own, with PostgreSQL.
    pub cluster: Option<Arc<Cluster>>,
    /// The port under which control is known, where that is not its own.
    pub front: Option<u16>,
    pub control_binary: PathBuf,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            config: Some(OFTEN),
            engine: Engine::of_this_run(),
            cluster: None,
            front: None,
            control_binary: binary("muster-control"),
        }
    }
}

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

/// A `musterd` that is enrolled in a world.
pub struct Node {
    pub id: NodeId,
    operator: Operator,
    musterd: Musterd,
}

/// What a node is to be before it is enrolled.
pub struct NodeToBe<'w> {
    world: &'w World,
    server: String,
    labels: String,
    musterd: Musterd,
}

/// A hook that says that it has begun, in the trace `ran`, and goes on until the file `go` is there.
pub const PATIENT: &str =
    "#!/bin/sh\necho begun >> @DIR@/ran\nwhile ! [ -e @DIR@/go ]; do sleep 0.05; done\necho done\n";

impl World {
    /// A control that serves, with its first domain, project and operator token, and no node.
    pub async fn new() -> Self {
        Self::made(Setup::default()).await
    }

    /// The same with a configuration file; `{dir}` in it stands for the world's directory.
    pub async fn with_config(config: Option<&str>) -> Self {
        Self::made(Setup {
            config,
            ..Setup::default()
        })
        .await
    }

    /// The same with a `muster-control` of another version.
    pub async fn of_version(control_binary: PathBuf) -> Self {
        Self::made(Setup {
            control_binary,
            ..Setup::default()
        })
        .await
    }

    /// The same with everything said.
    pub async fn made(setup: Setup<'_>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("muster-world-")
            .tempdir()
            .expect("a directory can be made");
        let data = dir.path().join("control");
        let config = setup.config.map(|toml| {
            let path = dir.path().join("control.toml");
            let toml = toml.replace("{dir}", &dir.path().to_string_lossy());
            std::fs::write(&path, toml).expect("the configuration can be written");
            path
        });
        let database = Database::made(setup.engine, &data, setup.cluster).await;
        let at = Place {
            binary: setup.control_binary,
            data,
            port: free_port(),
            front: setup.front,
            database_url: match &database {
                Database::Sqlite(_) => None,
                Database::Postgres(database) => Some(database.url()),
            },
        };
        let first = init_control(&at);
        let text = |key: &str| {
            first[key]
                .as_str()
                .unwrap_or_else(|| panic!("no {key} in {first}"))
                .to_owned()
        };
        let operator = Operator::new(
            text("server"),
            text("token"),
            text("ca_file").into(),
            text("project_id"),
            dir.path().join("operator"),
        );
        let open_is_fine = Cell::new(false);
        let mut world = Self {
            operator,
            control: None,
            at,
            config,
            open_is_fine,
            database,
            dir,
        };
        world.start().await;
        world
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.at.data
    }

    /// Starts control and waits until it says that it is ready.
    ///
    /// # Panics
    /// When it runs already, or never gets ready.
    pub async fn start(&mut self) {
        self.launch();
        self.ready().await;
    }

    /// Starts control, and waits for nothing.
    ///
    /// # Panics
    /// When it runs already.
    pub fn launch(&mut self) {
        assert!(self.control.is_none(), "control runs already");
        self.control = Some(self.serve(&self.at, "control"));
    }

    /// Starts control with its data on a file system of that size, which nobody but it sees mounted. Answers where the data
    /// is for others.
    pub async fn start_on_small_disk(&mut self, size: &str) -> PathBuf {
        let kept = self.dir.path().join("kept");
        std::fs::rename(&self.at.data, &kept).expect("the directory is the world's own");
        std::fs::create_dir(&self.at.data).expect("the directory is the world's own");
        let script = "mount -t tmpfs -o mode=700,size=\"$1\" none \"$2\" && cp -a \"$3/.\" \"$2\" || exit; \
                      shift 3 && exec \"$@\"";
        let serve = self.serve_command(&self.at);
        let mut inside = Command::new("unshare");
        inside
            .env_clear()
            .envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .args(["--mount", "sh", "-c", script, "sh", size])
            .arg(&self.at.data)
            .arg(kept)
            .arg(serve.get_program())
            .args(serve.get_args());
        let log = self.dir.path().join("control.log");
        self.control = Some(Daemon::start("muster-control", inside, &log));
        self.ready().await;
        let root = PathBuf::from(format!("/proc/{}/root", self.control().pid()));
        root.join(self.at.data.strip_prefix("/").expect("it is absolute"))
    }

    /// Stops it there, and brings its data back to where it was.
    pub async fn stop_on_small_disk(&mut self, seen: &Path) {
        use std::os::fd::AsRawFd as _;
        // Keeps the file system, which would go with the last process that sees it.
        let disk = std::fs::File::open(seen).expect("the directory is there");
        let _ = self.stop().await;
        let copied = Command::new("cp")
            .arg("-a")
            .arg(format!("/proc/{}/fd/{}/.", std::process::id(), disk.as_raw_fd()))
            .arg(&self.at.data)
            .status();
        assert!(
            copied.is_ok_and(|status| status.success()),
            "the data is brought back"
        );
    }

    async fn ready(&mut self) {
        let operator = self.control_itself();
        let control = self.control();
        until("control is ready", async || {
            assert!(
                control.ended().is_none(),
                "control ended at its start:\n{}",
                control.log()
            );
            operator.is_ready().await.then_some(())
        })
        .await;
    }

    /// A control at some place, on this world's database.
    pub(crate) fn serve(&self, at: &Place, name: &str) -> Daemon {
        let command = self.serve_command(at);
        let log = self.dir.path().join(format!("{name}.log"));
        Daemon::start(&format!("muster-{name}"), command, &log)
    }

    fn serve_command(&self, at: &Place) -> Command {
        let mut command = at.command(&["serve", "--listen", &format!("127.0.0.1:{}", at.port)]);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.at
    }

    /// From the next start on, control reaches its database by this socket.
    ///
    /// # Panics
    /// On SQLite.
    pub fn reach_database_by(&mut self, socket: &Path) {
        self.at.database_url = Some(self.database.postgres().url_by(socket));
    }

    /// The operator at control's own port, whatever stands in front of it.
    #[must_use]
    pub fn control_itself(&self) -> Operator {
        self.operator.through(self.at.url())
    }

    /// `muster-control` in a process of its own, beside the one that serves.
    pub async fn control_says(&self, words: &[&str]) -> crate::Said {
        let mut command = self.at.command(words);
        if let Some(config) = &self.config {
            command.env("MUSTER_CONTROL_CONFIG", config);
        }
        said_by(command.into()).await
    }

    /// What is started from now on as control.
    pub fn install_control(&mut self, binary: PathBuf) {
        self.at.binary = binary;
    }

    /// Ends control as a power cut would.
    pub fn kill9(&mut self) {
        if let Some(mut control) = self.control.take() {
            control.kill9();
        }
    }

    /// Stops control in the polite way.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn stop(&mut self) -> std::process::ExitStatus {
        let mut control = self.control.take().expect("a stopped control was running");
        control.stop().await
    }

    #[must_use]
    pub fn control(&mut self) -> &mut Daemon {
        self.control.as_mut().expect("control runs")
    }

    /// A node with that name, to be described and then started.
    #[must_use]
    pub fn node(&self, name: &str) -> NodeToBe<'_> {
        NodeToBe {
            world: self,
            server: self.operator.server.clone(),
            labels: format!("{NAME_LABEL}={name}"),
            musterd: Musterd::new(&self.dir.path().join("nodes"), name),
        }
    }

    /// A bootstrap token, by the command an operator types.
    pub async fn bootstrap_token(&self, labels: &str) -> String {
        let said = self
            .operator
            .muster(&[
                "tokens", "issue", "--labels", labels, "--uses", "1", "--ttl", "1h", "-o", "json",
            ])
            .await
            .expect(0);
        said.json()["token"]
            .as_str()
            .expect("the token is shown this once")
            .to_owned()
    }

    /// The nodes that a selector names, by the API.
    pub async fn nodes(&self, selector: &str) -> Vec<NodeSummary> {
        nodes(&self.operator, selector).await
    }

    pub async fn dispatch(&self, body: Value) -> Execution {
        self.operator.dispatch(&body).await
    }

    /// Dispatches and waits for the end.
    pub async fn run(&self, body: Value) -> Execution {
        let execution = self.dispatch(body).await;
        self.settled(execution.id).await
    }

    pub async fn settled(&self, id: ExecutionId) -> Execution {
        self.operator.settled(id).await
    }

    /// How many rows each table holds, but for what a refusal may add, its evidence, and for what goes by itself, the
    /// outbox.
    #[must_use]
    pub fn rows(&self) -> BTreeMap<String, i64> {
        let tables = self.database.tables();
        let kept = tables
            .into_iter()
            .filter(|name| !name.contains("audit") && name != "outbox");
        self.database.counts(kept.map(|name| {
            let evidence = if name == "action_execution_event" {
                "WHERE NOT late"
            } else {
                ""
            };
            (name, evidence)
        }))
    }

    /// Control's own database, behind its back.
    #[must_use]
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// Runs a command of `muster-control` on the world's data directory to its end.
    pub async fn control_tool(&self, words: &[&str]) -> Said {
        said_by(self.at.command(words).into()).await
    }

    /// Changes control's database behind its back, for what no command does yet.
    pub fn alter(&self, sql: &str) {
        self.database.alter(sql);
    }

    /// As many nodes that can do `ping` as nobody has the patience to enrol, beside one that is enrolled. They have the label
    /// `fleet=many`, and never connect.
    pub fn many_nodes(&self, count: u32) {
        let db = &self.database;
        self.alter(&format!(
            "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {count})
             INSERT INTO node (id, domain_id, project_id, name, hostname, machine_id, nsk_hash, bootstrap_token_id,
                               enrollment_id, created_at)
             SELECT {id}, n.domain_id, n.project_id, 'many-' || i, 'many', 'm' || i, {digest},
                    n.bootstrap_token_id, {id}, n.created_at
             FROM c, (SELECT * FROM node LIMIT 1) n;
             INSERT INTO node_action (node_id, name, kind, manifest)
             SELECT id, 'ping', 'builtin', '{{}}' FROM node WHERE true ON CONFLICT DO NOTHING;
             INSERT INTO node_label (node_id, key, value) SELECT id, 'fleet', 'many' FROM node WHERE hostname = 'many'",
            id = db.some_id(),
            digest = db.some_digest(),
        ));
    }

    /// Another operator with all rights in the project.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn another_operator(&self) -> Operator {
        let now = muster_shared::time::Timestamp::now();
        let mint = || muster_shared::ids::RowId::mint(now, chance());
        let (id, tuple) = (mint(), mint());
        let token = format!("mop_{}", hex(&chance::<32>()));
        let hash = muster_shared::ids::Digest::of(token.as_bytes());
        let db = &self.database;
        self.alter(&format!(
            "INSERT INTO operator_token (id, domain_id, name, token_hash, created_at)
                 SELECT {}, id, 'another', {}, {now} FROM domain;
             INSERT INTO relation_tuple (id, domain_id, project_id, subject, relation, resource, created_at)
                 SELECT {}, domain_id, id, 'token:{id}', 'operator', 'project:{}', {now} FROM project",
            db.id(id.uuid()),
            db.bytes(hash.as_bytes()),
            db.id(tuple.uuid()),
            self.operator.project,
            now = db.at(now.as_millis()),
        ));
        self.operator.with_token(&token)
    }

    /// This story means to leave invocations open.
    pub fn leave_open(&self) {
        self.open_is_fine.set(true);
    }

    fn check(&self) {
        if !self.open_is_fine.get() {
            let open = self.database.rows(
                "SELECT execution_id, node_id, status FROM action_execution_target
                  WHERE status IN ('pending', 'ack', 'started')",
            );
            assert!(
                open.is_empty(),
                "left unsettled (execution, node, status): {open:#?}"
            );
        }
        let deadline = Instant::now() + SUPERVISOR_LEAVES_WITHIN;
        while !supervisors_under(self.dir.path()).is_empty() {
            assert!(Instant::now() < deadline, "a supervisor outlives its invocation");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let checked = if std::thread::panicking() {
            Ok(())
        } else {
            // The processes and the directory have to go even if the world is not as it should be.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.check()))
        };
        end_supervisors_under(self.dir.path());
        // Before its database goes.
        self.kill9();
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    }
}

async fn nodes(operator: &Operator, selector: &str) -> Vec<NodeSummary> {
    let path = format!(
        "/v1/nodes?project_id={}&selector={}&limit=200",
        operator.project,
        encoded(selector)
    );
    let page: Page<NodeSummary> = operator.get(&path).await.expect(200).json();
    page.items
}

impl NodeToBe<'_> {
    /// Adds labels, as `role=web,zone=a`.
    #[must_use]
    pub fn labels(mut self, labels: &str) -> Self {
        self.labels = format!("{},{labels}", self.labels);
        self
    }

    #[must_use]
    pub fn hook(self, name: &str, script: &str) -> Self {
        self.musterd.install_hook(name, script);
        self
    }

    #[must_use]
    pub fn config(self, toml: &str) -> Self {
        self.musterd.configure(toml);
        self
    }

    /// The directories and files of the node, for a story that does more with them than install hooks.
    #[must_use]
    pub fn prepare(self, with: impl FnOnce(&Musterd)) -> Self {
        with(&self.musterd);
        self
    }

    /// Lets it connect elsewhere than to where the operator does.
    #[must_use]
    pub fn through(mut self, server: String) -> Self {
        self.server = server;
        self
    }

    /// Runs it with a `musterd` of another version.
    #[must_use]
    pub fn of_version(mut self, binary: PathBuf) -> Self {
        self.musterd.install(binary);
        self
    }

    /// Enrols it and leaves it off.
    pub async fn enrolled(self) -> Node {
        let Self {
            world,
            server,
            labels,
            musterd,
        } = self;
        let token = world.bootstrap_token(&labels).await;
        let operator = world.operator.clone();
        let _ = musterd
            .try_enroll(&server, &token, &operator.ca_file)
            .await
            .expect(0);
        let name = &musterd.name;
        let found = world.nodes(&format!("{NAME_LABEL}={name}")).await;
        let [summary] = &found[..] else {
            panic!("{name} is enrolled once: {found:#?}")
        };
        Node {
            id: summary.id,
            operator,
            musterd,
        }
    }

    /// Enrols and starts it, and waits until control knows what it can do.
    pub async fn start(self) -> Node {
        let mut node = self.enrolled().await;
        node.start().await;
        node
    }
}

impl NodeToBe<'_> {
    /// Starts it with the hook [`PATIENT`], which has begun when this returns.
    pub async fn at_work(self) -> (Node, Execution) {
        let world = self.world;
        let node = self.hook("patient", PATIENT).start().await;
        let running = world.dispatch(on_node("patient", node.id)).await;
        until("the hook runs", async || {
            (!node.trace("ran").is_empty()).then_some(())
        })
        .await;
        (node, running)
    }
}

impl Node {
    /// Starts the daemon and waits until control holds its stream and its hooks.
    pub async fn start(&mut self) {
        self.musterd.launch();
        let hooks = self.sound_hooks();
        self.known(async |summary| {
            let declared = |name: &String| summary.actions.iter().any(|a| a.name.as_str() == name);
            summary.connected && declared(&"ping".to_owned()) && hooks.iter().all(declared)
        })
        .await;
    }

    /// What control calls it.
    pub async fn known_name(&self) -> String {
        let path = format!("/v1/nodes/{}", self.id);
        let summary: NodeSummary = self.operator.get(&path).await.expect(200).json();
        summary.name
    }

    pub async fn restart(&mut self) {
        let _ = self.musterd.stop().await;
        self.start().await;
    }

    /// Waits until control's own view of the node is as asked.
    pub async fn known(&mut self, mut so: impl AsyncFnMut(&NodeSummary) -> bool) -> NodeSummary {
        let Self {
            id,
            operator,
            musterd,
        } = self;
        let what = format!("control knows {} as it should", musterd.name);
        until(&what, async || {
            if let Some(status) = musterd.daemon().ended() {
                panic!("{} ended: {status}\n{}", musterd.name, musterd.log());
            }
            let summary: NodeSummary = operator.get(&format!("/v1/nodes/{id}")).await.expect(200).json();
            so(&summary).await.then_some(summary)
        })
        .await
    }

    /// Changes a hook after first sight, and waits until control has seen that.
    pub async fn replace_hook(&mut self, name: &str, script: &str) {
        self.musterd.install_hook(name, script);
        let name = name.to_owned();
        self.known(async |summary| {
            summary.actions.iter().any(|action| {
                action.name.as_str() == name
                    && action.kind == ActionKind::Hook
                    && action.verdict == Some(muster_shared::wire::Verdict::Drift)
            })
        })
        .await;
    }

    /// The hooks that lie in the directory as an admin should install them: what is left out, control never hears of.
    fn sound_hooks(&self) -> Vec<String> {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.musterd.hooks)
            .expect("hooks can be listed")
            .flatten()
        {
            let about = entry.path().symlink_metadata().expect("a hook can be looked at");
            let own = about.uid() == rustix::process::geteuid().as_raw();
            let mode = about.permissions().mode();
            if about.is_file() && own && mode & 0o022 == 0 && mode & 0o100 != 0 && about.len() <= 16 << 20 {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names
    }
}

impl Deref for Node {
    type Target = Musterd;
    fn deref(&self) -> &Musterd {
        &self.musterd
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Musterd {
        &mut self.musterd
    }
}

impl Place {
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// `muster-control` with these words, this place's data and database, and nothing of whoever runs the tests.
    fn command(&self, words: &[&str]) -> Command {
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

fn init_control(at: &Place) -> Value {
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

/// The target of one node in an execution.
#[must_use]
#[track_caller]
pub fn target(execution: &Execution, node: NodeId) -> &muster_shared::wire::ExecutionTarget {
    execution
        .targets
        .iter()
        .find(|t| t.node_id == node)
        .unwrap_or_else(|| panic!("no {node} in {execution:#?}"))
}

/// A dispatch to one node.
#[must_use]
pub fn on_node(action: &str, node: NodeId) -> Value {
    json!({"action": action, "node_id": node})
}

/// A dispatch to the nodes of a selector.
#[must_use]
pub fn on(action: &str, selector: &str) -> Value {
    json!({"action": action, "selector": selector})
}
