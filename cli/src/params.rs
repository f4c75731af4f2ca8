//! Parameters as typed: `-p key=text`, `-p key:=json`, and a file with a JSON object.

use std::{
    fs::File,
    io::{self, Read as _},
};

use clap::Args;
use muster_shared::{parameter_text, wire::Parameters};
use serde_json::Value;

use crate::failure::Failure;

/// A longer file cannot be a parameter document, however much white space it has.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Args, Clone, Debug)]
pub(crate) struct ParamArgs {
    /// A parameter: KEY=TEXT, read as the number, list or truth value that the action declares there; KEY:=JSON in any case.
    /// Others on this machine can read it while the command runs: a secret goes through --params-file -
    #[arg(short = 'p', long = "param", value_name = "KEY=TEXT", value_parser = parameter_text::parse)]
    params: Vec<(String, Value)>,
    /// A JSON object with parameters; - is standard input. -p wins over it
    #[arg(long, value_name = "FILE")]
    params_file: Option<String>,
}

impl ParamArgs {
    /// Whether a schema could change what any of them means.
    pub(crate) fn has_text(&self) -> bool {
        self.params.iter().any(|(_, value)| value.is_string())
    }

    /// None when no parameter was given at all. A text whose parameter the action declares as something else is read as
    /// that: `-p count=3` is a number where `count` is one.
    pub(crate) fn collect(&self, schemas: &[Value]) -> Result<Option<Parameters>, Failure> {
        let mut all = match &self.params_file {
            Some(path) => from_file(path)?,
            None if self.params.is_empty() => return Ok(None),
            None => Parameters::new(),
        };
        all.extend(parameter_text::merge(self.typed(schemas)).map_err(Failure::Usage)?);
        Ok(Some(all))
    }
}

impl ParamArgs {
    fn typed(&self, schemas: &[Value]) -> Vec<(String, Value)> {
        let typed = |(name, value): &(String, Value)| {
            let value = parameter_text::as_declared(name, value, schemas);
            (name.clone(), value)
        };
        self.params.iter().map(typed).collect()
    }
}

fn from_file(path: &str) -> Result<Parameters, Failure> {
    let reading = || format!("reading parameters from {path}");
    // As with a token or a CA file: the command line names what is not there.
    let wrong = |err: io::Error| Failure::Usage(format!("{}: {err}", reading()));
    let source: Box<dyn io::Read> = if path == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(wrong)?)
    };
    let mut bytes = Vec::new();
    source
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(wrong)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{}: longer than {FILE_BYTES_MAX} bytes",
            reading()
        )));
    }
    serde_json::from_slice(&bytes)
        .map_err(|err| Failure::Usage(format!("{}: not a JSON object: {err}", reading())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_file_that_cannot_be_read_is_a_wrong_command_line() {
        for path in ["/no/such/file", "/"] {
            let failure = from_file(path).unwrap_err();
            assert_eq!(failure.exit(), Exit::Usage, "{path}");
            let words = failure.words();
            assert!(
                words.starts_with(&format!("muster: reading parameters from {path}: ")),
                "{words}"
            );
        }
    }
}
