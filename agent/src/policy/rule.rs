//! A rule of the policy: for some actions, who may ask for them, which hooks they may be, and when. It only ever forbids.

use std::fmt;

use muster_shared::ids::Digest;

use super::{
    Pattern,
    hours::{Hours, Now},
};

/// What is asked of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyRequest<'a> {
    pub(crate) action: &'a str,
    /// Who asked control for it, as control says in what it signed.
    pub(crate) caller: Option<&'a str>,
    /// Of a hook, and none other runs: see `Runner::trust`.
    pub(crate) digest: Option<Digest>,
    pub(crate) now: Now,
}

/// As with the names of actions: deny wins, and what has an `allow` allows only what that names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lists<T> {
    pub(crate) allow: Option<Vec<T>>,
    pub(crate) deny: Vec<T>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self {
            allow: None,
            deny: Vec::new(),
        }
    }
}

impl<T: fmt::Display> Lists<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty()
    }

    /// Why something is not to be.
    fn against(&self, list: &str, what: impl fmt::Display, names: impl Fn(&T) -> bool) -> Option<String> {
        if let Some(entry) = self.deny.iter().find(|entry| names(entry)) {
            return Some(format!("{list}.deny \"{entry}\" is for {what}"));
        }
        match &self.allow {
            Some(allow) if !allow.iter().any(names) => Some(format!("{list}.allow is not for {what}")),
            Some(_) | None => None,
        }
    }

    fn text(&self, list: &str) -> Option<String> {
        let entries = |entries: &[T]| -> String {
            let quoted: Vec<String> = entries.iter().map(|entry| format!("\"{entry}\"")).collect();
            quoted.join(", ")
        };
        let allow = self
            .allow
            .as_ref()
            .map(|allow| format!("{list}.allow [{}]", entries(allow)));
        let deny = (!self.deny.is_empty()).then(|| format!("{list}.deny [{}]", entries(&self.deny)));
        let said: Vec<String> = allow.into_iter().chain(deny).collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// None of them: every action.
    pub(crate) actions: Vec<Pattern>,
    pub(crate) callers: Lists<Pattern>,
    pub(crate) digests: Lists<Digest>,
    pub(crate) hours: Lists<Hours>,
}

impl Rule {
    /// Why it forbids what is asked.
    pub(crate) fn against(&self, request: &PolicyRequest<'_>) -> Option<String> {
        if !self.is_about(request.action) {
            return None;
        }
        self.against_digest(request.digest)
            .or_else(|| self.against_caller(request.caller))
            .or_else(|| self.against_now(request.now))
    }

    /// Why it forbids this action to everybody at any time.
    pub(crate) fn against_always(&self, action: &str, digest: Option<Digest>) -> Option<String> {
        self.is_about(action)
            .then(|| self.against_digest(digest))
            .flatten()
    }

    pub(crate) fn against_now(&self, now: Now) -> Option<String> {
        self.hours.against("hours", now, |hours| hours.hold(now))
    }

    fn is_about(&self, action: &str) -> bool {
        self.actions.is_empty() || self.actions.iter().any(|pattern| pattern.matches(action))
    }

    /// A builtin has none.
    fn against_digest(&self, digest: Option<Digest>) -> Option<String> {
        let digest = digest?;
        self.digests.against("digests", digest, |named| *named == digest)
    }

