//! Where the outputs of an execution are read from, and why there may be none of a node.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use muster_shared::{
    ids::{Digester, ExecutionId, ProjectId},
    wire::{ExecutionTarget, OutputRef},
};

use crate::{
    client::{Client, Route},
    execution_show::name,
    failure::Failure,
    text,
};

pub(crate) struct Source<'a> {
    pub(crate) client: &'a Client,
    pub(crate) project: ProjectId,
    pub(crate) execution: ExecutionId,
    /// The part of each that is wanted, as HTTP says it.
    pub(crate) range: Option<String>,
}

/// Why there is nothing to read; it is the same answer for one node and for many.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    NotEnded,
    /// The node could not bring it, for this reason.
    NotBrought(String),
    NotKept,
    NoSuchPart,
}

impl Missing {
    pub(crate) fn words(&self) -> String {
        match self {
            Self::NotEnded => "it has not ended yet".to_owned(),
            Self::NotBrought(why) => format!("its output is missing: {why}"),
            Self::NotKept => "no such output is kept".to_owned(),
            Self::NoSuchPart => "its output has no such bytes".to_owned(),
        }
    }

    /// What control means by its refusal, or the refusal.
    fn meant(failure: Failure) -> Result<Self, Failure> {
        if failure.is_code("output_not_found") {
            Ok(Self::NotKept)
        } else if failure.is_code("range_not_satisfiable") {
            Ok(Self::NoSuchPart)
        } else {
            Err(failure)
        }
    }
}

/// What the target itself says of its output.
#[derive(PartialEq, Eq, Debug)]
enum Standing {
    /// Control has it, or knows why not.
    Ask,
    /// The action ended by itself, and wrote nothing.
    Empty,
    Missing(Missing),
}

fn standing(target: &ExecutionTarget) -> Standing {
    if target.output_ref.is_some() {
        return Standing::Ask;
    }
    if !target.status.is_terminal() {
        return Standing::Missing(Missing::NotEnded);
    }
    if let Some(why) = &target.output_error {
        return Standing::Missing(Missing::NotBrought(why.clone()));
    }
    // Its exit status came with whatever it wrote. Of an action that was lost, or that nobody heard of any more, only control can say
    // what came meanwhile, and nobody that there was nothing.
    if target.exit_code.is_some() && target.output_bytes.is_none() {
        return Standing::Empty;
    }
    Standing::Ask
}

impl Source<'_> {
    /// Writes it beside, and into place once it is known to be right. Of one that is not, nothing is left.
    pub(crate) async fn save(
        &self,
        target: &ExecutionTarget,
        path: &Path,
    ) -> Result<Option<Missing>, Failure> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let mut file = File::create(&part).map_err(writing(&part))?;
        let read = self.read(target, |piece| {
            file.write_all(piece).map(|()| true).map_err(writing(&part))
        });
        let saved = match read.await {
            Ok(None) => file
                .sync_all()
                .and_then(|()| fs::rename(&part, path))
                .map(|()| None)
                .map_err(writing(path)),
            missed => missed,
        };
        if !matches!(saved, Ok(None)) {
            let _ = fs::remove_file(&part);
        }
        saved
    }

    /// Hands the output over piece by piece; the whole of it must have the digest that the node reported.
    pub(crate) async fn read(
        &self,
        target: &ExecutionTarget,
        take: impl FnMut(&[u8]) -> Result<bool, Failure>,
    ) -> Result<Option<Missing>, Failure> {
        match standing(target) {
            Standing::Empty => Ok(None),
            Standing::Missing(missing) => Ok(Some(missing)),
            Standing::Ask => match self.ask(target, take).await {
                Ok(()) => Ok(None),
                Err(failure) => Missing::meant(failure).map(Some),
            },
        }
    }

    async fn ask(
        &self,
        target: &ExecutionTarget,
        mut take: impl FnMut(&[u8]) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let (execution, node) = (self.execution.to_string(), target.node_id.to_string());
        let route = Route::project(
            self.project,
            ["executions", &execution, "targets", &node, "output"],
        );
        let mut digester = Digester::default();
        let mut whole = true;
        self.client
            .download(&route, self.range.as_deref(), |piece| {
                digester.update(piece);
                whole = take(piece)?;
                Ok(whole)
            })
            .await?;
        let whole = whole && self.range.is_none();
        match (whole, target.output_ref.as_ref().map(OutputRef::digest)) {
            (true, Some(digest)) if digester.finish() != digest => Err(Failure::Unexpected(format!(
                "the output of {} is not what the node reported: its digest is not {digest}",
                text::line(&name(target))
            ))),
            _ => Ok(()),
        }
    }
}

pub(crate) fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    Failure::local(format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use muster_shared::{
        status::Status::{self, Cancelled, Failed, Started, Succeeded, Timeout},
        wire::Base64,
    };

    use super::*;
    use crate::{execution_show::tests::execution, problem::tests::problem};

    fn target(status: Status) -> ExecutionTarget {
        execution(&[("web-1", status)]).targets.remove(0)
    }

    #[test]
    fn only_of_what_ended_by_itself_is_it_known_that_it_wrote_nothing() {
        for ended in [Succeeded, Failed] {
            let mut target = target(ended);
            target.exit_code = Some(0);
            assert_eq!(standing(&target), Standing::Empty, "{ended}");
        }
        for ended in [Failed, Cancelled, Timeout] {
            let mut target = target(ended);
            target.exit_code = None;
            assert_eq!(standing(&target), Standing::Ask, "{ended}");
        }
        assert_eq!(standing(&target(Started)), Standing::Missing(Missing::NotEnded));
    }

    #[test]
    fn an_output_that_could_not_be_brought_is_no_empty_one() {
        let mut target = target(Succeeded);
        target.output_bytes = Some(20_000);
        assert_eq!(standing(&target), Standing::Ask);
        target.output_error = Some("output_upload_failed: 403".into());
        let Standing::Missing(missing) = standing(&target) else {
            panic!("{target:?}")
        };
        assert_eq!(
            missing.words(),
            "its output is missing: output_upload_failed: 403"
        );
        target.output_ref = Some(OutputRef::Inline {
            inline_bytes: Base64(b"x".to_vec()),
        });
        assert_eq!(standing(&target), Standing::Ask);
    }

    #[test]
    fn a_part_that_is_not_there_is_told_apart_from_an_output_that_is_not() {
        let refused = |code: &str| Failure::Refused {
            problem: Box::new(problem(404, code, "")),
            selector: None,
            names: crate::lookup::NodeNames::new(),
            retry_after: None,
        };
        let meant = |code| Missing::meant(refused(code)).ok();
        assert_eq!(meant("output_not_found"), Some(Missing::NotKept));
        assert_eq!(meant("range_not_satisfiable"), Some(Missing::NoSuchPart));
        assert_eq!(meant("execution_not_found"), None);
    }
}
