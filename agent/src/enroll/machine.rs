//! What the machine calls itself.

use std::fs;

use muster_shared::labels::{self, Labels};

pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Advisory only: clones share it, and an identity never depends on it.
pub(crate) fn machine_id() -> Option<String> {
    let id = fs::read_to_string("/etc/machine-id").ok()?.trim().to_owned();
    (!id.is_empty() && id != "uninitialized").then_some(id)
}

/// How many labels [`facts`] are at most.
pub(crate) const FACTS_MAX: usize = 3;

/// What the machine is, as labels. One that control would refuse is left out: it is no reason not to enrol.
pub(crate) fn facts() -> Labels {
    let facts: [_; FACTS_MAX] = [
        ("os", os_release("ID")),
        ("arch", Some(std::env::consts::ARCH.to_owned())),
        ("hostname", Some(hostname())),
    ];
    facts
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .filter(|(key, value)| labels::check_said(key, value).is_ok())
        .collect()
}

pub(crate) fn os_release(key: &str) -> Option<String> {
    let text = fs::read_to_string("/etc/os-release")
        .or_else(|_| fs::read_to_string("/usr/lib/os-release"))
        .ok()?;
    field(&text, key)
}

fn field(text: &str, key: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?
        .trim();
    let value = value.trim_matches('"').trim_matches('\'');
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_not_part_of_a_value() {
        let text = "ID=debian\nVERSION_ID=\"12\"\nEMPTY=\"\"\n";
        assert_eq!(field(text, "ID").as_deref(), Some("debian"));
        assert_eq!(field(text, "VERSION_ID").as_deref(), Some("12"));
        assert_eq!(field(text, "EMPTY"), None);
    }
}
