//! A systemd and a logind on a bus of their own, as strict as the real ones: they know the units they were given and no
//! others, tell the end of a job to subscribers only, and refuse what does not apply.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::net::UnixStream;
use zbus::{
    Connection, DBusError,
    connection::Builder,
    interface,
    object_server::SignalEmitter,
    wire::{ObjectPath, OwnedObjectPath},
};

use crate::{binaries::tool, until};

const MANAGER: &str = "/org/freedesktop/systemd1";

/// What becomes of a job that starts a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Starts {
    Well,
    /// The end of the job is told before its name is.
    AtOnce,
    Badly,
    /// The job is never over.
    Never,
}

#[derive(Clone, Debug)]
struct Unit {
    starts: Starts,
    active: &'static str,
    sub: &'static str,
    pid: u32,
}

#[derive(Default)]
struct State {
    units: BTreeMap<String, Unit>,
    subscribed: bool,
    jobs: u32,
    /// Every call that changes something, as `verb unit mode`.
    calls: Vec<String>,
    wall: Option<String>,
    reboots: u32,
    refuses_reboot: bool,
}

type Shared = Arc<Mutex<State>>;

pub struct FakeSystemd {
    state: Shared,
    socket: PathBuf,
    bus: Child,
    _connection: Connection,
}

#[derive(DBusError, Debug)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Refused {
    #[zbus(error)]
    ZBus(zbus::Error),
    NoSuchUnit(String),
    JobTypeNotApplicable(String),
    InvalidArgs(String),
    AccessDenied(String),
}

fn locked(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().expect("no holder panics")
}

fn path_of(unit: &str) -> OwnedObjectPath {
    use std::fmt::Write as _;
    let mut path = format!("{MANAGER}/unit/");
    for byte in unit.bytes() {
        if byte.is_ascii_alphanumeric() {
            path.push(char::from(byte));
        } else {
            write!(path, "_{byte:02x}").expect("a string takes everything");
        }
    }
    path.try_into().expect("every other byte is escaped")
}

impl FakeSystemd {
    /// With those units, all of them inactive.
    ///
    /// # Panics
    /// When there is no dbus-daemon.
    pub async fn new(dir: &Path, units: &[(&str, Starts)]) -> Self {
        let (socket, config) = (dir.join("bus"), dir.join("bus.conf"));
        let text = format!(
            "<busconfig><type>system</type><listen>unix:path={}</listen><policy context=\"default\">\
             <allow user=\"*\"/><allow own=\"*\"/><allow send_destination=\"*\"/><allow receive_sender=\"*\"/>\
             </policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).expect("the configuration can be written");
        let bus = Command::new(tool("dbus-daemon", "DBUS_DAEMON"))
            .arg("--nofork")
            .arg("--nopidfile")
            .arg(format!("--config-file={}", config.display()))
            .stdin(Stdio::null())
            .spawn()
            .expect("dbus-daemon starts");
        // The socket is bound a moment before it takes connections: a path that exists is not enough.
        until("the bus takes connections", async || {
            UnixStream::connect(&socket).await.ok()
        })
        .await;

        let unit = |(name, starts): &(&str, Starts)| {
            let unit = Unit {
                starts: *starts,
                active: "inactive",
                sub: "dead",
                pid: 0,
            };
            ((*name).to_owned(), unit)
        };
        let state = Arc::new(Mutex::new(State {
            units: units.iter().map(unit).collect(),
            ..State::default()
        }));
        let mut builder = Builder::address(format!("unix:path={}", socket.display()).as_str())
            .serve_at(MANAGER, Manager(Arc::clone(&state)))
            .serve_at("/org/freedesktop/login1", Login(Arc::clone(&state)));
        let unknown = [("ghost.service", Starts::Never)];
        for (name, _) in units.iter().chain(&unknown) {
            let (path, name) = (path_of(name), (*name).to_owned());
            let object = UnitObject(Arc::clone(&state), name.clone());
            builder = builder.serve_at(path.clone(), object);
            builder = builder.serve_at(path, ServiceObject(Arc::clone(&state), name));
        }
        let connection = builder
            .name("org.freedesktop.systemd1")
            .name("org.freedesktop.login1")
            .build()
            .await
            .expect("the bus takes a systemd");
        Self {
            state,
            socket,
            bus,
            _connection: connection,
        }
    }

    /// For the environment of a daemon.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        locked(&self.state).calls.clone()
    }

    /// How often a reboot was asked for, and what users were told.
    #[must_use]
    pub fn reboots(&self) -> (u32, Option<String>) {
        let state = locked(&self.state);
        (state.reboots, state.wall.clone())
    }

    pub fn refuse_reboots(&self) {
        locked(&self.state).refuses_reboot = true;
    }
}

impl Drop for FakeSystemd {
    fn drop(&mut self) {
        // It has nothing to lose.
        let _ = self.bus.kill();
        let _ = self.bus.wait();
    }
}

struct Manager(Shared);

