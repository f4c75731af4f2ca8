//! Where the binaries under test are.

use std::path::PathBuf;

/// The binary of that name from the target directory that this test was built into.
///
/// # Panics
/// When it was not built: a workspace's test run does not build other members' binaries by itself.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let target = profile_dir();
    let path = target.join(name);
    assert!(
        path.is_file(),
        "{} is missing: run `make test`, which builds the binaries first",
        path.display()
    );
    path
}

/// The directory with the binaries of the version before, as `make test-previous` sets it.
const PREVIOUS: &str = "MUSTER_STORY_PREVIOUS";

/// The binary of that name of the version before. Without one at hand it is the present one: what a story asks of both together holds
/// of one version, too.
#[must_use]
pub fn previous(name: &str) -> PathBuf {
    std::env::var_os(PREVIOUS).map_or_else(|| binary(name), |dir| PathBuf::from(dir).join(name))
}

/// `target/debug`, of the test executable in `target/debug/deps`.
fn profile_dir() -> PathBuf {
    let me = std::env::current_exe().expect("a test knows its own executable");
    let dir = me.parent().expect("an executable is in a directory");
    if dir.ends_with("deps") {
        dir.parent().expect("deps is in a profile directory").to_owned()
    } else {
        dir.to_owned()
    }
}

/// A tool that a story needs beside the workspace: from the variable, `PATH`, or where `make test` installs it.
///
/// # Panics
/// When it is nowhere: a story that cannot be told must not pass.
#[must_use]
pub fn tool(name: &str, variable: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path_dirs = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path_dirs).map(|dir| dir.join(name));
    let workspace = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/bin"));
    named
        .into_iter()
        .chain(in_path)
        .chain([workspace.join(name)])
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{name} is missing: run `make test`, which installs it, or set {variable}"))
}
