//! The texts of tuples: who a subject can be, what a resource can be, and which relations there are between them.

use std::{fmt, str::FromStr};

use muster_shared::{
    access::SUBJECT_NAME_LEN_MAX as NAME_LEN_MAX,
    ids::{DomainId, NodeId, ProjectId, RowId},
};

use super::{BadTuple, MEMBER};

/// What the names of an issuer's groups begin with. No group of a domain can be called so, and no tuple can put a member
/// in: who is in it is the issuer's to say.
const ISSUED: &str = "oidc/";

pub(crate) fn domain(id: DomainId) -> String {
    format!("domain:{id}")
}
pub(crate) fn project(id: ProjectId) -> String {
    format!("project:{id}")
}
pub(crate) fn resource(id: NodeId) -> String {
    format!("resource:{id}")
}
/// A tuple in one word.
pub(crate) fn notation(resource: &str, relation: &str, subject: &str) -> String {
    format!("{resource}#{relation}@{subject}")
}

/// A text that is no subject or resource.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadShape {
    #[error(
        "subject is {0:?}; it must be user:NAME, group:NAME#member, group:oidc/NAME#member or token:UUID"
    )]
    Subject(String),
    #[error(
        "resource is {0:?}; it must be domain:UUID, project:UUID, resource:NODE_UUID or group:NAME (who is in \
         group:oidc/NAME is the issuer's to say)"
    )]
    Resource(String),
}

/// Who is granted something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    User(String),
    Members(String),
    Token(RowId),
}

/// What something is granted on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    Domain(DomainId),
    Project(ProjectId),
    Node(NodeId),
    Group(String),
}

fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'@' | b'+');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// Issuers also call users `auth0|5f7c` and groups `/ops/web`.
fn is_issued_name(name: &str) -> bool {
    let plain = |b: u8| {
        b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'@' | b'+' | b'/' | b'|' | b':')
    };
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// The subject of an issuer's user; `None` for a name that no tuple could hold.
pub(crate) fn issued_user(name: &str) -> Option<String> {
    is_issued_name(name).then(|| format!("user:{name}"))
}

/// The members of an issuer's group; `None` for a name that no tuple could hold.
pub(crate) fn issued_group(name: &str) -> Option<String> {
    is_issued_name(name).then(|| format!("group:{ISSUED}{name}#{MEMBER}"))
}

impl FromStr for Subject {
    type Err = BadShape;
    fn from_str(raw: &str) -> Result<Self, BadShape> {
        let bad = || BadShape::Subject(raw.to_owned());
        match raw.split_once(':').ok_or_else(bad)? {
            ("user", name) if is_issued_name(name) => Ok(Self::User(name.to_owned())),
            ("group", rest) => match rest.split_once('#') {
                Some((name, MEMBER))
                    if is_name(name) || name.strip_prefix(ISSUED).is_some_and(is_issued_name) =>
                {
                    Ok(Self::Members(name.to_owned()))
                }
                Some(_) | None => Err(bad()),
            },
            ("token", id) => id.parse().map(Self::Token).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Members(name) => write!(f, "group:{name}#{MEMBER}"),
            Self::Token(id) => write!(f, "token:{id}"),
        }
    }
}

impl FromStr for Resource {
    type Err = BadShape;
    fn from_str(raw: &str) -> Result<Self, BadShape> {
        let bad = || BadShape::Resource(raw.to_owned());
        match raw.split_once(':').ok_or_else(bad)? {
            ("domain", id) => id.parse().map(Self::Domain).map_err(|_| bad()),
            ("project", id) => id.parse().map(Self::Project).map_err(|_| bad()),
            ("resource", id) => id.parse().map(Self::Node).map_err(|_| bad()),
            ("group", name) if is_name(name) => Ok(Self::Group(name.to_owned())),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Domain(id) => f.write_str(&domain(*id)),
            Self::Project(id) => f.write_str(&project(*id)),
            Self::Node(id) => f.write_str(&resource(*id)),
            Self::Group(name) => write!(f, "group:{name}"),
        }
    }
}

impl Resource {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Domain(_) => "domain",
            Self::Project(_) => "project",
            Self::Node(_) => "resource",
            Self::Group(_) => "group",
        }
    }

    fn known(&self, relation: &str, known: &[&str]) -> Result<(), BadTuple> {
        if known.contains(&relation) {
            return Ok(());
        }
        Err(BadTuple::Relation {
            relation: relation.to_owned(),
            kind: self.kind(),
            known: known.join(", "),
        })
    }
}

/// Whether a tuple with this relation means anything.
pub(crate) fn check_relation(relation: &str, resource: &Resource) -> Result<(), BadTuple> {
    let known: &[&str] = match resource {
        Resource::Domain(_) => &["operator", "excluded"],
        Resource::Project(_) => &["act", "operator", "excluded"],
        Resource::Node(_) => &["act", "excluded"],
        Resource::Group(_) => &[MEMBER],
    };
    resource.known(relation, known)
}

/// Whether it can be asked: also what is only ever inherited.
pub(crate) fn check_question(relation: &str, resource: &Resource) -> Result<(), BadTuple> {
    let known: &[&str] = match resource {
        Resource::Domain(_) | Resource::Project(_) | Resource::Node(_) => &["act", "operator", "excluded"],
        Resource::Group(_) => &[MEMBER],
    };
    resource.known(relation, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_an_issuer_is_taken_as_it_is_or_not_at_all() {
        assert_eq!(issued_user("auth0|5f7c").as_deref(), Some("user:auth0|5f7c"));
        assert_eq!(
            issued_group("/ops/web").as_deref(),
            Some("group:oidc//ops/web#member")
        );
        for name in ["", "a b", "a#member", "a\n", "ä", &"x".repeat(NAME_LEN_MAX + 1)] {
            assert_eq!((issued_user(name), issued_group(name)), (None, None), "{name:?}");
        }
    }

    #[test]
    fn only_the_published_shapes_are_subjects_and_resources() {
        let uuid = "0198c5f0-0000-7000-8000-000000000000";
        for raw in [
            "user:a.b@c",
            "user:auth0|1",
            "group:ops#member",
            "group:oidc//ops/web#member",
            &format!("token:{uuid}"),
        ] {
            assert_eq!(raw.parse::<Subject>().unwrap().to_string(), raw);
        }
        for raw in [
            "",
            "user:",
            "user:a b",
            "group:ops",
            "group:#member",
            "group:a#owner",
            "group:a/b#member",
            "group:oidc/#member",
            "token:x",
            "node:x",
            "user",
        ] {
            assert!(raw.parse::<Subject>().is_err(), "{raw:?}");
        }
        for raw in [
            format!("domain:{uuid}"),
            format!("project:{uuid}"),
            format!("resource:{uuid}"),
            "group:ops".into(),
        ] {
            assert_eq!(raw.parse::<Resource>().unwrap().to_string(), raw);
        }
        for raw in [
            "",
            "domain:x",
            "group:ops#member",
            "group:oidc/ops",
            "project:",
            "user:a",
        ] {
            assert!(raw.parse::<Resource>().is_err(), "{raw:?}");
        }
        let group = Resource::Group("ops".into());
        let domain: Resource = format!("domain:{uuid}").parse().unwrap();
        assert!(check_relation(MEMBER, &group).is_ok());
        assert!(check_relation("operator", &group).is_err());
        assert!(check_relation("act", &domain).is_err());
        assert!(check_question("act", &domain).is_ok());
    }
}
