//! Parameters as typed: `-p key=text`, `-p key:=json`, and a file with a JSON object.

use std::{
    fs::File,
    io::{self, Read as _},
};

use clap::Args;
use muster_shared::wire::Parameters;
use serde_json::Value;

use crate::failure::Failure;

/// A longer file cannot be a parameter document, however much white space it has.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Args, Clone, Debug)]
pub(crate) struct ParamArgs {
    /// A parameter: KEY=TEXT passes the text as it is, KEY:=JSON a number, a list, true, null
    #[arg(short = 'p', long = "param", value_name = "KEY=TEXT", value_parser = parse)]
    params: Vec<(String, Value)>,
    /// A JSON object with parameters; - is standard input. -p wins over it
    #[arg(long, value_name = "FILE")]
    params_file: Option<String>,
}

impl ParamArgs {
    /// None when no parameter was given at all.
    pub(crate) fn collect(&self) -> Result<Option<Parameters>, Failure> {
        let mut all = match &self.params_file {
            Some(path) => from_file(path)?,
            None if self.params.is_empty() => return Ok(None),
            None => Parameters::new(),
        };
        all.extend(merged(&self.params)?);
        Ok(Some(all))
    }
}

fn merged(params: &[(String, Value)]) -> Result<Parameters, Failure> {
    let mut all = Parameters::new();
    for (key, value) in params {
        if all.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::Usage(format!("parameter {key:?} is given twice")));
        }
    }
    Ok(all)
}

/// The first `=` ends the key; what follows belongs to the value, byte for byte.
fn parse(raw: &str) -> Result<(String, Value), String> {
    let (key, text) = raw.split_once('=').ok_or("write KEY=TEXT or KEY:=JSON")?;
    let (key, value) = match key.strip_suffix(':') {
        Some(key) => {
            let value = serde_json::from_str(text).map_err(|err| format!("after := comes JSON: {err}"))?;
            (key, value)
        }
        None => (key, Value::from(text)),
    };
    if key.is_empty() {
        return Err("the key is empty".to_owned());
    }
    Ok((key.to_owned(), value))
}

fn from_file(path: &str) -> Result<Parameters, Failure> {
    let reading = || format!("reading parameters from {path}");
    let source: Box<dyn io::Read> = if path == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(Failure::local(reading()))?)
    };
    let mut bytes = Vec::new();
    source
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(Failure::local(reading()))?;
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
    use serde_json::json;

    fn value(raw: &str) -> Value {
        parse(raw).unwrap().1
    }

    #[test]
    fn text_survives_byte_for_byte() {
        for text in [
            "a=b",
            " lead and trail ",
            "\"quoted\" 'both'",
            "line\nline\r\n",
            "",
            "ü€",
            "$(id)`id`\\",
            ":=1",
        ] {
            assert_eq!(
                parse(&format!("k={text}")).unwrap(),
                ("k".into(), json!(text)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn text_that_looks_like_json_stays_text_unless_asked() {
        assert_eq!(value("n=5"), json!("5"));
        assert_eq!(value("n:=5"), json!(5));
        assert_eq!(value("n:=[1,{\"a\":null}]"), json!([1, {"a": null}]));
        assert_eq!(value("n:=\"a=b\""), json!("a=b"));
    }

    #[test]
    fn what_is_no_parameter_is_refused() {
        for bad in ["", "k", "=v", ":=1", "k:=", "k:=nope", "k:=1 2"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        let twice = [("k".to_owned(), json!(1)), ("k".to_owned(), json!(2))];
        assert!(merged(&twice).is_err());
    }
}
