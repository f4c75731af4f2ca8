//! What is taken for a hook, and what is refused with which words.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use super::*;

fn dir_with(name: &str, bytes: &[u8], mode: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    dir
}

fn pin(dir: &Path, name: &str) -> Result<Pinned, NoHook> {
    let max = SizesMax {
        hook_bytes: 1024,
        manifest_bytes: 256,
    };
    let (hooks, name) = (HookDir::open(dir)?, name.parse().unwrap());
    let looked = hooks.look(&name, max).map_err(|err| err.to_string());
    let pinned = hooks.pin(&name, max, dir);
    let seen = pinned.as_ref().map(|pinned| pinned.digests);
    assert_eq!(
        looked.map(|(digests, _)| digests),
        seen.map_err(ToString::to_string),
        "a look says what a start would"
    );
    pinned
}

#[test]
fn a_sound_file_is_pinned_with_its_digest() {
    let dir = dir_with("hook", b"#!/bin/sh\n", 0o755);
    assert_eq!(
        pin(dir.path(), "hook").unwrap().digests.whole(),
        Digest::of(b"#!/bin/sh\n")
    );
}

#[test]
fn a_manifest_is_part_of_the_digest_and_held_to_the_rules_of_hooks() {
    let dir = dir_with("hook", b"#!x", 0o755);
    let path = dir.path().join("hook.toml");
    let mut seen = vec![pin(dir.path(), "hook").unwrap().digests.whole()];
    for text in ["", "description = \"one\"", "description = \"two\""] {
        fs::write(&path, text).unwrap();
        seen.push(pin(dir.path(), "hook").unwrap().digests.whole());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4, "each is another hook");
    let refused = || pin(dir.path(), "hook").unwrap_err().to_string();
    fs::write(&path, "descripton = \"x\"").unwrap();
    assert!(refused().contains("hook.toml, line 1"), "{}", refused());
    fs::write(&path, "#".repeat(257)).unwrap();
    assert!(refused().contains("manifest_bytes_max"), "{}", refused());
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(refused().contains("chmod go-w"), "{}", refused());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(refused().contains("not a regular file"), "{}", refused());
    fs::remove_dir(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    assert!(refused().contains("symbolic link"), "{}", refused());
}

#[test]
fn what_others_could_change_is_refused_with_the_remedy() {
    let dir = dir_with("hook", b"#!x", 0o775);
    let text = pin(dir.path(), "hook").unwrap_err().to_string();
    assert!(text.contains("chmod go-w") && text.contains("hook"), "{text}");
    let dir = dir_with("hook", b"#!x", 0o757);
    assert!(matches!(pin(dir.path(), "hook"), Err(NoHook::Writable { .. })));
    let dir = dir_with("hook", b"#!x", 0o755);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(pin(dir.path(), "hook"), Err(NoHook::Writable { .. })));
}

#[test]
fn a_strangers_file_is_refused() {
    let dir = dir_with("hook", b"#!x", 0o755);
    // Only root may give a file away; elsewhere the case cannot be made.
    if std::os::unix::fs::chown(dir.path().join("hook"), Some(12345), None).is_ok() {
        assert!(matches!(
            pin(dir.path(), "hook"),
            Err(NoHook::Owner { owner: 12345, .. })
        ));
    }
}

#[test]
fn a_link_is_refused_as_file_and_as_directory() {
    let dir = dir_with("hook", b"#!x", 0o755);
    symlink(dir.path().join("hook"), dir.path().join("link")).unwrap();
    assert!(matches!(pin(dir.path(), "link"), Err(NoHook::Symlink { .. })));
    let other = tempfile::tempdir().unwrap();
    symlink(dir.path(), other.path().join("hooks.d")).unwrap();
    assert!(matches!(
        HookDir::open(&other.path().join("hooks.d")),
        Err(NoHook::Symlink { .. })
    ));
}

