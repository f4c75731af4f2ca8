//! The packages under test: two versions of the same binaries, in both formats.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::binaries::binary;

pub const OLD: &str = "0.1.0";
pub const NEW: &str = "0.1.1";
pub const NAMES: [&str; 3] = ["musterd", "muster-control", "muster"];

/// As `scripts/story-packages` dates them.
const EPOCH: &str = "1767225600";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The directory of the packages that stories install. They are made where they are not up to date.
///
/// # Panics
/// When they cannot be made.
#[must_use]
pub fn story_packages() -> PathBuf {
    let made = Command::new(root().join("scripts/story-packages"))
        .arg(bin_dir())
        .output()
        .expect("the script starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    root().join("target/story-packages")
}

/// Makes them once more, elsewhere and in another zone.
///
/// # Panics
/// When they cannot be made.
pub fn make_again(version: &str, out: &Path) {
    let made = Command::new(root().join("scripts/packages"))
        .env("BIN_DIR", bin_dir())
        .env("VERSION", version)
        .env("OUT", out)
        .env("COMPRESS", "fast")
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("TZ", "Asia/Tokyo")
        .output()
        .expect("the script starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn bin_dir() -> PathBuf {
    binary("musterd")
        .parent()
        .expect("a binary is in a directory")
        .to_owned()
}
