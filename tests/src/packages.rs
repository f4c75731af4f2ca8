//! The packages under test: two versions of the same binaries, in both formats.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::binaries::binary;

/// The directories of the two versions, here and in `/host`.
pub const OLD: &str = "old";
pub const NEW: &str = "new";
pub const NAMES: [&str; 3] = ["musterd", "muster-control", "muster"];

/// The number of the older one, and its date, as `scripts/story-packages` has them.
const VERSION: &str = "0.1.0";
const EPOCH: &str = "1767225600";

/// A directory with packages that are there already, as `scripts/test-packages` names it: those of a release, and the same
/// binaries as an older version.
const GIVEN: &str = "MUSTER_STORY_PACKAGES";

/// Makes of a machine with dnf one that is made of rpms: a repository with ours, and with packages that hold nothing for what the
/// machine has by its other manager. rpm itself says what is in the libraries. The presets are those of such a machine: no service
/// is enabled.
pub const REPOSITORY: &str = r#"
mkdir -p /srv/repo /etc/yum.repos.d
libraries=$(ldconfig -p | awk '$1 ~ /^(libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux-.*)$/ { print $NF }')
stand_in() {
    printf '%s
' "Name: $1" "Version: $2" 'Release: 1' 'Summary: stand-in' 'License: none' 'BuildArch: noarch' "${3:-}"         '%description' '%files' >/root/stand-in.spec
    rpmbuild -bb --quiet --define '_rpmdir /srv/repo' /root/stand-in.spec
}
stand_in glibc 2 "Provides: rtld(GNU_HASH)
$(echo "$libraries" | /usr/lib/rpm/rpmdeps --provides | sed 's/^/Provides: /')"
stand_in bash 5 'Provides: /bin/sh'
stand_in shadow-utils 4
stand_in dbus 1
stand_in systemd $(systemctl --version | awk 'NR == 1 { print $2 }')
cp /host/old/*.rpm /host/new/*.rpm /srv/repo
createrepo_c --quiet /srv/repo
printf '%s
' '[muster]' 'name=Muster' 'baseurl=file:///srv/repo' 'gpgcheck=0' >/etc/yum.repos.d/muster.repo
echo 'disable *' >/usr/lib/systemd/system-preset/99-default-disable.preset
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The directory of the packages that stories install. They are made where none are given and they are not up to date.
///
/// # Panics
/// When they cannot be made.
#[must_use]
pub fn story_packages() -> PathBuf {
    if let Some(given) = std::env::var_os(GIVEN) {
        return PathBuf::from(given);
    }
    made_packages()
}

/// Those of the binaries of this build, whatever is given.
///
/// # Panics
/// When they cannot be made.
#[must_use]
pub fn made_packages() -> PathBuf {
    let made = Command::new(root().join("scripts/story-packages"))
        .arg(bin_dir())
        .output()
        .expect("the script starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    root().join("target/story-packages")
}

/// Makes those of the older version once more, elsewhere and in another zone.
///
/// # Panics
/// When they cannot be made.
pub fn make_again(out: &Path) {
    let made = Command::new(root().join("scripts/packages"))
        .env("BIN_DIR", bin_dir())
        .env("VERSION", VERSION)
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
