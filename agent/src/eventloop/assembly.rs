//! Putting the daemon together: every part gets what it needs of the others, and those that live on their own begin to.

use std::{collections::BTreeMap, sync::Arc};

use muster_shared::{ids::NodeId, time::Timestamp, wire::DetectedBy};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::{JoinSet, spawn_blocking},
    time::Instant,
};

use super::{Daemon, Event};
use crate::{
    builtins::slots::Slots,
    clock::Clock,
    config::Config,
    control::{self, Control},
    declare::{self, Declarer, Poke, Pokes},
    exit::{self, Exit},
    heartbeat::{Binary, Heart},
    hooks::{self, catalog::Catalog, hold},
    identity::Identity,
    instance::Instance,
    journal::{Journal, Store},
    keyring::Keys,
    kick::{Kicker, Kicks},
    launch::Launcher,
    link,
    nsk::{KeyFiles, Nsk},
    report::Reporter,
    resident::Program,
    run_dir,
    runner::Runner,
    service::Service,
    session::{Decision, Session},
    stream::Listener,
    tool::{
        self,
        desk::{Desk, OverviewAsked},
    },
};

/// What nearly every part has.
#[derive(Clone)]
struct Common {
    config: Arc<Config>,
    settings: watch::Receiver<Arc<Config>>,
    control: Control,
    journal: Journal,
    clock: Clock,
    pokes: Pokes,
    kicks: Kicks,
    binary: Binary,
}

fn broken(err: std::io::Error) -> Exit {
    Exit::Failure(format!("the daemon could not start: {err}"))
}

impl Daemon {
    pub(super) async fn assemble(
        config: Config,
        (identity, instance): (Identity, Instance),
        journal: Journal,
        events: mpsc::Sender<Event>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, Exit> {
        let server = control::parse_server(&identity.server).map_err(Exit::Failure)?;
        let reach = config.reach.clone();
        let clock = reach.clock().clone();
        let nsk = Nsk::new(identity.nsk);
        let speaker = (nsk.clone(), instance);
        let control = Control::new(reach, &identity.ca_pem, server, identity.node_id, speaker)
            .map_err(Exit::Failure)?;
        let config = Arc::new(config);
        let (settings, settings_seen) = watch::channel(Arc::clone(&config));
        let (reload, reloads) = mpsc::channel(4);
        let (overview, overviews) = mpsc::channel(4);
        let (link, link_seen) = link::Teller::new(Timestamp::now());
        let (kicker, kicks) = Kicker::new();
        let hangups = signal(SignalKind::hangup()).map_err(broken)?;
        let boot_id = run_dir::boot_id().map_err(broken)?;
        let launcher = Launcher::choose(config.launcher)?;
        let common = Common {
            config,
            settings: settings_seen,
            control,
            journal,
            clock,
            pokes: Pokes::default(),
            kicks,
            binary: spawn_blocking(Binary::of_this_process)
                .await
                .map_err(|err| broken(err.into()))?
                .map_err(broken)?,
        };
        let (catalog, catalog_seen) = watch::channel(Arc::new(common.first_look().await));
        log::info!(node_id:% = identity.node_id, name = identity.name, server = identity.server,
            version = env!("CARGO_PKG_VERSION"), limits:? = common.config.limits, reach:% = common.config.reach;
            "musterd is up");
        common.announce(&launcher).await?;

        let keys = KeyFiles::open(&common.config.state_dir, nsk)?;
        let told = common.journal.ask(Store::told_again).await;
        let (told_again, told_again_seen) =
            watch::channel(told.map_err(|err| Exit::Journal(exit::chain(&err)))?);
        let news = (link_seen.clone(), told_again_seen);
        common.speak(
            tasks,
            (keys, identity.keys),
            (events, link),
            news,
            identity.node_id,
        );
        common.declare(tasks, catalog);
        common.answer_the_admin(tasks, link_seen, overview);

        let Common {
            config,
            settings: settings_seen,
            control,
            journal,
            clock,
            pokes,
            kicks,
            binary: _,
        } = common;
        let reporter = Reporter::new(
            control,
            clock.clone(),
            settings_seen.clone(),
            kicks,
            identity.ca_pem,
        );
        let runner = Runner {
            settings: settings_seen,
            node: identity.node_id,
            boot_id,
            clock: clock.clone(),
            journal: journal.clone(),
            catalog: catalog_seen,
            pokes: pokes.clone(),
            builtin_slots: Slots::new(),
            reload,
            launcher,
        };
        Ok(Self {
            session: Session::new(
                config.limits.running_max,
                config.limits.queue_max,
                config.limits.outputs,
            ),
            config,
            settings,
            reloads,
            overviews,
            hangups,
            clock,
            journal,
            runner: Arc::new(runner),
            reporter: Arc::new(reporter),
            pokes,
            kicker,
            work: JoinSet::new(),
            stops: BTreeMap::new(),
            uploads: BTreeMap::new(),
            backlog: Decision::default(),
            retry_at: None,
            prune_at: Instant::now(),
            pruned: false,
            program: Program::of_this_process(),
            stirred: true,
            retelling: None,
            told_again,
            service: Service::new(),
            server: identity.server,
        })
    }
}

impl Common {
    async fn first_look(&self) -> Catalog {
        let scanned = declare::scan(
            Arc::clone(&self.config),
            &self.journal,
            &self.clock,
            DetectedBy::StartupScan,
        );
        scanned.await.unwrap_or_else(|err| {
            // A disk that is full keeps the baselines of new hooks out of the journal, and nobody from looking around.
            self.pokes.poke(Poke::Rescan);
            Catalog::unknown(format!("the hooks could not be compared: {}", exit::chain(&err)))
        })
    }

