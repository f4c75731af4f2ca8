//! A control whose disk is soon full.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::World;
use crate::Daemon;

impl World {
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
}