type Listed = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn subscribe(&self) {
        locked(&self.0).subscribed = true;
    }

    fn list_units(&self) -> Vec<Listed> {
        let row = |(name, unit): (&String, &Unit)| {
            let nothing = || OwnedObjectPath::try_from("/").expect("the root is a path");
            (
                name.clone(),
                format!("The unit {name}"),
                "loaded".to_owned(),
                unit.active.to_owned(),
                unit.sub.to_owned(),
                String::new(),
                path_of(name),
                0,
                String::new(),
                nothing(),
            )
        };
        locked(&self.0).units.iter().map(row).collect()
    }

    /// A unit without a file can be loaded too: it is `not-found` then.
    fn load_unit(&self, name: &str) -> OwnedObjectPath {
        path_of(name)
    }

    async fn start_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refused> {
        self.job("start", name, mode, &emitter).await
    }

    async fn stop_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refused> {
        self.job("stop", name, mode, &emitter).await
    }

    async fn restart_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refused> {
        self.job("restart", name, mode, &emitter).await
    }

    async fn reload_unit(
        &self,
        name: &str,
        mode: &str,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refused> {
        self.job("reload", name, mode, &emitter).await
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

impl Manager {
    async fn job(
        &self,
        verb: &str,
        name: &str,
        mode: &str,
        emitter: &SignalEmitter<'_>,
    ) -> Result<OwnedObjectPath, Refused> {
        let (id, starts, result, subscribed) = {
            let mut state = locked(&self.0);
            if mode != "replace" && mode != "replace-irreversibly" {
                return Err(Refused::InvalidArgs(format!("Job mode {mode} invalid")));
            }
            state.calls.push(format!("{verb} {name} {mode}"));
            state.jobs += 1;
            let (id, subscribed) = (state.jobs, state.subscribed);
            let unit = state
                .units
                .get_mut(name)
                .ok_or_else(|| Refused::NoSuchUnit(format!("Unit {name} not found.")))?;
            if verb == "reload" && unit.active != "active" {
                let why = format!("Job type reload is not applicable for unit {name}.");
                return Err(Refused::JobTypeNotApplicable(why));
            }
            let result = match (verb, unit.starts) {
                ("stop", _) => {
                    (unit.active, unit.sub, unit.pid) = ("inactive", "dead", 0);
                    "done"
                }
                ("reload", _) => "done",
                (_, Starts::Badly) => {
                    (unit.active, unit.sub, unit.pid) = ("failed", "failed", 0);
                    "failed"
                }
                (_, Starts::Well | Starts::AtOnce | Starts::Never) => {
                    (unit.active, unit.sub, unit.pid) = ("active", "running", 4242);
                    "done"
                }
            };
            (id, unit.starts, result, subscribed)
        };
        let path: OwnedObjectPath = format!("{MANAGER}/job/{id}").try_into().expect("it is a path");
        if starts != Starts::Never && subscribed {
            let (emitter, name, job) = (emitter.to_owned(), name.to_owned(), path.clone());
            let tell = async move {
                // Somebody else's job ends too.
                let other =
                    ObjectPath::try_from("/org/freedesktop/systemd1/job/999999").expect("it is a path");
                let _ = Self::job_removed(&emitter, 999_999, other, "other.service", "timeout").await;
                let _ = Self::job_removed(&emitter, id, job.as_ref(), &name, result).await;
            };
            if starts == Starts::AtOnce {
                tell.await;
            } else {
                tokio::spawn(tell);
            }
        }
        Ok(path)
    }
}

struct UnitObject(Shared, String);

impl UnitObject {
    fn unit(&self) -> Option<Unit> {
        locked(&self.0).units.get(&self.1).cloned()
    }
}

#[interface(name = "org.freedesktop.systemd1.Unit")]
impl UnitObject {
    #[zbus(property)]
    fn id(&self) -> String {
        self.1.clone()
    }
    #[zbus(property)]
    fn description(&self) -> String {
        format!("The unit {}", self.1)
    }
    #[zbus(property)]
    fn load_state(&self) -> String {
        if self.unit().is_some() {
            "loaded"
        } else {
            "not-found"
        }
        .to_owned()
    }
    #[zbus(property)]
    fn active_state(&self) -> String {
        self.unit().map_or("inactive", |unit| unit.active).to_owned()
    }
    #[zbus(property)]
    fn sub_state(&self) -> String {
        self.unit().map_or("dead", |unit| unit.sub).to_owned()
    }
    #[zbus(property)]
    fn unit_file_state(&self) -> String {
        "enabled".to_owned()
    }
    #[zbus(property)]
    fn fragment_path(&self) -> String {
        format!("/lib/systemd/system/{}", self.1)
    }
    #[zbus(property)]
    fn state_change_timestamp(&self) -> u64 {
        1_700_000_000_000_000
    }
}

struct ServiceObject(Shared, String);

impl ServiceObject {
    fn unit(&self) -> Option<Unit> {
        locked(&self.0).units.get(&self.1).cloned()
    }
}

#[interface(name = "org.freedesktop.systemd1.Service")]
impl ServiceObject {
    #[zbus(property, name = "MainPID")]
    fn main_pid(&self) -> u32 {
        self.unit().map_or(0, |unit| unit.pid)
    }
    #[zbus(property)]
    fn result(&self) -> String {
        let failed = self.unit().is_some_and(|unit| unit.active == "failed");
        if failed { "exit-code" } else { "success" }.to_owned()
    }
    #[zbus(property, name = "NRestarts")]
    fn n_restarts(&self) -> u32 {
        2
    }
    /// Not counted.
    #[zbus(property)]
    fn memory_current(&self) -> u64 {
        u64::MAX
    }
    #[zbus(property)]
    fn exec_main_code(&self) -> i32 {
        i32::from(self.unit().is_some_and(|unit| unit.active == "failed"))
    }
    #[zbus(property)]
    fn exec_main_status(&self) -> i32 {
        3 * self.exec_main_code()
    }
}

struct Login(Shared);

#[interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    fn set_wall_message(&self, message: String, enable: bool) {
        locked(&self.0).wall = enable.then_some(message);
    }

    fn reboot(&self, interactive: bool) -> Result<(), Refused> {
        let mut state = locked(&self.0);
        if interactive {
            return Err(Refused::InvalidArgs("nobody is here to be asked".to_owned()));
        }
        if state.refuses_reboot {
            return Err(Refused::AccessDenied(
                "Access denied as the requested operation is not allowed".to_owned(),
            ));
        }
        state.reboots += 1;
        Ok(())
    }
}