    /// How hooks are run here, which a reader of the log should not have to guess.
    async fn announce(&self, launcher: &Launcher) -> Result<(), Exit> {
        launcher.announce(&self.config.hook_limits);
        let state_dir = self.config.state_dir.clone();
        spawn_blocking(move || hold::announce(&state_dir))
            .await
            .map_err(|err| broken(err.into()))
    }

    /// With control: the heartbeat, which measures the clock before the stream is opened, and the stream.
    fn speak(
        &self,
        tasks: &mut JoinSet<()>,
        (keys, signing): (KeyFiles, Keys),
        (events, link): (mpsc::Sender<Event>, link::Teller),
        (link_seen, told_again): (watch::Receiver<link::Link>, watch::Receiver<Option<Timestamp>>),
        node: NodeId,
    ) {
        let (measured, clock_measured) = oneshot::channel();
        let heart = Heart {
            control: self.control.clone(),
            clock: self.clock.clone(),
            binary: self.binary,
            interval: self.config.limits.heartbeat,
            backoff: self.config.limits.backoff,
            pokes: self.pokes.clone(),
            events: events.clone(),
            keys,
            signing: signing.clone(),
            told_again,
            link: link_seen,
            kicks: self.kicks.clone(),
        };
        tasks.spawn(heart.beat(measured));
        let listener = Listener {
            control: self.control.clone(),
            keys: signing,
            node,
            clock: self.clock.clone(),
            limits: self.config.limits.clone(),
            events,
            link,
            kicks: self.kicks.clone(),
        };
        tasks.spawn(listener.listen(clock_measured));
    }

    fn declare(&self, tasks: &mut JoinSet<()>, catalog: watch::Sender<Arc<Catalog>>) {
        let declarer = Declarer {
            settings: self.settings.clone(),
            control: self.control.clone(),
            journal: self.journal.clone(),
            clock: self.clock.clone(),
            binary: self.binary,
            catalog,
            pokes: self.pokes.clone(),
            kicks: self.kicks.clone(),
        };
        tasks.spawn(declarer.speak());
        tasks.spawn(hooks::watch::watch(
            self.config.hooks_dir.clone(),
            self.pokes.clone(),
        ));
    }

    fn answer_the_admin(
        &self,
        tasks: &mut JoinSet<()>,
        link: watch::Receiver<link::Link>,
        overviews: mpsc::Sender<OverviewAsked>,
    ) {
        let desk = Desk {
            settings: self.settings.clone(),
            journal: self.journal.clone(),
            clock: self.clock.clone(),
            pokes: self.pokes.clone(),
            link,
            overviews,
            started_at: Timestamp::now(),
        };
        match tool::desk::open(&self.config.state_dir) {
            Ok(listener) => drop(tasks.spawn(desk.serve(listener))),
            // The node works without it.
            Err(err) => {
                log::warn!(error:% = err; "`musterd status` cannot ask this daemon: there is no socket")
            }
        }
    }
}