#[test]
fn what_is_no_program_is_refused() {
    let dir = dir_with("plain", b"#!x", 0o644);
    fs::create_dir(dir.path().join("folder")).unwrap();
    assert!(matches!(
        pin(dir.path(), "plain"),
        Err(NoHook::NotExecutable { .. })
    ));
    assert!(matches!(
        pin(dir.path(), "folder"),
        Err(NoHook::NotRegular { .. })
    ));
    assert!(matches!(pin(dir.path(), "absent"), Err(NoHook::Missing { .. })));
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), Mode::RWXU).unwrap();
    assert!(matches!(pin(dir.path(), "pipe"), Err(NoHook::NotRegular { .. })));
}

#[test]
fn what_a_shell_would_have_to_guess_at_is_refused() {
    for (bytes, words) in [
        (b"".as_slice(), "is empty"),
        (b"echo hello\n", "#!/bin/sh"),
        (b"#", "#!/bin/sh"),
        (b"\x7fEL", "#!/bin/sh"),
    ] {
        let dir = dir_with("hook", bytes, 0o755);
        let text = pin(dir.path(), "hook").unwrap_err().to_string();
        assert!(text.contains(words) && text.contains("hook"), "{text}");
    }
    let dir = dir_with("hook", b"\x7fELF", 0o755);
    assert!(pin(dir.path(), "hook").is_ok());
}

#[test]
fn the_size_is_bounded() {
    let dir = dir_with("hook", &[b'#', b'!'].repeat(512), 0o755);
    assert!(pin(dir.path(), "hook").is_ok());
    fs::write(dir.path().join("hook"), "#!x".repeat(342)).unwrap();
    assert!(matches!(pin(dir.path(), "hook"), Err(NoHook::TooLong { .. })));
}

#[test]
fn bytes_changed_after_the_pinning_are_not_those_that_run() {
    let dir = dir_with("hook", b"#!/bin/sh\necho first\n", 0o755);
    let pinned = pin(dir.path(), "hook").unwrap();
    fs::write(dir.path().join("hook"), b"#!/bin/sh\necho second\n").unwrap();
    let memory = File::from(pinned.held.fd);
    assert!((&memory).write_all(b"x").is_err(), "the copy must be sealed");
    let mut text = String::new();
    io::Seek::rewind(&mut &memory).unwrap();
    (&memory).read_to_string(&mut text).unwrap();
    assert_eq!(text, "#!/bin/sh\necho first\n");
    assert_eq!(pinned.digests.file, Digest::of(text.as_bytes()));
}

#[test]
fn what_is_left_beside_a_hook_is_none_whatever_left_it() {
    for (name, suffix) in [
        ("hook.dpkg-new", ".dpkg-new"),
        ("hook.toml.dpkg-dist", ".dpkg-dist"),
        ("hook.sh.rpmsave", ".rpmsave"),
        ("hook.ucf-old", ".ucf-old"),
        ("hook.bak", ".bak"),
    ] {
        let dir = dir_with(name, b"#!x", 0o755);
        let text = pin(dir.path(), name).unwrap_err().to_string();
        assert!(
            text.contains(name) && text.contains(&format!("ends in {suffix} ")),
            "{text}"
        );
        let hooks = HookDir::open(dir.path()).unwrap();
        assert_eq!(hooks.names().unwrap(), [name], "it is told, with the reason");
    }
    for name in ["bak", "hook-old", "hook.backup", "old.sh"] {
        let dir = dir_with(name, b"#!x", 0o755);
        assert!(pin(dir.path(), name).is_ok(), "{name}");
    }
}

#[test]
fn manifests_hidden_files_and_backups_are_not_listed() {
    let dir = dir_with("hook", b"#!x", 0o755);
    for other in ["hook.toml", ".hidden", "hook~"] {
        fs::write(dir.path().join(other), b"x").unwrap();
    }
    assert_eq!(HookDir::open(dir.path()).unwrap().names().unwrap(), ["hook"]);
}
