//! What a person sees while an execution runs: one line per node that changes and, on a terminal, a bar below them.

use std::{collections::BTreeMap, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use muster_shared::{
    status::Status,
    time::Timestamp,
    wire::{Execution, Rollout, TimelineEvent},
};

use crate::{execution_rollout, failure::Failure, follow::News, render::Screen, text};

pub(crate) struct Progress<'a> {
    screen: &'a Screen,
    bar: Option<ProgressBar>,
    began: Timestamp,
    rollout: Option<Rollout>,
    counts: BTreeMap<Status, u64>,
}

impl<'a> Progress<'a> {
    /// The timeline is told from its beginning, when every target was pending.
    pub(crate) fn new(screen: &'a Screen, execution: &Execution) -> Self {
        let targets = execution.target_count();
        let progress = Self {
            screen,
            bar: screen.is_live().then(|| bar(targets)),
            began: execution.created_at,
            rollout: None,
            counts: BTreeMap::from([(Status::Pending, targets)]),
        };
        progress.draw();
        progress
    }

    pub(crate) fn tell(&mut self, news: News) {
        match news {
            News::Changed(event) => {
                if !event.late {
                    moved(&mut self.counts, event.from.unwrap_or(Status::Pending), event.to);
                }
                self.say(&line(&event, self.began));
                self.draw();
            }
            News::Rolled(rollout) => {
                // Each release would be a line; where it stands is one when it gets there.
                let before = self.rollout.as_ref().map(|before| (before.state, before.wave));
                if before != Some((rollout.state, rollout.wave)) {
                    self.say(&execution_rollout::words(&rollout));
                }
                self.rollout = Some(rollout);
                self.draw();
            }
            News::Lost(why @ Failure::StreamEnded(_)) => self.say(&format!("{}; asking again", why.words())),
            News::Lost(why) => self.say(&format!("{}; trying again until it answers", why.words())),
            News::Back => self.say("muster: control answers again"),
        }
    }

    fn say(&self, words: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.screen.say(words)),
            None => self.screen.say(words),
        }
    }

    fn draw(&self) {
        if let Some(bar) = &self.bar {
            let held = match &self.rollout {
                Some(rollout) if rollout.held > 0 => format!(", {} of them held", rollout.held),
                Some(_) | None => String::new(),
            };
            let ended = |(status, _): &(&Status, &u64)| status.is_terminal();
            let done = self.counts.iter().filter(ended).map(|(_, n)| n).sum();
            bar.set_position(done);
            bar.set_message(format!("{}{held}", counted(&self.counts)));
        }
    }
}

fn moved(counts: &mut BTreeMap<Status, u64>, from: Status, to: Status) {
    let left = counts.entry(from).or_default();
    *left = left.saturating_sub(1);
    *counts.entry(to).or_default() += 1;
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(nodes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(nodes), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {elapsed} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    // Plain ASCII: it must also look right where the locale is C.
    bar.set_style(style.progress_chars("=> "));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// `3 succeeded, 1 started`, in the order in which an invocation goes through them.
pub(crate) fn counted(counts: &BTreeMap<Status, u64>) -> String {
    let parts: Vec<_> = counts
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(status, n)| format!("{n} {status}"))
        .collect();
    if parts.is_empty() {
        "no targets".to_owned()
    } else {
        parts.join(", ")
    }
}

fn line(event: &TimelineEvent, began: Timestamp) -> String {
    let after = format!("+{}", text::took(began.until(event.at)));
    let late = if event.late {
        " (too late: it had ended already)"
    } else {
        ""
    };
    let detail = match event.detail.as_deref() {
        None | Some("") => String::new(),
        Some(detail) => format!("  {}", text::clip(&text::line(detail), 120)),
    };
    format!(
        "{after:>8}  {}  {}{late}{detail}",
        text::line(&event.node_name),
        event.to
    )
}

#[cfg(test)]
mod tests {
    use muster_shared::ids::NodeId;

    use super::*;

    #[test]
    fn a_change_is_one_line() {
        let mut event = TimelineEvent {
            id: 7,
            node_id: NodeId::mint(Timestamp::from_millis(0), [1; 10]),
            node_name: "web-1".into(),
            from: Some(Status::Started),
            to: Status::Failed,
            at: Timestamp::from_millis(2_500),
            late: false,
            detail: Some("exit status 3\n\x1b[31m".into()),
        };
        assert_eq!(
            line(&event, Timestamp::from_millis(1_000)),
            "   +1.5s  web-1  failed  exit status 3\\n\\u{1b}[31m"
        );
        event.late = true;
        event.detail = None;
        assert_eq!(
            line(&event, Timestamp::from_millis(1_000)),
            "   +1.5s  web-1  failed (too late: it had ended already)"
        );
    }

    #[test]
    fn the_count_goes_along_the_status_machine() {
        let mut counts = BTreeMap::from([(Status::Pending, 3)]);
        moved(&mut counts, Status::Pending, Status::Ack);
        moved(&mut counts, Status::Pending, Status::Ack);
        moved(&mut counts, Status::Ack, Status::Started);
        assert_eq!(counted(&counts), "1 pending, 1 ack, 1 started");
        assert_eq!(counted(&BTreeMap::new()), "no targets");
    }
}