    fn against_caller(&self, caller: Option<&str>) -> Option<String> {
        match caller {
            Some(caller) => self
                .callers
                .against("callers", caller, |pattern| pattern.matches(caller)),
            None if self.callers.is_empty() => None,
            None => Some("callers cannot be told: this control does not say yet who asked".to_owned()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<String> = self.actions.iter().map(Pattern::to_string).collect();
        let about = if actions.is_empty() {
            "every action".to_owned()
        } else {
            actions.join(", ")
        };
        let said = [
            self.callers.text("callers"),
            self.digests.text("digests"),
            self.hours.text("hours"),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        write!(f, "{about}: {}", said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::hours::Moment;

    const DIGEST: Digest = Digest::from_bytes([1; 32]);

    fn rule() -> Rule {
        Rule {
            name: "r".into(),
            actions: vec![Pattern::parse("deploy*").unwrap()],
            callers: Lists::default(),
            digests: Lists::default(),
            hours: Lists::default(),
        }
    }

    fn callers(raw: &[&str]) -> Vec<Pattern> {
        raw.iter()
            .map(|raw| Pattern::parse_caller(raw).unwrap())
            .collect()
    }

    fn request(action: &str) -> PolicyRequest<'_> {
        let noon = Moment::new(2, 12 * 60).unwrap();
        PolicyRequest {
            action,
            caller: Some("token:ops"),
            digest: Some(DIGEST),
            now: Now {
                local: noon,
                utc: noon,
            },
        }
    }

    #[test]
    fn it_is_about_the_actions_it_names_or_about_all() {
        let mut never = rule();
        never.hours.allow = Some(Vec::new());
        assert!(never.against(&request("deploy-app")).is_some());
        assert_eq!(never.against(&request("ping")), None);
        never.actions.clear();
        assert!(never.against(&request("ping")).is_some());
    }

    #[test]
    fn callers_are_judged_by_deny_then_by_allow() {
        let who = |allow: Option<&[&str]>, deny: &[&str], caller| {
            let mut rule = rule();
            rule.callers = Lists {
                allow: allow.map(callers),
                deny: callers(deny),
            };
            rule.against(&PolicyRequest {
                caller,
                ..request("deploy")
            })
        };
        let ops = Some("token:ops");
        assert_eq!(who(None, &[], None), None);
        assert_eq!(who(Some(&["token:ops"]), &[], ops), None);
        assert_eq!(who(Some(&["user:*@corp"]), &[], Some("user:ann@corp")), None);
        assert_eq!(
            who(Some(&["user:*"]), &[], ops).unwrap(),
            "callers.allow is not for token:ops"
        );
        assert_eq!(
            who(Some(&["token:*"]), &["token:o*"], ops).unwrap(),
            "callers.deny \"token:o*\" is for token:ops"
        );
        // A control that does not say who asked opens nothing.
        assert!(who(Some(&["*"]), &[], None).unwrap().contains("who asked"));
        assert!(who(None, &["user:x"], None).unwrap().contains("who asked"));
    }

    #[test]
    fn digests_are_for_hooks_alone_and_hold_always() {
        let mut only = rule();
        only.digests.allow = Some(vec![Digest::from_bytes([2; 32])]);
        assert!(
            only.against(&request("deploy"))
                .unwrap()
                .starts_with("digests.allow is not for sha256:0101")
        );
        assert!(only.against_always("deploy", Some(DIGEST)).is_some());
        assert_eq!(only.against_always("deploy", None), None);
        assert_eq!(only.against_always("ping", Some(DIGEST)), None);
        only.digests = Lists {
            allow: None,
            deny: vec![DIGEST],
        };
        assert!(only.against(&request("deploy")).is_some());
        only.digests.allow = Some(vec![DIGEST]);
        only.digests.deny.clear();
        assert_eq!(only.against(&request("deploy")), None);
    }

    #[test]
    fn hours_are_judged_by_the_moment_and_named_with_it() {
        let mut window = rule();
        window.hours.allow = Some(vec!["Wed 11:00-13:00".parse().unwrap()]);
        assert_eq!(window.against(&request("deploy")), None);
        window.hours.deny = vec!["12:00-12:01".parse().unwrap()];
        assert_eq!(
            window.against(&request("deploy")).unwrap(),
            "hours.deny \"12:00-12:01\" is for Wed 12:00 here, Wed 12:00 UTC"
        );
        assert_eq!(
            window.against_always("deploy", Some(DIGEST)),
            None,
            "at another time it runs"
        );
    }

    #[test]
    fn it_is_shown_with_all_that_it_says() {
        let mut all = rule();
        all.callers.deny = callers(&["user:x"]);
        all.hours.allow = Some(vec!["02:00-05:00".parse().unwrap()]);
        assert_eq!(
            all.to_string(),
            "deploy*: callers.deny [\"user:x\"]; hours.allow [\"02:00-05:00\"]"
        );
    }
}
