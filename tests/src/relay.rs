//! A piece of network between a daemon and control that can go dead without a word, as a NAT that forgot its flows.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub struct Relay {
    port: u16,
    frozen: watch::Sender<()>,
}

impl Relay {
    /// Listens on loopback and hands everything on to a port there, both ways.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn before(behind: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (frozen, _) = watch::channel(());
        let freezing = frozen.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut freeze = freezing.subscribe();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", behind)).await else {
                        return;
                    };
                    let still_works = tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => true,
                        _ = freeze.changed() => false,
                    };
                    if !still_works {
                        // Both sockets stay open, and nothing passes any more.
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { port, frozen }
    }

    #[must_use]
    pub fn base(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// What is connected now stays so and is dead; what connects from now on works.
    pub fn freeze(&self) {
        self.frozen.send_replace(());
    }
}
