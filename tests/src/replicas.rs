//! Several controls on one database, and one name for all of them.

use std::{
    path::Path,
    process::{Command, ExitStatus},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    Daemon, Engine, Operator, PgRelay, World, postgres,
    postgres::Cluster,
    until,
    world::{OFTEN, Place, Setup, free_port},
};

/// What stands in front of replicas: each connection goes to the first that takes it.
pub struct Front {
    port: u16,
    to: Arc<Mutex<Vec<u16>>>,
    cut: watch::Sender<()>,
}

impl Front {
    async fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let to: Arc<Mutex<Vec<u16>>> = Arc::default();
        let (cut, _) = watch::channel(());
        let (behind, cutting) = (to.clone(), cut.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let order = behind.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let mut cut = cutting.subscribe();
                tokio::spawn(async move {
                    for port in order {
                        let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else {
                            continue;
                        };
                        tokio::select! {
                            _ = copy_bidirectional(&mut near, &mut far) => {}
                            _ = cut.changed() => {}
                        }
                        return;
                    }
                });
            }
        });
        Self { port, to, cut }
    }

    /// Ends every connection through here.
    pub fn cut(&self) {
        self.cut.send_replace(());
    }
}

/// The first is the world's own control.
pub struct Replicas {
    others: Vec<Replica>,
    pub front: Front,
    // Last: the database goes with it.
    pub world: World,
}

struct Replica {
    name: String,
    place: Place,
    control: Option<Daemon>,
}

impl Replicas {
    /// So many of them, all serving; none where the stories of PostgreSQL are left out. The world's operator and the nodes
    /// come by the front.
    pub async fn new(count: usize) -> Option<Self> {
        Self::with(count, OFTEN, None).await
    }

    /// The same with a configuration for all, and perhaps a cluster of the story's own.
    pub async fn with(count: usize, config: &str, cluster: Option<Arc<Cluster>>) -> Option<Self> {
        if postgres::left_out() {
            return None;
        }
        let front = Front::new().await;
        let world = World::made(Setup {
            config: Some(config),
            engine: Engine::Postgres,
            cluster,
            front: Some(front.port),
            ..Setup::default()
        })
        .await;
        let mut replicas = Self {
            others: Vec::new(),
            front,
            world,
        };
        for n in 1..count {
            replicas.add(n);
        }
        for n in 1..count {
            replicas.ready(n).await;
        }
        replicas.prefer(&(0..count).collect::<Vec<_>>());
        Some(replicas)
    }

    /// One more: a copy of the keys and certificates of the first, at a port of its own.
    fn add(&mut self, n: usize) {
        let name = format!("control-{n}");
        let data = self.world.dir().join(&name);
        copy(self.world.data_dir(), &data);
        let place = Place {
            data,
            port: free_port(),
            ..self.world.place().clone()
        };
        let control = Some(self.world.serve(&place, &name));
        self.others.push(Replica { name, place, control });
    }

    async fn ready(&mut self, n: usize) {
        let operator = self.at(n);
        let control = self.control(n);
        until("the replica is ready", async || {
            assert!(
                control.ended().is_none(),
                "the replica ended at its start:\n{}",
                control.log()
            );
            operator.is_ready().await.then_some(())
        })
        .await;
    }

    /// The operator at one replica itself.
    #[must_use]
    pub fn at(&self, n: usize) -> Operator {
        match n {
            0 => self.world.control_itself(),
            n => self.world.operator.through(self.others[n - 1].place.url()),
        }
    }

    pub fn control(&mut self, n: usize) -> &mut Daemon {
        match n {
            0 => self.world.control(),
            n => self.others[n - 1].control.as_mut().expect("the replica runs"),
        }
    }

    /// To whom new connections through the front go: the first of these that is there.
    pub fn prefer(&self, order: &[usize]) {
        let port = |n: &usize| match n {
            0 => self.world.place().port,
            n => self.others[n - 1].place.port,
        };
        *self.front.to.lock().unwrap_or_else(PoisonError::into_inner) = order.iter().map(port).collect();
    }

    /// Ends one as a power cut would.
    pub fn kill9(&mut self, n: usize) {
        match n {
            0 => self.world.kill9(),
            n => {
                if let Some(mut control) = self.others[n - 1].control.take() {
                    control.kill9();
                }
            }
        }
    }

    /// Stops one in the polite way.
    pub async fn stop(&mut self, n: usize) -> ExitStatus {
        match n {
            0 => self.world.stop().await,
            n => {
                let control = self.others[n - 1].control.take();
                control.expect("a stopped replica was running").stop().await
            }
        }
    }

    /// Starts one again, and waits until it serves.
    pub async fn start(&mut self, n: usize) {
        self.launch(n);
        self.ready(n).await;
    }

    /// Starts one again, and waits for nothing.
    pub fn launch(&mut self, n: usize) {
        match n {
            0 => self.world.launch(),
            n => {
                let replica = &self.others[n - 1];
                let control = self.world.serve(&replica.place, &replica.name);
                self.others[n - 1].control = Some(control);
            }
        }
    }

    /// Starts a replica anew with a relay between it and the database.
    pub async fn behind_relay(&mut self, n: usize) -> PgRelay {
        let relay = PgRelay::before(self.world.database().postgres().cluster.socket());
        let _ = self.stop(n).await;
        self.reach_database_by(n, relay.socket());
        self.start(n).await;
        relay
    }

    /// From its next start on, a replica reaches the database by this socket.
    fn reach_database_by(&mut self, n: usize, socket: &Path) {
        match n {
            0 => self.world.reach_database_by(socket),
            n => {
                let url = self.world.database().postgres().url_by(socket);
                self.others[n - 1].place.database_url = Some(url);
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "the data directory can be copied"
    );
}
