//! A small Debian of its own for apt and dpkg: an empty database, one repository, and nothing of this machine.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Musterd, binaries::tool};

pub struct PackageRoot {
    dir: PathBuf,
}

impl PackageRoot {
    /// # Panics
    /// When its directories cannot be made.
    #[must_use]
    pub fn new(under: &Path) -> Self {
        let dir = under.join("debian");
        for part in [
            "root/var/lib/dpkg/info",
            "root/var/lib/dpkg/updates",
            "root/var/lib/dpkg/triggers",
            "repo",
            "etc/apt.conf.d",
            "etc/preferences.d",
            "etc/trusted.gpg.d",
            "lists/partial",
            "cache/archives/partial",
            "log",
        ] {
            fs::create_dir_all(dir.join(part)).expect("directories can be made");
        }
        let root = Self { dir };
        for file in ["status", "available"] {
            File::create(root.admin_dir().join(file)).expect("the database can be made");
        }
        let at = root.dir.display();
        fs::write(
            root.dir.join("etc/sources.list"),
            format!("deb [trusted=yes] copy:{at}/repo ./\n"),
        )
        .expect("the sources can be written");
        root.configure("");
        root
    }

    /// Writes apt's configuration, with more of a story's own.
    pub fn configure(&self, more: &str) {
        let at = self.dir.display();
        let text = format!(
            "Dir::Etc \"{at}/etc\";\nDir::Etc::sourceparts \"/dev/null\";\nDir::State::lists \"{at}/lists\";\n\
             Dir::State::status \"{at}/root/var/lib/dpkg/status\";\nDir::State::extended_states \"{at}/extended\";\n\
             Dir::Cache \"{at}/cache\";\nDir::Log \"{at}/log\";\nAPT::Sandbox::User \"root\";\n\
             DPkg::Options {{ \"--root={at}/root\"; \"--force-not-root\"; \"--log={at}/log/dpkg\"; }};\n\
             #clear DPkg::Pre-Install-Pkgs;\n#clear DPkg::Post-Invoke;\n#clear APT::Update::Post-Invoke;\n\
             #clear APT::Update::Post-Invoke-Success;\n{more}\n"
        );
        fs::write(self.apt_conf(), text).expect("the configuration can be written");
    }

    fn apt_conf(&self) -> PathBuf {
        self.dir.join("apt.conf")
    }

    #[must_use]
    pub fn admin_dir(&self) -> PathBuf {
        self.dir.join("root/var/lib/dpkg")
    }

    /// Lets a daemon and all it starts see this one and not this machine's.
    pub fn give_to(&self, musterd: &mut Musterd) {
        musterd.set_variable("APT_CONFIG", &self.apt_conf().to_string_lossy());
        musterd.set_variable("DPKG_ADMINDIR", &self.admin_dir().to_string_lossy());
    }

    /// Puts a version of a package into the repository, in place of the one before.
    pub fn publish(&self, name: &str, version: &str) {
        let build = self.dir.join("build").join(name);
        fs::create_dir_all(build.join("DEBIAN")).expect("a package can be laid out");
        fs::create_dir_all(build.join("usr/share/story")).expect("a package can be laid out");
        fs::write(build.join("usr/share/story").join(name), version).expect("a package can be laid out");
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Story <story@example.org>\n\
             Description: part of a story\n"
        );
        fs::write(build.join("DEBIAN/control"), &control).expect("a package can be laid out");
        let file = format!("{name}_{version}_all.deb");
        let built = Command::new(tool("dpkg-deb", "DPKG_DEB"))
            .args(["--root-owner-group", "--build"])
            .arg(&build)
            .arg(self.dir.join("repo").join(&file))
            .output()
            .expect("dpkg-deb starts");
        assert!(built.status.success(), "{built:?}");
        let bytes = fs::read(self.dir.join("repo").join(&file)).expect("the package is there");
        let digest = muster_shared::ids::Digest::of(&bytes).to_string();
        let sha256 = digest.trim_start_matches("sha256:");
        let entry = format!(
            "{control}Filename: ./{file}\nSize: {}\nSHA256: {sha256}\n",
            bytes.len()
        );
        fs::write(self.dir.join("repo").join(format!("{name}.entry")), entry)
            .expect("the index can be written");
        self.index();
    }

    fn index(&self) {
        let entries: Vec<String> = fs::read_dir(self.dir.join("repo"))
            .expect("the repository can be read")
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "entry"))
            .map(|entry| fs::read_to_string(entry.path()).expect("the index can be read"))
            .collect();
        fs::write(self.dir.join("repo/Packages"), entries.join("\n")).expect("the index can be written");
    }

    /// What a package brought, if it is there.
    #[must_use]
    pub fn brought(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join("root/usr/share/story").join(name)).ok()
    }
}
