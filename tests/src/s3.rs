//! A real S3 server that checks every signature.

use std::{path::Path, process::Command};

use crate::{Daemon, binaries::tool, until, world::free_port};

pub const ACCESS_KEY_ID: &str = "story-access-key";
pub const SECRET_ACCESS_KEY: &str = "story-secret-key-0123456789";
pub const BUCKET: &str = "outputs";

pub struct S3 {
    pub endpoint: String,
    pub root: std::path::PathBuf,
    dir: std::path::PathBuf,
    port: u16,
    _server: Daemon,
}

/// A store that is away with all that it holds.
pub struct Away {
    dir: std::path::PathBuf,
    port: u16,
}

impl S3 {
    /// Starts it with one empty bucket in a directory.
    ///
    /// # Panics
    /// When the server is not installed, or does not start.
    pub async fn start(dir: &Path) -> Self {
        Self::listen(dir.to_owned(), free_port()).await
    }

    /// Takes it away.
    #[must_use]
    pub fn pause(self) -> Away {
        Away {
            dir: self.dir,
            port: self.port,
        }
    }

    async fn listen(dir: std::path::PathBuf, port: u16) -> Self {
        let root = dir.join("s3");
        std::fs::create_dir_all(root.join(BUCKET)).expect("a bucket is a directory");
        let mut command = Command::new(tool("s3s-fs", "S3S_FS"));
        command
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--access-key", ACCESS_KEY_ID, "--secret-key", SECRET_ACCESS_KEY])
            .arg(&root);
        let server = Daemon::start("s3s-fs", command, &dir.join("s3.log"));
        until("the S3 server listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .ok()
                .map(drop)
        })
        .await;
        Self {
            endpoint: format!("http://127.0.0.1:{port}"),
            root,
            dir,
            port,
            _server: server,
        }
    }

    /// What makes control use it, through an address that leads here.
    ///
    /// # Panics
    /// When the secret cannot be written.
    #[must_use]
    pub fn config_through(&self, endpoint: &str) -> String {
        let secret = self.dir.join("secret");
        std::fs::write(&secret, SECRET_ACCESS_KEY).expect("the secret can be written");
        format!(
            "[output.s3]\nendpoint = \"{endpoint}\"\nregion = \"us-east-1\"\nbucket = \"{BUCKET}\"\n\
             access_key_id = \"{ACCESS_KEY_ID}\"\nsecret_access_key_file = \"{}\"\npath_style = true\n",
            secret.display()
        )
    }

    /// The bytes that the bucket holds under a key.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.root.join(BUCKET).join(key)).ok()
    }
}

impl Away {
    /// Brings it back where it was.
    pub async fn resume(self) -> S3 {
        S3::listen(self.dir, self.port).await
    }
}
